"""Compares sums and means of quantised tensors with onnxruntime. The results are quantised again,
and may differ by one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tvm_interop
from tests.numerics.test_quantised import (
    STEP,
    QuantisedNet,
    check,
    image,
    needs_int8,
    run_both,
)
from tvm_interop.compiler.cpu import INT8_FEATURE
from tvm_interop.machine.cpu_features import host_features
from tvm_interop.machine.kernel_libraries import why_missing


def residual(
    net: QuantisedNet,
    types: tuple[str, str, str],
    activation: str | None,
    channels: int = 24,
    both: bool = False,
    per_channel: bool = True,
) -> str:
    """The sum of a convolution's result and the convolution's image, or of two results.

    `types` has the types of the image, of the convolution's result and of the sum.
    """
    zeros = [
        {"uint8": zero, "int8": zero - 128}[t]
        for t, zero in zip(types, (120, 131, 90), strict=True)
    ]
    steps = zip((1 / 127, 0.013, STEP), zeros, types, strict=True)
    of_image, of_conv, of_sum = steps
    axis = 0 if per_channel else None
    x = net.rounded(net.input("x", (1, channels, 9, 7)), *of_image)
    weight = net.integers(channels, channels, 3, 3, axis=axis)
    window = {"kernel_shape": [3, 3], "pads": [1] * 4}
    y = net.op("Conv", [x, weight, net.bias(channels)], "first", **window)
    y = net.rounded(y, *of_conv)
    if both:
        weight = net.integers(channels, channels, 1, 1, axis=axis)
        x = net.op("Conv", [x, weight], "second", kernel_shape=[1, 1])
        x = net.rounded(x, 0.011, of_image[1], of_image[2])
    y = net.op("Add", [x, y], "sum")
    if activation is not None:
        bounds = [net.constant(np.float32(bound)) for bound in (-0.3, 1.1)]
        y = net.op(activation, [y, *(bounds if activation == "Clip" else [])], "activation")
    return net.rounded(y, *of_sum)


@needs_int8
@pytest.mark.parametrize("activation", [None, "Relu", "Clip"])
@pytest.mark.parametrize(
    "types",
    [
        ("uint8", "uint8", "uint8"),
        ("int8", "int8", "int8"),
        ("int8", "uint8", "uint8"),
        ("uint8", "int8", "uint8"),
        ("uint8", "uint8", "int8"),
    ],
    ids="-".join,
)
def test_sums_are_part_of_the_convolution(
    types: tuple[str, str, str], activation: str | None
) -> None:
    net = QuantisedNet()
    model = net.model(residual(net, types, activation))
    artifact, got, wanted = run_both(model, x=image(1, 24, 9, 7))
    assert artifact.manifest.quantised.int8 == {"conv2d": 1, "add": 1}
    assert artifact.manifest.quantised.floats == {}
    check(got, wanted)


@needs_int8
@pytest.mark.parametrize("channels", [7, 64])
@pytest.mark.parametrize("per_channel", [True, False])
def test_one_of_two_convolutions_adds_the_other(channels: int, per_channel: bool) -> None:
    net = QuantisedNet()
    types = ("uint8", "uint8", "uint8")
    y = residual(net, types, "Relu", channels, both=True, per_channel=per_channel)
    artifact, got, wanted = run_both(net.model(y), x=image(1, channels, 9, 7))
    assert artifact.manifest.quantised.int8 == {"conv2d": 2, "add": 1}
    assert artifact.manifest.quantised.floats == {}
    check(got, wanted)


@needs_int8
def test_products_take_a_sum_too() -> None:
    net = QuantisedNet()
    x = net.rounded(net.input("x", (5, 24)), 1 / 127, 100)
    y = net.op("MatMul", [x, net.integers(24, 24, axis=1)], "product")
    y = net.rounded(net.op("Add", [y, net.bias(24)], "biased"), 0.01)
    artifact, got, wanted = run_both(
        net.model(net.rounded(net.op("Add", [y, x], "sum"), 0.017, 140)), x=image(5, 24)
    )
    assert artifact.manifest.quantised.int8 == {"matmul": 1, "add": 1}
    check(got, wanted, 0.017)


@needs_int8
def test_what_is_read_elsewhere_is_rounded_for_it() -> None:
    """The result of the convolution is also an output, so the sum stays a separate operator."""
    net = QuantisedNet()
    x = net.rounded(net.input("x", (1, 8, 9, 9)), 1 / 127)
    y = net.op("Conv", [x, net.integers(8, 8, 1, 1)], "conv", kernel_shape=[1, 1])
    y = net.rounded(y, 0.013)
    total = net.rounded(net.op("Add", [x, y], "sum"))
    model = net.model(total, y)
    artifact, got, wanted = run_both(model, x=image(1, 8, 9, 9))
    assert artifact.manifest.quantised.int8 == {"conv2d": 1}
    assert artifact.manifest.quantised.floats == {"add": ("sum/Add",)}
    check(got, wanted)


def mean(net: QuantisedNet, x: str, kind: str, **attrs: Any) -> str:
    if kind == "GlobalAveragePool":
        return net.op(kind, [x], "mean")
    return net.op("AveragePool", [x], "mean", **attrs)


WINDOWS: dict[str, dict[str, Any]] = {
    "whole": {},
    "plain": {"kernel_shape": [3, 2], "strides": [2, 2]},
    "padded": {"kernel_shape": [3, 3], "pads": [1] * 4},
    "padding counts": {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1},
    "rounded up": {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
}


@needs_int8
@pytest.mark.parametrize("channels", [7, 48])
@pytest.mark.parametrize(
    ("dtype", "zero"), [("uint8", 0), ("uint8", 121), ("int8", 0), ("int8", -7)]
)
@pytest.mark.parametrize("name", WINDOWS)
def test_means(name: str, dtype: str, zero: int, channels: int) -> None:
    net = QuantisedNet()
    x = net.rounded(net.input("x", (1, channels, 10, 8)), 1 / 97, zero, dtype)
    kind = "AveragePool" if WINDOWS[name] else "GlobalAveragePool"
    step = 0.0043 if kind == "AveragePool" else 0.00097
    y = net.rounded(mean(net, x, kind, **WINDOWS[name]), step, zero, dtype)
    artifact, got, wanted = run_both(net.model(y), x=image(1, channels, 10, 8))
    padding_is_no_integer = name == "padding counts" and zero != 0
    if padding_is_no_integer:
        assert artifact.manifest.quantised.int8 == {}
    else:
        assert sum(artifact.manifest.quantised.int8.values()) == 1
        assert artifact.manifest.quantised.floats == {}
    check(got, wanted, step)


@needs_int8
@pytest.mark.parametrize("rounded_as", ["uint8", "int8", None])
def test_means_that_are_rounded_later_or_never(rounded_as: str | None) -> None:
    """A mean that is flattened, and then rounded to the type `rounded_as`, or not rounded for None.

    The mean is computed in integers only if it is rounded to the type of its input, uint8.
    """
    net = QuantisedNet()
    x = net.rounded(net.input("x", (1, 20, 9, 9)), 1 / 127)
    y = net.op("Conv", [x, net.integers(20, 20, 3, 3)], "conv", kernel_shape=[3, 3])
    y = net.rounded(y, 0.013)
    y = net.op("Flatten", [net.op("GlobalAveragePool", [y], "mean")], "flat")
    if rounded_as is not None:
        y = net.rounded(y, 0.002, 100 if rounded_as == "uint8" else 5, rounded_as)
    artifact, got, wanted = run_both(net.model(y), x=image(1, 20, 9, 9))
    in_int8 = {"conv2d": 1} | ({"mean": 1} if rounded_as == "uint8" else {})
    assert artifact.manifest.quantised.int8 == in_int8
    if rounded_as is None:
        np.testing.assert_allclose(got, wanted, atol=0.013 / 20)
    else:
        check(got, wanted, 0.002, steps=2)


@needs_int8
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("kind", ["QLinearAveragePool", "QLinearGlobalAveragePool"])
def test_pools_of_integers_are_read(kind: str, channels_last: int) -> None:
    if kind == "QLinearAveragePool" and channels_last:
        pytest.skip("onnxruntime supports this operator only if channels come first")
    net = QuantisedNet()
    shape = (1, 9, 8, 16) if channels_last else (1, 16, 9, 8)
    step = [net.constant(np.float32(1 / 127)), net.constant(np.uint8(110))]
    to = [net.constant(np.float32(1 / 600)), net.constant(np.uint8(90))]
    words = net.op("QuantizeLinear", [net.input("x", shape), *step], "words")
    attrs: dict[str, Any] = {"channels_last": channels_last}
    if kind == "QLinearAveragePool":
        attrs |= {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 0, 1, 0]}
    y = net.op(kind, [words, *step, *to], "pool", domain="com.microsoft", **attrs)
    model = net.model(net.op("DequantizeLinear", [y, *to], "y"), check=False)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    made = (1, 16, 5, 6) if kind == "QLinearAveragePool" else (1, 16, 1, 1)
    made = (1, 1, 1, 16) if channels_last else made
    (output,) = model.graph.output
    output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, onnx.TensorProto.FLOAT, made))
    artifact, got, wanted = run_both(model, x=image(*shape))
    assert sum(artifact.manifest.quantised.int8.values()) == 1
    check(got, wanted, 1 / 600)


@needs_int8
@pytest.mark.parametrize("scheduler", ["greedy", "ios"])
def test_schedules_and_parts_give_the_same_bits(scheduler: str) -> None:
    """Each part of a convolution adds its part of `x`. Some parts begin at unaligned rows."""
    net = QuantisedNet()
    x = net.rounded(net.input("x", (1, 3, 66, 70)), 1 / 127)
    stem = {"kernel_shape": [7, 7], "strides": [2, 2], "pads": [3] * 4}
    x = net.op("Conv", [x, net.integers(64, 3, 7, 7)], "stem", **stem)
    x = net.rounded(net.op("Relu", [x], "relu"), 0.012, 0)
    y = net.op("Conv", [x, net.integers(64, 64, 3, 3)], "conv", kernel_shape=[3, 3], pads=[1] * 4)
    y = net.op("Add", [net.rounded(y, 0.012), x], "sum")
    y = net.rounded(net.op("Relu", [y], "relu_of_sum"), 0.015, 0)
    pooled = net.op("AveragePool", [y], "pool", kernel_shape=[3, 3], strides=[2, 2])
    model = net.model(net.rounded(pooled, 0.012, 0), net.op("GlobalAveragePool", [y], "mean"))
    results = []
    for options in ({"scheduler": "sequential", "streams": 1}, {"scheduler": scheduler}):
        artifact = tvm_interop.compile(model, keep_slower=True, **options)
        module = tvm_interop.GraphModule(artifact)
        module.run(x=image(1, 3, 66, 70))
        results.append([module.get_output(i).numpy() for i in (0, 1)])
    assert any("[1/2]" in op.name for op in artifact.plan.operators)
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


@needs_int8
@pytest.mark.parametrize("shape", [(5, 33), (2, 7, 24)])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("by_column", [True, False])
def test_dynamic_quantisation(by_column: bool, dtype: str, shape: tuple[int, ...]) -> None:
    """In a model that onnxruntime's quantiser wrote, the zero point is known only at run time."""
    net = QuantisedNet()
    words, step, zero = (f"x_{name}" for name in ("words", "step", "zero"))
    net._nodes.append(
        onnx.helper.make_node(
            "DynamicQuantizeLinear", [net.input("x", shape)], [words, step, zero], name="rounding"
        )
    )
    columns = (30,) if by_column else ()
    center = 128 if dtype == "uint8" else 0
    weight = (net.rng.integers(-60, 61, (shape[-1], 30)) + center).astype(dtype)
    zeros = (net.rng.integers(-3, 4, columns) + center).astype(dtype)
    steps = net.rng.uniform(0.001, 0.003, columns).astype(np.float32)
    y = net.op("MatMulInteger", [words, net.constant(weight), zero, net.constant(zeros)], "product")
    y = net.op("Cast", [y], "floats", to=onnx.TensorProto.FLOAT)
    y = net.op("Mul", [y, net.op("Mul", [step, net.constant(steps)], "steps")], "scaled")
    y = net.op("Add", [y, net.constant(net.rng.normal(size=30).astype(np.float32))], "biased")
    x = image(*shape) + np.float32(0.6)
    artifact, got, wanted = run_both(net.model(y), x=x)
    assert artifact.manifest.quantised.int8 == {"matmul": 1}
    assert "matmul" not in artifact.manifest.quantised.floats
    assert np.linalg.norm(got - wanted) < 1e-3 * np.linalg.norm(wanted)


