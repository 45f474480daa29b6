"""Tests how operators are grouped into schedule units. Each rule of grouping is tested on its own
small graph."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests import nets
from tvm_interop import InputError, UnsupportedModelError, operator_graph
from tvm_interop.models.units import schedule_units


def test_units_of_kernels() -> None:
    model = nets.inception_like()
    graph = operator_graph(model, unit="kernel")
    assert "a1/Conv" in graph.names
    assert "a1_relu/Relu" not in graph.names
    # A concatenation in place needs no kernel.
    assert not any("Concat" in name for name in graph.names)
    assert any("Concat" in name for name in operator_graph(model).names)
    with pytest.raises(InputError, match="no unit `stage`"):
        operator_graph(model, unit="stage")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModelError, match="`int`"):
        operator_graph(3)


def units_of(net: nets.Net, *outputs: str) -> dict[str, tuple[str, ...]]:
    units = schedule_units(net.model(*outputs))
    return dict(zip(units.names, units.members, strict=True))


def test_rule_of_relu() -> None:
    """A ReLU belongs to the convolution before it.

    If another operator also reads the result of that convolution, the ReLU belongs to the
    convolution after it.
    """
    net = nets.Net()
    x = net.input("x", [1, 4, 5, 5])
    net.conv(x, "a", (4, 4), 1)
    net.op("Relu", ["a"], "a_relu")
    net.conv("a_relu", "b", (4, 4), 1)
    net.op("Relu", ["b"], "b_relu")
    net.conv("b_relu", "c", (4, 4), 1)
    net.op("Add", ["b", "c"], "sum")
    net.op("Relu", ["sum"], "sum_relu")
    net.conv("sum_relu", "d", (4, 4), 1)
    assert units_of(net, "d") == {
        "a/Conv": ("a/Conv", "a_relu/Relu"),
        "b/Conv": ("b/Conv",),
        "c/Conv": ("b_relu/Relu", "c/Conv"),
        "sum/Add": ("sum/Add",),
        "sum_relu/Relu": ("sum_relu/Relu",),
        "d/Conv": ("d/Conv",),
    }


def test_rule_of_separable_convolutions_and_sums() -> None:
    net = nets.Net()
    x = net.input("x", [1, 4, 5, 5])
    net.conv(x, "a", (4, 4), 1)
    net.conv(x, "b", (4, 4), 1)
    net.op("Add", ["a", "b"], "sum")
    net.op("Relu", ["sum"], "relu")
    net.conv("relu", "depth", (4, 4), 3, group=4)
    net.conv("depth", "point", (4, 4), 1)
    net.op("Add", ["a", "point"], "term")
    net.op("Concat", ["term", "b", "b"], "cat", axis=1)
    model = net.model("cat")
    units = schedule_units(model)
    assert dict(zip(units.names, units.members, strict=True)) == {
        "a/Conv": ("a/Conv",),
        "b/Conv": ("b/Conv",),
        "point/Conv": ("sum/Add", "relu/Relu", "depth/Conv", "point/Conv"),
        "cat/Concat": ("term/Add", "cat/Concat"),
    }
    a, b, point, cat = range(4)
    assert sorted(units.edges) == [
        (a, point),
        (a, cat),
        (b, point),
        (b, cat),
        (b, cat),
        (point, cat),
    ]


def test_rule_of_everything_else() -> None:
    """A model of separate biases and activations, normalised sums, and a layer after a pooling."""
    net = nets.Net()
    x = net.input("x", [1, 6, 8])
    net.op("MatMul", [x, net.weight(8, 8)], "up")
    net.op("Add", [net.weight(8), "up"], "biased")
    net.op("Sigmoid", ["biased"], "gate")
    net.op("Mul", ["biased", "gate"], "swish")
    net.op("Add", ["swish", x], "residual")
    net.op("LayerNormalization", ["residual", net.positive(8), net.weight(8)], "norm", axis=-1)
    net.op("Transpose", ["norm"], "turned", perm=[0, 2, 1])
    net.op("Cos", [x], "cos")
    net.op("Unsqueeze", ["turned", net.constant(np.array([3], np.int64))], "image")
    net.op("GlobalAveragePool", ["image"], "pooled")
    net.op("Flatten", ["pooled"], "flat")
    net.op("Gemm", ["flat", net.weight(8, 3)], "y")
    assert units_of(net, "y", "cos") == {
        "up/MatMul": ("up/MatMul", "biased/Add", "gate/Sigmoid", "swish/Mul"),
        "norm/LayerNormalization": (
            "residual/Add", "norm/LayerNormalization", "turned/Transpose",
        ),
        "cos/Cos": ("cos/Cos",),
        "pooled/GlobalAveragePool": ("pooled/GlobalAveragePool", "y/Gemm"),
    }  # fmt: skip


def test_an_output_of_the_model_is_read() -> None:
    """An output of the model cannot be an inner tensor of a unit."""
    net = nets.Net()
    x = net.input("x", [1, 4, 5, 5])
    net.conv(x, "a", (4, 4), 1)
    net.op("Relu", ["a"], "relu")
    net.op("MaxPool", ["relu"], "y", kernel_shape=[2, 2])
    assert len(units_of(net, "y")) == 2
    assert len(units_of(net, "y", "a")) == 3


def test_control_flow_is_no_unit() -> None:
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["out"], value_float=1.0)],
        "branch",
        [],
        [helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, [])],
    )
    net = nets.Net()
    net.input("c", [], onnx.TensorProto.BOOL)
    net.op("If", ["c"], "y", then_branch=branch, else_branch=branch)
    with pytest.raises(UnsupportedModelError, match=r"`y/If`.*control flow"):
        schedule_units(net.model("y", check=False))
