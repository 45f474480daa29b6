"""Tests that 1x1 convolutions are computed before images are enlarged, and after poolings."""

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
from tvm_interop.lowering.convs_of_small_images import ConvsOfSmallImages
from tvm_interop.lowering.fold_affine import FoldAffine
from tvm_interop.lowering.names import bindings_of

Make = Callable[[], onnx.ModelProto]


def calls(model: onnx.ModelProto) -> list[tuple[str, tuple[int, ...]]]:
    """The convolutions and resizes that remain, with the shapes of their results."""
    mod = load_model(model)
    clean = relax.transform.DeadCodeElimination()
    for each in (FoldAffine(), clean, ConvsOfSmallImages(), clean):
        mod = each(mod)
    names = {tvm.ir.Op.get("relax.nn.conv2d"): "conv", tvm.ir.Op.get("relax.image.resize2d"): "up"}
    found = []
    for binding in bindings_of(mod["main"]):
        value = getattr(binding, "value", None)
        if isinstance(value, relax.Call) and value.op in names:
            found.append((names[value.op], tuple(map(int, value.ty.shape))))
    return found


def enlarged(
    net: nets.Net, x: str, out: str, factor: float = 2.0, mode: str = "linear",
    coordinates: str = "half_pixel",
) -> str:  # fmt: skip
    scales = net.constant(np.array([1, 1, factor, factor], np.float32))
    nearest = {"nearest_mode": "floor"} if mode == "nearest" else {}
    return net.op(
        "Resize", [x, "", scales], out, mode=mode,
        coordinate_transformation_mode=coordinates, **nearest,
    )  # fmt: skip


def decoder() -> onnx.ModelProto:
    """The head of SegFormer: four images of one size, of which three were enlarged."""
    net = nets.Net()
    parts = []
    for i in range(4):
        size = 16 >> i
        x = net.op("Relu", [net.input(f"x{i}", [2, 24, size, size])], f"r{i}")
        parts.append(enlarged(net, x, f"up{i}", float(2**i)))
    joined = net.op("Concat", parts, "joined", axis=1)
    conv = net.op("Conv", [joined, net.weight(20, 96, 1, 1)], "conv")
    given = [net.positive(20), net.weight(20), net.weight(20), net.positive(20)]
    return net.model(net.op("Relu", [net.op("BatchNormalization", [conv, *given], "norm")], "y"))


def neck(mode: str, coordinates: str) -> Make:
    """The neck of a YOLO network: an enlarged image beside two others."""

    def make() -> onnx.ModelProto:
        net = nets.Net()
        small = net.input("small", [1, 32, 5, 7])
        others = [net.op("Tanh", [net.input(n, [1, 8, 10, 14])], n + "t") for n in ("a", "b")]
        up = enlarged(net, small, "up", 2.0, mode, coordinates)
        joined = net.op("Concat", [others[0], up, others[1]], "joined", axis=1)
        conv = net.op("Conv", [joined, net.weight(16, 48, 1, 1), net.weight(16)], "conv")
        return net.model(net.op("Sigmoid", [conv], "y"))

    return make


def alone() -> onnx.ModelProto:
    net = nets.Net()
    up = enlarged(net, net.input("x", [2, 16, 4, 6]), "up", 3.0)
    return net.model(net.op("Conv", [up, net.weight(5, 16, 1, 1), net.weight(5)], "y"))


def transition(bias: bool = True, **attrs: object) -> onnx.ModelProto:
    """A transition of DenseNet: a norm, a ReLU, a convolution and a pooling."""
    net = nets.Net()
    x = net.op("Relu", [net.input("x", [2, 24, 9, 12])], "r")
    weights = [net.weight(16, 24, 1, 1), *([net.weight(16)] if bias else [])]
    conv = net.op("Conv", [x, *weights], "conv")
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2], **attrs}
    return net.model(net.op("Relu", [net.op("AveragePool", [conv], "pool", **attrs)], "y"))


