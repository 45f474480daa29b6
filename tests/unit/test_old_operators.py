"""Tests operators of old opsets, which TVM's converters would read as operators of later opsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.masked_nets import theirs
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed, one_node

X = np.random.default_rng(0).standard_normal((1, 2, 4, 3)).astype("float32")
SCALES = np.array([1, 1, 2, 1.5], "float32")


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("op", "opset"), [("Upsample", 7), ("Upsample", 9), ("Resize", 10)])
def test_images_become_larger(op: str, opset: int, mode: str) -> None:
    if opset == 7:
        model, feeds = one_node(op, [X], opset=7, mode=mode, scales=SCALES.tolist())
    else:
        model, feeds = one_node(op, [X, SCALES], (1,), opset=opset, mode=mode)
    (wanted,) = run_onnxruntime(model, feeds, rewrites=False).values()
    np.testing.assert_allclose(computed(model, feeds)[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("constants", [(), (1,), (0, 1)])
@pytest.mark.parametrize(("op", "function"), [("Sub", np.subtract), ("Mul", np.multiply)])
def test_a_tensor_is_aligned_with_an_inner_axis(
    op: str, function: np.ufunc, constants: tuple[int, ...]
) -> None:
    square = np.random.default_rng(1).standard_normal((2, 3, 3)).astype("float32")
    row = np.array([1, 2, 3], "float32")
    model, feeds = one_node(op, [square, row], constants, opset=6, broadcast=1, axis=1)
    (got,) = computed(model, feeds)
    np.testing.assert_allclose(got, function(square, row[:, None]), rtol=1e-6)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_the_nearest_elements_as_tensorflow_counts_them(rounding: str) -> None:
    mode = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": rounding}
    for scales in ([1, 1, 2, 3], [1, 1, 2.5, 0.7]):
        inputs = [X, np.zeros(0, "float32"), np.array(scales, "float32")]
        model, feeds = one_node("Resize", inputs, (1, 2), opset=11, mode="nearest", **mode)
        (wanted,) = run_onnxruntime(model, feeds, rewrites=False).values()
        np.testing.assert_array_equal(computed(model, feeds)[0], wanted)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Affine", {"alpha": 0.5, "beta": 2.0}),
        ("Crop", {"border": [1, 2, 0, 1]}),
        ("Crop", {"border": [1, 2, 0, 0], "scale": [2, 1]}),
        ("ImageScaler", {"scale": 0.5, "bias": [1.0, -2.0]}),
        ("MeanVarianceNormalization", {"across_channels": 1, "normalize_variance": 0}),
        ("MeanVarianceNormalization", {"across_channels": 0, "normalize_variance": 0}),
        ("ParametricSoftplus", {"alpha": 0.5, "beta": 2.0}),
        ("ScaledTanh", {"alpha": 0.5, "beta": 2.0}),
    ],
)
@pytest.mark.parametrize("opset", [6, 8])
def test_operators_that_onnx_has_removed(op: str, attributes: dict[str, Any], opset: int) -> None:
    model, feeds = one_node(op, [X], opset=opset, **attributes)
    (wanted,) = theirs(model, feeds)
    np.testing.assert_allclose(computed(model, feeds)[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "others", "attributes", "wanted"),
    [
        ("Cast", [], {"to": "INT32"}, X.astype("int32")),
        ("Concat", [X], {}, np.concatenate([X, X], 1)),
        ("Pad", [], {"paddings": [0, 0, 0, 1, 0, 0, 0, 0]}, np.pad(X, [(0, 0)] * 3 + [(1, 0)])),
        ("Reshape", [], {"shape": [0, -1, 6]}, X.reshape(1, -1, 6)),
        ("Tile", [np.array(3), np.array(1)], {}, np.tile(X, (1, 3, 1, 1))),
    ],
)  # fmt: skip
def test_forms_of_the_first_opsets(
    op: str, others: list[np.ndarray], attributes: dict[str, Any], wanted: np.ndarray
) -> None:
    constants = range(1, 1 + len(others))
    model, feeds = one_node(op, [X, *others], constants, opset=1, **attributes)
    np.testing.assert_array_equal(computed(model, feeds)[0], wanted)


def test_sizes_of_parts_as_an_input_of_the_first_opset() -> None:
    model, feeds = one_node("Split", [X, np.array([3, 1])], (1,), outputs=2, opset=1, axis=2)
    for got, wanted in zip(computed(model, feeds), np.split(X, [3], 2), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_batch_normalisation_with_statistics_of_each_element() -> None:
    rng = np.random.default_rng(4)
    scale, bias, mean = rng.standard_normal((3, *X.shape[1:])).astype("float32")
    variance = rng.uniform(0.5, 2, X.shape[1:]).astype("float32")
    given = [X, scale, bias, mean, variance]
    model, feeds = one_node("BatchNormalization", given, (1, 2, 3, 4), opset=7, spatial=0)
    (wanted,) = theirs(model, feeds)
    np.testing.assert_allclose(computed(model, feeds)[0], wanted, rtol=1e-5, atol=1e-6)
