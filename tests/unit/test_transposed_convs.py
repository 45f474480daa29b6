"""Tests that transposed convolutions become convolutions, for every stride and padding."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.numerics.onnx_oracle import assert_computed_alike
from tvm_interop.frontend import load_model
from tvm_interop.lowering.names import bindings_of
from tvm_interop.lowering.transposed_convs import TransposedConvs


def network(
    size: tuple[int, ...], kernel: tuple[int, ...], groups: int = 1, **attributes: object
) -> onnx.ModelProto:
    """A transposed convolution from 6 to 4 channels with a bias."""
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((6, 4 // groups, *kernel)).astype("float32")
    bias = rng.standard_normal(4).astype("float32")
    node = helper.make_node(
        "ConvTranspose", ["x", "w", "b"], ["y"], name="up", group=groups, **attributes
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6, *size])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * (2 + len(size)))
    constants = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")]
    graph = helper.make_graph([node], "net", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def is_replaced(model: onnx.ModelProto) -> bool:
    """Whether `TransposedConvs` leaves no transposed convolution."""
    main = TransposedConvs()(load_model(model))["main"]
    return not any("transpose" in str(getattr(b.value, "op", "")) for b in bindings_of(main))


@pytest.mark.parametrize(
    ("size", "kernel", "attributes"),
    [
        ((5, 7), (2, 2), {"strides": [2, 2]}),  # as in U-Nets
        ((5, 7), (4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),  # as in generators
        ((5, 7), (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ((4, 6), (5, 3), {"strides": [3, 1], "pads": [2, 0, 1, 1]}),
        # With stride 1, a transposed convolution is a convolution with a mirrored kernel.
        ((4, 4), (3, 3), {"pads": [1, 1, 1, 1]}),
        # Kernels smaller than the stride leave zeros between their results.
        ((6, 5), (2, 3), {"strides": [3, 4]}),
        ((9,), (4,), {"strides": [2], "pads": [1, 1]}),
        ((3, 4, 2), (2, 3, 2), {"strides": [2, 2, 1]}),
    ],
)
def test_numbers(
    size: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, object]
) -> None:
    model = network(size, kernel, **attributes)
    assert is_replaced(model)
    assert_computed_alike(model)


@pytest.mark.parametrize(
    "attributes",
    [
        {"groups": 2, "strides": [2, 2]},
        {"dilations": [2, 2], "strides": [2, 2]},
        {"strides": [2, 2], "pads": [3, 3, 3, 3]},  # Some inputs at the border have no effect.
    ],
    ids=["groups", "dilated", "cropped"],
)
def test_others_stay(attributes: dict[str, object]) -> None:
    model = network((5, 7), (3, 3), **attributes)
    assert not is_replaced(model)
    assert_computed_alike(model)
