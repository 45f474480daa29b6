"""Tests models of float16: they add up in float32, and use the tensor cores of GPUs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import tvm_ffi
from onnx import TensorProto
from tvm import s_tir

from tests import nets
from tests.nets import Net, in_float16
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed, one_node
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.models import light

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


def for_cuda(model: onnx.ModelProto) -> Compilation:
    return Compilation(model, CompileOptions("cuda", archs=["sm_90"]))


TERMS = 4096
"""The tests add up this many ones. In float16 the sum would stop at 2048."""


def product() -> onnx.ModelProto:
    net = Net()
    x = net.input("x", [1, TERMS], TensorProto.FLOAT16)
    net.op("MatMul", [x, net.constant(np.ones((TERMS, 8), np.float16))], "y")
    return net.model("y")


def convolution(rank: int) -> onnx.ModelProto:
    net = Net()
    x = net.input("x", [1, TERMS, *[1] * rank], TensorProto.FLOAT16)
    weight = net.constant(np.ones((8, TERMS, *[1] * rank), np.float16))
    net.op("Conv", [x, weight], "y")
    return net.model("y")


def transposed(rank: int) -> onnx.ModelProto:
    net = Net()
    x = net.input("x", [1, 2 * TERMS, *[2] * rank], TensorProto.FLOAT16)
    weight = net.constant(np.ones((2 * TERMS, 3, *[1] * rank), np.float16))
    net.op("ConvTranspose", [x, weight], "y", group=2)
    return net.model("y")


def einsum() -> onnx.ModelProto:
    net = Net()
    x = net.input("x", [2, TERMS], TensorProto.FLOAT16)
    ones = net.constant(np.ones((TERMS, 3), np.float16))
    net.op("Einsum", [x, ones], "y", equation="ik,kj->ij")
    return net.model("y")


@pytest.mark.parametrize(
    "model",
    [product(), einsum(), *map(convolution, (1, 2, 3)), *map(transposed, (1, 2, 3))],
    ids=["matmul", "einsum", *(f"{kind}{n}d" for kind in ("conv", "turned") for n in (1, 2, 3))],
)
def test_sums_are_added_up_in_float32(model: onnx.ModelProto) -> None:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    (y,) = computed(model, {"x": np.ones(shape, np.float16)})
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, np.full(y.shape, TERMS, np.float16))


@pytest.mark.parametrize("name", ["inception_like", "branches", "norms"])
def test_near_the_same_in_float32(name: str) -> None:
    model = getattr(nets, name)()
    feed = nets.feeds(model)
    half = computed(in_float16(model), {k: v.astype(np.float16) for k, v in feed.items()})
    for got, want in zip(half, run_onnxruntime(model, feed).values(), strict=True):
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-2 * np.abs(want).max())


@pytest.mark.parametrize("name", ["inception_like", "norms"])
def test_the_same_operators_with_the_same_names(name: str) -> None:
    model = getattr(nets, name)()

    def names(model: onnx.ModelProto) -> list[str]:
        # In float16, an input of a concatenation may begin at an unaligned byte of the result, so
        # that it cannot be written there directly. The `Concat` is then an operator.
        return [name for name in for_cuda(model).graph.names if not name.endswith("/Concat")]

    assert names(in_float16(model)) == names(model)


def wide_convolution() -> onnx.ModelProto:
    """A convolution that is large enough for tensor cores."""
    net = Net()
    net.op("Relu", [net.conv(net.input("x", [1, 128, 14, 14]), "conv", (128, 128), 3)], "y")
    return net.model("y")


@pytest.mark.slow
def test_tensor_cores_add_up_in_float32() -> None:
    (kernel,) = for_cuda(in_float16(wide_convolution())).program.kernels.functions.values()
    found: set[tuple[str, str]] = set()

    def visit(block: Any) -> None:
        found.update((str(b.scope()), str(b.dtype)) for b in block.alloc_buffers)

    tvm_ffi.structural_walk(kernel.body, (s_tir.SBlock, visit))
    assert {dtype for scope, dtype in found if scope == "wmma.accumulator"} == {"float32"}
    assert {dtype for scope, dtype in found if scope == "wmma.matrix_a"} == {"float16"}


@needs_nvcc
@pytest.mark.parametrize(
    "build",
    [
        nets.inception_like,
        pytest.param(wide_convolution, marks=pytest.mark.slow),
        pytest.param(lambda: light.build("squeezenet"), marks=pytest.mark.slow),
    ],
    ids=["inception_like", "tensor_cores", "squeezenet"],
)
def test_compiled_for_a_gpu(build: Callable[[], onnx.ModelProto]) -> None:
    compilation = for_cuda(in_float16(build()))
    assert {value.dtype for value in compilation.program.values} == {"float16"}
    assert compilation.kernels


def test_a_sigmoid_of_a_very_negative_number_is_not_zero(
    caplog: pytest.LogCaptureFixture,
) -> None:
    random = np.random.default_rng(0)
    weights = 4 * random.standard_normal((8, 8, 3, 3))
    net = Net()
    x = net.input("x", [1, 8, 6, 6], TensorProto.FLOAT16)
    net.op("Conv", [x, net.constant(weights.astype("float16"))], "conv", pads=[1] * 4)
    net.op("Sigmoid", ["conv"], "sigmoid")
    net.op("Add", ["sigmoid", net.constant(np.array(1e-6, "float16"))], "safe")
    net.op("Log", ["safe"], "y")
    model = net.model("y")
    feeds = {"x": random.standard_normal((1, 8, 6, 6)).astype("float16")}
    (got,) = computed(model, feeds)
    np.testing.assert_allclose(got, run_onnxruntime(model, feeds)["y"], rtol=2e-2, atol=2e-2)
    assert "is wrong" not in caplog.text


@pytest.mark.parametrize("op", ["GlobalLpPool", "LpNormalization", "ReduceL2", "ReduceLogSum"])
def test_a_norm_is_finite_though_the_sum_in_it_is_not(op: str) -> None:
    data = np.full((1, 2, 30, 30), 200, "float16")
    model, feeds = one_node(op, [data])
    (got,) = computed(model, feeds)
    wanted = run_onnxruntime(model, feeds)["y0"]
    assert np.isfinite(wanted).all()
    np.testing.assert_allclose(got, wanted, rtol=2e-3)


@pytest.mark.parametrize("shape", [(8, 4), (2, 4, 6, 6)])
def test_a_norm_of_channels_far_from_zero_keeps_its_digits(shape: tuple[int, ...]) -> None:
    """Computed as a scale and a shift in float16, the norm would be off by several percent."""
    net = Net()
    mean, variance = np.full(4, 5, np.float16), np.full(4, 0.01, np.float16)
    one, zero = np.ones(4, np.float16), np.zeros(4, np.float16)
    given = [net.constant(each) for each in (one, zero, mean, variance)]
    net.op("BatchNormalization", [net.input("x", shape, TensorProto.FLOAT16), *given], "y")
    model = net.model("y")
    x = (5 + 0.1 * np.random.default_rng(0).standard_normal(shape)).astype(np.float16)
    (want,) = run_onnxruntime(model, {"x": x}).values()
    (got,) = computed(model, {"x": x})
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


def test_a_product_of_many_numbers_is_computed_in_float32() -> None:
    x = np.linspace(0.98, 1.02, 512, dtype=np.float16).reshape(1, 512)
    (got,) = computed(*one_node("ReduceProd", [x], axes=[1], opset=13))
    np.testing.assert_allclose(got, np.prod(x, axis=1, dtype=np.float64, keepdims=True), rtol=1e-3)
