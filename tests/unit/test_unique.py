"""Tests `Unique`, whose number of results depends on its input, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.masked_nets import theirs
from tests.one_node import computed, one_node

RNG = np.random.default_rng(0)


def check(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> None:
    for ours, wanted in zip(computed(model, feed), theirs(model, feed), strict=True):
        assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("is_sorted", [0, 1])
@pytest.mark.parametrize(
    "x",
    [
        RNG.integers(-4, 4, 33),
        RNG.integers(0, 5, (3, 4)).astype(np.float32),
        np.array([3.0]),
        np.array([2, 2, 2], np.int8),
        np.array([0.5, -0.0, np.inf, 0.0, -np.inf, 0.5], np.float32),
        RNG.permutation(np.arange(20)),
    ],
    ids=str,
)
def test_numbers(x: np.ndarray, is_sorted: int) -> None:
    for outputs in (1, 4):
        check(*one_node("Unique", [x], outputs=outputs, opset=13, sorted=is_sorted))


def net(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    onnx.checker.check_model(model)
    return model


def test_rows_are_gathered() -> None:
    model = net(
        "agraph (int64[12] x, float[6, 3] table) => (float[n, 3] rows, int64[12] places) "
        "{ u, first, places, times = Unique(x)  rows = Gather(table, u) }"
    )
    table = RNG.standard_normal((6, 3)).astype(np.float32)
    for most in (1, 6):
        check(model, {"x": RNG.integers(0, most, 12), "table": table})


def test_numbers_that_a_mask_selects() -> None:
    model = net(
        "agraph (int64[12] x, bool[12] mask) => (int64[n] u, int64[m] places, int64[n] times) "
        "{ some = Compress<axis = 0>(x, mask)  u, first, places, times = Unique(some) }"
    )
    for share in (0.3, 0.7, 1.1):
        check(model, {"x": RNG.integers(0, 5, 12), "mask": RNG.random(12) < share})


def test_a_mean_of_each_group() -> None:
    """PyTorch exports sums over the groups of `torch.unique` in this form."""
    model = net(
        "agraph (int64[12] x, float[12] y, float[12] zeros) => (float[12] sums) "
        "{ u, first, places, times = Unique(x) "
        '  sums = ScatterElements<axis = 0, reduction = "add">(zeros, places, y) }'
    )
    y = RNG.standard_normal(12).astype(np.float32)
    feed = {"x": RNG.integers(0, 4, 12), "y": y, "zeros": np.zeros(12, np.float32)}
    (ours,), (wanted,) = computed(model, feed), theirs(model, feed)
    np.testing.assert_allclose(ours, wanted, 1e-6, 1e-6)