CHANGED: dict[str, tuple[Make, list[tuple[int, ...]]]] = {
    "decoder": (decoder, [(2, 20, n, n) for n in (2, 4, 8, 16)]),
    "nearest": (neck("nearest", "asymmetric"), [(1, 16, 5, 7), (1, 16, 10, 14)]),
    "linear": (neck("linear", "pytorch_half_pixel"), [(1, 16, 5, 7), (1, 16, 10, 14)]),
    "cubic": (neck("cubic", "half_pixel"), [(1, 16, 5, 7), (1, 16, 10, 14)]),
    "transition": (transition, [(2, 16, 4, 6)]),
    "transition without a bias": (lambda: transition(bias=False), [(2, 16, 4, 6)]),
    "overlapping windows": (lambda: transition(kernel_shape=[3, 2]), [(2, 16, 4, 6)]),
    "alone": (alone, [(2, 5, 4, 6)]),
}


def assert_right(model: onnx.ModelProto) -> None:
    rng = np.random.default_rng(0)
    inputs = {
        value.name: rng.standard_normal(
            tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        )
        for value in model.graph.input
    }
    given = {name: array.astype(np.float32) for name, array in inputs.items()}
    for got, (name, want) in zip(
        computed(model, given), run_onnxruntime(model, given).items(), strict=True
    ):
        scale = float(np.abs(want).max())
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * scale, err_msg=name)


@pytest.mark.parametrize("case", CHANGED)
def test_convolutions_of_small_images(case: str) -> None:
    make, convs = CHANGED[case]
    found = calls(make())
    assert sorted(shape for kind, shape in found if kind == "conv") == sorted(convs)
    assert_right(make())


def test_sums_of_numbers_beside_a_pooling_stay() -> None:
    net = nets.Net()
    x = net.input("x", [1, 16, 4, 4])
    pooled = net.op("AveragePool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
    numbers = net.op("ReduceMax", [x], "max", axes=[0, 1, 2, 3], keepdims=0)
    row = net.op("ReduceMax", [x], "row", axes=[0, 1, 2], keepdims=0)
    two = net.constant(np.array(2, np.float32))
    sums = [net.op("Add", [each, two], f"s{i}") for i, each in enumerate((numbers, row))]
    model = net.model(pooled, *sums)
    assert calls(model) == []
    assert_right(model)


def test_a_resize_to_the_same_size_is_left_out() -> None:
    ups = [shape for kind, shape in calls(decoder()) if kind == "up"]
    assert len(ups) == 3


def kept(what: str) -> onnx.ModelProto:
    net = nets.Net()
    x = net.input("x", [1, 8 if what == "few channels" else 32, 6, 6])
    channels = 8 if what == "few channels" else 32
    up = enlarged(net, x, "up", 0.5 if what == "smaller" else 2.0)
    outputs = 40 if what == "more outputs" else 4
    window = 3 if what == "3x3" else 1
    stride = 2 if what == "strides" else 1
    padding = 1 if what == "padding" else 0
    group = 2 if what == "groups" else 1
    weights = net.weight(outputs, channels // group, window, window)
    y = net.op(
        "Conv", [up, weights], "y", strides=[stride] * 2, pads=[padding] * 4, group=group
    )  # fmt: skip
    if what == "read twice":
        return net.model(y, net.op("Relu", [up], "z"))
    if what == "an output":
        return net.model(y, up)
    return net.model(y)


@pytest.mark.parametrize(
    "what",
    [
        "few channels", "smaller", "more outputs", "3x3", "strides", "padding", "groups",
        "read twice", "an output",
    ],
)  # fmt: skip
def test_other_convolutions_stay(what: str) -> None:
    model = kept(what)
    assert [kind for kind, _ in calls(model)] == ["up", "conv"]
    assert_right(model)


@pytest.mark.parametrize(
    "attrs",
    [
        {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]},
        {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3], "count_include_pad": 1},
        {"ceil_mode": 1},
        {"strides": [1, 1], "kernel_shape": [1, 1]},
    ],
)
def test_poolings_of_uneven_windows_stay(attrs: dict[str, object]) -> None:
    model = transition(**attrs)
    assert [shape for kind, shape in calls(model) if kind == "conv"] == [(2, 16, 9, 12)]
    assert_right(model)