_DYNAMIC_CONVS: list[tuple[dict[str, Any], tuple[int, ...], bool]] = [
    ({"pads": [1] * 4}, (16, 8, 3, 3), True),
    ({"pads": [1, 0, 2, 1], "strides": [2, 1]}, (16, 8, 3, 3), True),
    ({"auto_pad": "SAME_UPPER", "dilations": [2, 1]}, (16, 8, 2, 3), True),
    ({"auto_pad": "SAME_LOWER"}, (16, 8, 2, 2), True),
    ({"auto_pad": "VALID", "group": 4}, (16, 2, 3, 3), True),
    ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (16, 8, 3, 3), False),
]
"""Attributes, the shape of the weights, and whether the padding does not depend on the image's
size."""


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("attrs", "shape", "is_known"), _DYNAMIC_CONVS)
def test_dynamic_convolutions_subtract_the_zero_point_afterwards(
    attrs: dict[str, Any], shape: tuple[int, ...], is_known: bool, dtype: str
) -> None:
    net = QuantisedNet()
    words, step, zero = (f"x_{name}" for name in ("words", "step", "zero"))
    net._nodes.append(
        onnx.helper.make_node(
            "DynamicQuantizeLinear", [net.input("x", (1, 8, 9, 10))], [words, step, zero]
        )
    )
    center = 128 if dtype == "uint8" else 0
    weight = net.constant((net.rng.integers(-60, 61, shape) + center).astype(dtype))
    zeros = net.constant((net.rng.integers(-3, 4, shape[0]) + center).astype(dtype))
    model = net.model(net.op("ConvInteger", [words, weight, zero, zeros], "conv", **attrs))
    x = image(1, 8, 9, 10) + np.float32(0.6)
    # onnxruntime takes a single zero point for all weights, so ONNX's reference is the oracle.
    artifact = tvm_interop.compile(model)
    module = tvm_interop.GraphModule(artifact)
    module.run(x=x)
    if why_missing("onednn") is None and INT8_FEATURE in host_features():
        assert artifact.manifest.quantised.int8 == ({"conv2d": 1} if is_known else {})
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(module.get_output(0).numpy(), wanted)
