"""Tests that convolutions of sequences and volumes become convolutions of images.

Also tests that a convolution adds the zeros of a `Pad` operator itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_interop
from tests.numerics.onnx_oracle import assert_computed_alike
from tvm_interop.frontend import load_model
from tvm_interop.lowering.names import bindings_of
from tvm_interop.transform import LowerToUnits


class Net:
    """Builds an ONNX model. Its input is `x`, and its output is the output of the last node."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(1)

    def constant(self, values: Any) -> str:
        """Add a constant and return its name."""
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def random(self, *shape: int) -> str:
        """Add a constant of random numbers and return its name."""
        return self.constant(self._rng.standard_normal(shape).astype("float32"))

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return its name, which is also the name of its output."""
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def pad(self, data: str, pads: list[int], value: float | None = None, **attributes: Any) -> str:
        """Add a `Pad` of `data` and return the name of its output."""
        values = [] if value is None else [self.constant(np.array(value, "float32"))]
        return self.add("Pad", data, self.constant(np.array(pads)), *values, **attributes)

    def model(self) -> onnx.ModelProto:
        """Return the model."""
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        name = self.nodes[-1].output[0]
        y = helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * len(self.shape))
        graph = helper.make_graph(self.nodes, "net", [x], [y], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def kernels(model: onnx.ModelProto) -> list[str]:
    """Return the names of the kernels of `model`, in order, after lowering."""
    main = LowerToUnits()(load_model(model))["main"]
    values = [b.value for b in bindings_of(main)]
    return [v.args[0].name_hint for v in values if str(v.op.name) == "relax.call_tir"]


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 2], "strides": [2]},
        {"dilations": [3], "pads": [6, 0]},
        {"group": 2},
    ],
)
def test_a_convolution_of_sequences(attributes: dict[str, Any]) -> None:
    net = Net(2, 6, 19)
    groups = attributes.get("group", 1)
    net.add("Conv", "x", net.random(8, 6 // groups, 3), net.random(8), **attributes)
    assert kernels(net.model())[0].startswith("fused_conv2d")
    assert_computed_alike(net.model())


def test_weights_that_are_computed() -> None:
    net = Net(1, 4, 9)
    net.add("Conv", "x", net.add("Slice", "x", *(net.constant(np.array([i])) for i in (0, 3, 2))))
    assert not any("conv1d" in name for name in kernels(net.model()))
    assert_computed_alike(net.model())


def test_what_stands_between_two_convolutions_stays_with_the_first() -> None:
    """Between the two convolutions are a gate as in WaveNet, a sum and a concatenation."""
    net = Net(1, 8, 21)
    first = net.add("Conv", "x", net.random(8, 8, 1), net.random(8))
    gate = net.add("Sigmoid", net.add("Conv", first, net.random(8, 8, 3), pads=[1, 1]))
    value = net.add("Tanh", net.add("Conv", first, net.random(8, 8, 3), pads=[1, 1]))
    gated = net.add("Mul", gate, value)
    skip = net.add("Add", net.add("Add", gated, "x"), net.random(8, 21))
    both = net.add("Concat", skip, "x", axis=1)
    net.add("Relu", net.add("Conv", both, net.random(4, 16, 1)))
    found = kernels(net.model())
    assert not any("conv1d" in name for name in found)
    assert sum("conv2d" in name for name in found) == 4
    assert sum(name.startswith(("sigmoid", "tir_sigmoid", "tanh")) for name in found) == 0
    assert_computed_alike(net.model())


def test_pools_of_sequences() -> None:
    net = Net(2, 4, 17)
    pooled = net.add("MaxPool", "x", kernel_shape=[3], strides=[2], pads=[1, 1])
    net.add("AveragePool", pooled, kernel_shape=[2], pads=[1, 0])
    assert_computed_alike(net.model())


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        ((3, 3, 3), {"pads": [1, 1, 1, 1, 1, 1]}),
        ((1, 3, 2), {}),
        ((3, 1, 1), {"pads": [2, 0, 0, 1, 0, 0], "strides": [2, 1, 1]}),
        ((2, 3, 3), {"dilations": [2, 1, 1], "strides": [1, 2, 3]}),
        ((1, 1, 1), {"strides": [2, 2, 2]}),
        ((1, 2, 2), {"group": 2}),
    ],
)
def test_a_convolution_of_volumes(kernel: tuple[int, ...], attributes: dict[str, Any]) -> None:
    net = Net(2, 6, 5, 7, 6)
    groups = attributes.get("group", 1)
    net.add("Conv", "x", net.random(8, 6 // groups, *kernel), net.random(8), **attributes)
    assert any("conv2d" in name for name in kernels(net.model()))
    assert_computed_alike(net.model())


def test_a_convolution_of_volumes_in_groups_stays() -> None:
    net = Net(1, 4, 5, 6, 7)
    net.add("Conv", "x", net.random(4, 1, 3, 3, 3), group=4, pads=[1] * 6)
    assert any("conv3d" in name for name in kernels(net.model()))
    assert_computed_alike(net.model())


def test_what_stands_between_two_convolutions_of_volumes() -> None:
    """Between the convolutions are sums with constants and with the input, and a concatenation."""
    net = Net(2, 4, 3, 6, 5)
    first = net.add("Conv", "x", net.random(4, 4, 3, 3, 3), pads=[1] * 6)
    scaled = net.add("Mul", net.add("Relu", first), net.random(4, 1, 1, 1))
    placed = net.add("Add", scaled, net.random(3, 6, 5))  # This constant varies along the depth.
    second = net.add("Conv", placed, net.random(4, 4, 1, 3, 3), pads=[0, 1, 1] * 2)
    both = net.add("Concat", net.add("Add", second, "x"), "x", axis=1)
    net.add("Sigmoid", net.add("Conv", both, net.random(3, 8, 1, 1, 1)))
    assert not any("conv3d" in name for name in kernels(net.model()))
    assert_computed_alike(net.model())


@pytest.mark.parametrize(
    ("shape", "pads", "kernel"),
    [
        ((1, 3, 9, 7), [0, 0, 0, 1, 0, 0, 1, 2], (3, 3)),  # The padding of TensorFlow's `SAME`.
        ((1, 3, 11), [0, 0, 2, 0, 0, 0], (3,)),  # The padding of a causal convolution.
        ((1, 3, 4, 5, 6), [0, 0, 1, 0, 1, 0, 0, 0, 1, 1], (2, 2, 2)),
    ],
)
def test_zeros_become_padding(
    shape: tuple[int, ...], pads: list[int], kernel: tuple[int, ...]
) -> None:
    net = Net(*shape)
    net.add("Conv", net.pad("x", pads), net.random(4, 3, *kernel))
    assert not any("pad" in name for name in kernels(net.model()))
    assert_computed_alike(net.model())


@pytest.mark.parametrize(
    ("pads", "value", "mode"),
    [
        ([0, 0, 0, 1, 0, 0, 1, 2], 0.5, "constant"),  # The padded value is not 0.
        ([0, 1, 0, 1, 0, 0, 1, 2], None, "constant"),  # The padding adds a channel.
        # Some windows would contain only zeros.
        ([0, 0, 3, 0, 0, 0, 0, 0], None, "constant"),
        ([0, 0, 0, -1, 0, 0, 0, -1], None, "constant"),  # The padding removes elements.
        ([0, 0, 1, 1, 0, 0, 1, 1], None, "reflect"),
    ],
)
def test_other_paddings_stay(pads: list[int], value: float | None, mode: str) -> None:
    net = Net(1, 3, 9, 7)
    net.add("Conv", net.pad("x", pads, value, mode=mode), net.random(4, 3 + pads[1], 3, 3))
    assert len(kernels(net.model())) == 2 or "pad" in kernels(net.model())[0]
    assert_computed_alike(net.model())


def test_a_padding_that_others_read_too_is_computed() -> None:
    net = Net(1, 3, 9, 7)
    padded = net.pad("x", [0, 0, 1, 1, 0, 0, 1, 1])
    conv = net.add("Conv", padded, net.random(3, 3, 1, 1))
    same = net.add("Conv", padded, net.random(3, 3, 3, 3))
    net.add("Add", conv, net.add("Add", padded, net.add("ReduceMean", same)))
    assert any("pad" in name for name in kernels(net.model()))
    assert_computed_alike(net.model())


def test_a_sum_that_begins_with_zero() -> None:
    net = Net(1, 3, 6, 6)
    conv = net.add("Conv", "x", net.random(3, 3, 1, 1))
    both = net.add("Add", conv, net.add("Tanh", "x"))
    net.add("Relu", net.add("Add", both, net.constant(np.float32(0))))
    module = tvm_interop.GraphModule(
        tvm_interop.compile(net.model(), scheduler="sequential", latency_db=":memory:")
    )
    module.run(x=np.ones((1, 3, 6, 6), "float32"))
    assert (module.get_output(0).numpy() >= 0).all()
    assert_computed_alike(net.model())
