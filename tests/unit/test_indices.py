"""Tests that indices in data stay within the tensor, and that constant indices are checked."""

from __future__ import annotations

import numpy as np
import pytest

from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed, one_node
from tvm_interop import UnsupportedModelError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 5)).astype("float32")
ROW = RNG.standard_normal((1, 5)).astype("float32")
ONE = ROW[:, :1].copy()

CASES = {
    "Gather": ([X], [[0, -1, 3]], [4], {}),
    "GatherElements": ([X], [[0, -1], [3, -4]], [[7, 0]], {}),
    "GatherND": ([X], [[0, -1], [-4, 4]], [[0, -10_000_000]], {}),
    "ScatterElements": ([X], [[2, 0, -1, 3, -4]], [[10_000_000, 0, 0, 0, 0]], {}),
    "ScatterND": ([X], [[-1]], [[100_000]], {}),
}


def model_of(op: str, indices: object, constants: tuple[int, ...] = (), **attributes: object):
    inputs = [X, np.array(indices)] + ([ROW] if op.startswith("Scatter") else [])
    return one_node(op, inputs, constants, **attributes)


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("constants", [(), (1,), (0, 1)])
def test_indices_count_from_both_ends(op: str, constants: tuple[int, ...]) -> None:
    model, feeds = model_of(op, CASES[op][1], constants)
    (wanted,) = run_onnxruntime(model, feeds, rewrites=False).values()
    np.testing.assert_array_equal(computed(model, feeds)[0], wanted)


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("constants", [(1,), (0, 1)])
def test_a_constant_out_of_range_is_refused(op: str, constants: tuple[int, ...]) -> None:
    model, _ = model_of(op, CASES[op][2], constants)
    with pytest.raises(UnsupportedModelError, match=r"`the_node`.*its index -?\d+ is out of range"):
        computed(model, {})


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("sign", [1, -1])
def test_data_out_of_range_are_taken_as_the_nearest_element(op: str, sign: int) -> None:
    """No memory outside of the tensor is read or written, not even for a very large index."""
    far = np.full_like(np.array(CASES[op][2]), sign * 2**40)
    near = np.full_like(far, 10_000 if sign > 0 else -10_000)
    model, feeds = model_of(op, far)
    clamped = np.clip(near, 0, 3) if op != "GatherND" else np.clip(near, 0, [[3, 4]])
    ends, end_feeds = model_of(op, clamped)
    (wanted,) = run_onnxruntime(ends, end_feeds, rewrites=False).values()
    np.testing.assert_array_equal(computed(model, feeds)[0], wanted)


@pytest.mark.parametrize(
    ("axis", "shape", "reduction"),
    [(0, (2, 2, 3), "none"), (2, (2, 2, 3), "none"), (-1, (3, 2, 5), "add"), (1, (2, 4, 3), "max")],
)
def test_indices_may_be_shorter_than_the_data_along_each_axis(
    axis: int, shape: tuple[int, ...], reduction: str
) -> None:
    random = np.random.default_rng(0)
    data, updates = (random.standard_normal(s).astype("float32") for s in ((3, 4, 5), shape))
    places = np.arange(shape[axis]).reshape([-1 if a == axis % 3 else 1 for a in range(3)])
    given = [data, np.broadcast_to(places, shape).copy(), updates]
    model, feeds = one_node("ScatterElements", given, axis=axis, reduction=reduction)
    (got,) = computed(model, feeds)
    np.testing.assert_allclose(got, run_onnxruntime(model, feeds)["y0"], rtol=1e-6)
