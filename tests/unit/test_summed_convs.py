"""Tests that convolutions of one image whose results are added become one convolution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed
from tvm_interop.frontend import load_model
from tvm_interop.lowering.common_subexpressions import CommonSubexpressions
from tvm_interop.lowering.fold_affine import FoldAffine
from tvm_interop.lowering.names import bindings_of
from tvm_interop.lowering.summed_convs import SummedConvs

Make = Callable[[], onnx.ModelProto]


def convolutions(model: onnx.ModelProto) -> int:
    """The number of convolutions that `SummedConvs` leaves."""
    mod = load_model(model)
    clean = relax.transform.DeadCodeElimination()
    for each in (CommonSubexpressions(), FoldAffine(), clean, SummedConvs(), clean):
        mod = each(mod)
    values = [getattr(binding, "value", None) for binding in bindings_of(mod["main"])]
    kind = tvm.ir.Op.get("relax.nn.conv2d")
    return sum(isinstance(value, relax.Call) and value.op == kind for value in values)


def norm(net: nets.Net, x: str, out: str, channels: int) -> str:
    given = [net.weight(channels), net.weight(channels), net.positive(channels)]
    return net.op("BatchNormalization", [x, net.positive(channels), *given], out)


def window(
    net: nets.Net, x: str, out: str, channels: tuple[int, int], size: tuple[int, int],
    pads: list[int], group: int = 1, strides: tuple[int, int] = (1, 1),
) -> str:  # fmt: skip
    weights = net.weight(channels[1], channels[0] // group, *size)
    return net.op("Conv", [x, weights], out, pads=pads, group=group, strides=list(strides))


def rep_block(group: int, batch: int = 2) -> onnx.ModelProto:
    """A block as in RepVGG: convolutions of 3x3 and 1x1, and the image itself, all normed."""
    net = nets.Net()
    x = net.input("x", [batch, 8, 9, 7])
    wide = norm(net, net.conv(x, "wide", (8, 8), 3, group), "wide_norm", 8)
    small = norm(net, net.conv(x, "small", (8, 8), 1, group), "small_norm", 8)
    total = net.op("Add", [wide, small], "sum")
    total = net.op("Add", [total, norm(net, x, "x_norm", 8)], "total")
    net.op("Relu", [total], "y")
    return net.model("y")


def of_sizes(sizes: list[tuple[tuple[int, int], list[int]]], stride: int = 1) -> Make:
    """The sum of convolutions of one image, whose windows have these sizes and paddings."""

    def make() -> onnx.ModelProto:
        net = nets.Net()
        x = net.input("x", [1, 6, 11, 10])
        parts = [
            window(net, x, f"c{i}", (6, 5), size, pads, strides=(stride, stride))
            for i, (size, pads) in enumerate(sizes)
        ]
        return net.model(net.op("Sum", parts, "y"))

    return make


def with_others() -> onnx.ModelProto:
    """The sum of convolutions of two images, with biases, and of one of the images itself."""
    net = nets.Net()
    x, z = net.input("x", [1, 6, 8, 8]), net.input("z", [1, 6, 8, 8])
    total = z
    for name, source, size in (("a", x, 1), ("b", z, 3), ("c", x, 3), ("d", z, 1), ("e", x, 3)):
        total = net.op("Add", [total, net.conv(source, name, (6, 6), size)], f"sum_{name}")
    return net.model(net.op("Relu", [total], "y"))


def read_twice() -> onnx.ModelProto:
    """Three convolutions.

    The result of the first is also an output; the results of the others are only added.
    """
    net = nets.Net()
    x = net.input("x", [1, 6, 8, 8])
    a, b, c = (net.conv(x, name, (6, 6), 3) for name in ("a", "b", "c"))
    total = net.op("Add", [net.op("Add", [a, b], "ab"), c], "y")
    return net.model(total, a)


def twice_itself() -> onnx.ModelProto:
    """The sum of a convolution with itself, and with another convolution."""
    net = nets.Net()
    x = net.input("x", [1, 6, 8, 8])
    a = net.conv(x, "a", (6, 6), 3)
    double = net.op("Add", [a, a], "aa")
    return net.model(net.op("Add", [double, net.conv(x, "b", (6, 6), 1)], "y"))


def different(kind: str) -> Make:
    """Two convolutions that differ in one respect. So they do not become one convolution."""

    def make() -> onnx.ModelProto:
        net = nets.Net()
        x = net.input("x", [1, 6, 8, 8])
        z = net.op("Tanh", [x], "z") if kind == "image" else x
        a = window(net, x, "a", (6, 6), (3, 3), [1] * 4)
        if kind == "groups":
            b = window(net, z, "b", (6, 6), (3, 3), [1] * 4, group=2)
        elif kind == "dilation":
            b = net.op("Conv", [z, net.weight(6, 6, 3, 3)], "b", pads=[2] * 4, dilations=[2, 2])
        elif kind == "place":  # The two windows lie on opposite sides of the pixel.
            a = window(net, x, "a2", (6, 6), (2, 2), [1, 0, 0, 1])
            b = window(net, z, "b", (6, 6), (2, 2), [0, 1, 1, 0])
        else:
            b = window(net, z, "b", (6, 6), (3, 3), [1] * 4)
        if kind == "operator":
            b = net.op("Relu", [b], "relu")
        return net.model(net.op("Add", [a, b], "y"))

    return make


CASES: dict[str, tuple[Make, int]] = {
    "block": (lambda: rep_block(1), 1),
    "block of channels alone": (lambda: rep_block(8), 1),
    "block of groups": (lambda: rep_block(2), 1),
    "equal sizes": (of_sizes([((3, 3), [1] * 4)] * 4), 1),
    "a window at the edge": (of_sizes([((2, 3), [0, 1, 1, 1]), ((1, 2), [0, 0, 0, 1])]), 1),
    "rows and columns": (of_sizes([((1, 3), [0, 1, 0, 1]), ((3, 1), [1, 0, 1, 0])]), 2),
    "strides": (of_sizes([((3, 3), [1] * 4), ((1, 1), [0] * 4), ((5, 5), [2] * 4)], 2), 1),
    "two images": (with_others, 2),
    "a result that is read twice": (read_twice, 2),
    "a sum with itself": (twice_itself, 2),
    **{
        f"different {kind}": (different(kind), 2)
        for kind in ("image", "groups", "dilation", "place", "operator")
    },
}


@pytest.mark.parametrize("case", CASES)
def test_convolutions_that_are_left(case: str) -> None:
    make, left = CASES[case]
    assert convolutions(make()) == left


@pytest.mark.parametrize("case", CASES)
def test_numbers(case: str) -> None:
    model = CASES[case][0]()
    given = nets.feeds(model)
    expected = run_onnxruntime(model, given, rewrites=False)
    for name, array in zip(expected, computed(model, given), strict=True):
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("number", [np.inf, np.nan, 3e38])
def test_weights_without_a_finite_sum_stay(number: float) -> None:
    """Convolutions stay separate if the sum of their weights is infinite, NaN or too large for a
    float."""
    net = nets.Net()
    x = net.input("x", [1, 2, 5, 5])
    wide = [net.constant(np.full((2, 2, 3, 3), each, np.float32)) for each in (number, 2e38)]
    parts = [net.op("Conv", [x, each], f"c{each}", pads=[1] * 4) for each in wide]
    assert convolutions(net.model(net.op("Add", parts, "y"))) == 2
