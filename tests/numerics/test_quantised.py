"""Compares quantised models with onnxruntime. Results may differ by one step."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tvm_interop
from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime
from tvm_interop.compiler.cpu import INT8_FEATURE
from tvm_interop.frontend import load_model
from tvm_interop.machine.cpu_features import host_features
from tvm_interop.machine.kernel_libraries import why_missing

needs_int8 = pytest.mark.skipif(
    why_missing("onednn") is not None or INT8_FEATURE not in host_features(),
    reason="needs oneDNN and a CPU with AVX512-VNNI",
)
STEP = 0.02


class QuantisedNet(nets.Net):
    """Builds models as onnxruntime's quantiser writes them, in QDQ form."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.rng = np.random.default_rng(seed)
        self._count = 0

    def _named(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"

    def rounded(self, x: str, step: float = STEP, zero: int = 128, dtype: str = "uint8") -> str:
        given = [self.constant(np.float32(step)), self.constant(np.asarray(zero, dtype))]
        words = self.op("QuantizeLinear", [x, *given], self._named("q"))
        return self.op("DequantizeLinear", [words, *given], self._named("dq"))

    def integers(
        self, *shape: int, axis: int | None = 0, zero: int = 0, dtype: str = "int8"
    ) -> str:
        """Add quantised weights. Integers have 7 bits.

        There is one scale for each index of `axis`, or one for all.
        """
        center = zero if dtype == "int8" else 128 + zero
        words = (self.rng.integers(-60, 61, shape) + center).astype(dtype)
        count = () if axis is None else (shape[axis],)
        each = np.sqrt(np.prod(shape) / shape[0])
        steps = (self.rng.uniform(0.6, 1.4, count) / 35 / each).astype(np.float32)
        zeros = np.full(count, center, dtype)
        given = [self.constant(words), self.constant(steps), self.constant(zeros)]
        attrs = {} if axis is None else {"axis": axis}
        return self.op("DequantizeLinear", given, self._named("weight"), **attrs)

    def bias(self, size: int) -> str:
        words = self.rng.integers(-400, 400, size).astype(np.int32)
        given = [self.constant(words), self.constant(np.full(size, 1e-3, np.float32))]
        zeros = self.constant(np.zeros(size, np.int32))
        return self.op("DequantizeLinear", [*given, zeros], self._named("bias"), axis=0)


def run_both(model: onnx.ModelProto, **inputs: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return the artifact, its first output, and onnxruntime's first output.

    onnxruntime gets `rewrites=False`, because onnxruntime 1.32 drops the bias of a quantised
    product when it rewrites the model.
    """
    # `providers` makes the library run every operator that it can run. Latencies do not matter.
    artifact = tvm_interop.compile(model, scheduler="sequential", streams=1, providers=["onednn"])
    module = tvm_interop.GraphModule(artifact)
    module.run(**inputs)
    (wanted, *_) = run_onnxruntime(model, inputs, rewrites=False).values()
    return artifact, module.get_output(0).numpy(), wanted


def check(got: np.ndarray, wanted: np.ndarray, step: float = STEP, steps: int = 1) -> None:
    """Check that outputs are whole quantisation steps, and differ by at most `steps` steps."""
    assert wanted.max() - wanted.min() > 20 * step
    assert np.abs(got - wanted).max() <= steps * step * 1.001
    assert (np.abs(got - wanted) > step / 2).mean() < 0.02
    np.testing.assert_allclose(got / step, np.round(got / step), atol=1e-3)


def image(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)


CONVS: dict[str, tuple[int, tuple[int, ...], dict[str, Any]]] = {
    "same": (8, (16, 8, 3, 3), {"pads": [1, 1, 1, 1]}),
    "image": (3, (20, 3, 7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    "odd, one-sided": (5, (7, 5, 3, 3), {"pads": [1, 0, 2, 1]}),
    "depthwise": (12, (12, 1, 3, 3), {"group": 12, "strides": [2, 2], "pads": [0, 0, 1, 1]}),
    "groups, dilated": (
        12,
        (18, 4, 3, 3),
        {"group": 3, "dilations": [2, 2], "pads": [2, 2, 2, 2]},
    ),
    "pointwise": (24, (40, 24, 1, 1), {}),
}


@needs_int8
@pytest.mark.parametrize("axis", [0, None], ids=["by channel", "by tensor"])
@pytest.mark.parametrize(
    ("dtype", "zero"), [("uint8", 128), ("uint8", 0), ("uint8", 37), ("int8", 0), ("int8", -5)]
)
@pytest.mark.parametrize("name", CONVS)
def test_convolutions(name: str, dtype: str, zero: int, axis: int | None) -> None:
    channels, shape, attrs = CONVS[name]
    net = QuantisedNet()
    x = net.rounded(net.input("x", (1, channels, 11, 13)), 1 / 127, zero, dtype)
    inputs = [x, net.integers(*shape, axis=axis), net.bias(shape[0])]
    y = net.op("Conv", inputs, "conv", kernel_shape=list(shape[2:]), **attrs)
    model = net.model(net.rounded(y, STEP, 128 if dtype == "uint8" else 0, dtype))
    artifact, got, wanted = run_both(model, x=image(1, channels, 11, 13))
    assert artifact.manifest.quantised.int8 == {"conv2d": 1}
    assert artifact.manifest.quantised.floats == {}
    check(got, wanted)


@needs_int8
@pytest.mark.parametrize("activation", ["Relu", "Clip"])
@pytest.mark.parametrize("zero", [0, 50])
def test_activations_are_done_on_the_way(activation: str, zero: int) -> None:
    net = QuantisedNet()
    x = net.rounded(net.input("x", (1, 8, 9, 9)), 1 / 127)
    y = net.op("Conv", [x, net.integers(16, 8, 3, 3)], "conv", kernel_shape=[3, 3])
    bounds = [net.constant(np.float32(bound)) for bound in (-0.1, 0.8)]
    y = net.op(activation, [y, *(bounds if activation == "Clip" else [])], "activation")
    artifact, got, wanted = run_both(net.model(net.rounded(y, 0.01, zero)), x=image(1, 8, 9, 9))
    assert [op.description.op for op in artifact.plan.operators if op.description] == [
        "quantised_conv2d"
    ]
    check(got, wanted, 0.01)


@needs_int8
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("axis", [1, None], ids=["by channel", "by tensor"])
def test_matrix_products(axis: int | None, rank: int) -> None:
    net = QuantisedNet()
    shape = (2, 5, 24)[3 - rank :]
    x = net.rounded(net.input("x", shape), 1 / 127, 100)
    y = net.op("MatMul", [x, net.integers(24, 30, axis=axis)], "product")
    y = net.op("Add", [y, net.bias(30)], "sum")
    artifact, got, wanted = run_both(net.model(net.rounded(y, 0.01)), x=image(*shape))
    assert artifact.manifest.quantised.int8 == {"matmul": 1}
    check(got, wanted, 0.01)


@needs_int8
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_product_of_two_inputs(dtype: str) -> None:
    net = QuantisedNet()
    zero = 100 if dtype == "uint8" else 7
    left = net.rounded(net.input("x", (3, 9, 20)), 1 / 127)
    right = net.rounded(net.input("y", (3, 9, 20)), 1 / 127, zero, dtype)
    right = net.op("Transpose", [right], "transposed", perm=[0, 2, 1])
    y = net.rounded(net.op("MatMul", [left, right], "product"), 0.05)
    x = image(3, 9, 20)
    artifact, got, wanted = run_both(net.model(y), x=x, y=np.ascontiguousarray(x[:, ::-1]))
    assert artifact.manifest.quantised.int8 == {"matmul": 1}
    check(got, wanted, 0.05)


@needs_int8
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 3), ("int8", 6)])
def test_zero_points_of_weights_are_folded(dtype: str, zero: int) -> None:
    net = QuantisedNet()
    x = net.rounded(net.input("x", (1, 8, 9, 9)), 1 / 127)
    weight = net.integers(16, 8, 3, 3, axis=None, zero=zero, dtype=dtype)
    y = net.op("Conv", [x, weight], "conv", kernel_shape=[3, 3])
    artifact, got, wanted = run_both(net.model(net.rounded(y)), x=image(1, 8, 9, 9))
    assert artifact.manifest.quantised.int8 == {"conv2d": 1}
    check(got, wanted)


@needs_int8
def test_a_constant_factor_that_needs_nine_bits() -> None:
    """After the zero point is subtracted, the integers of the constant need nine bits. The library
    computes in 8 bits, so it gets the integers before the subtraction, and the zero point."""
    net = QuantisedNet()
    x = net.rounded(net.input("x", (5, 24)), 1 / 127)
    words = net.constant(net.rng.integers(0, 256, (24, 30)).astype(np.uint8))
    given = [words, net.constant(np.float32(0.001)), net.constant(np.uint8(115))]
    y = net.op("MatMul", [x, net.op("DequantizeLinear", given, "weight")], "product")
    artifact, got, wanted = run_both(net.model(net.rounded(y, 0.01)), x=image(5, 24))
    assert artifact.manifest.quantised.int8 == {"matmul": 1}
    check(got, wanted, 0.01)


def block(net: QuantisedNet) -> str:
    """Two convolutions, a gate with a sigmoid, a sum, a concatenation, poolings and a product."""
    x = net.rounded(net.input("x", (1, 3, 20, 20)), 1 / 127)
    x = net.op("Conv", [x, net.integers(32, 3, 3, 3)], "first", kernel_shape=[3, 3], pads=[1] * 4)
    x = net.rounded(net.op("Relu", [x], "relu"), 0.01, 0)
    x = net.rounded(
        net.op("MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 0.01, 0
    )
    y = net.op("Conv", [x, net.integers(32, 32, 3, 3)], "second", kernel_shape=[3, 3], pads=[1] * 4)
    y = net.rounded(y, 0.015)
    y = net.rounded(net.op("Mul", [y, net.op("HardSigmoid", [y], "sigmoid")], "gated"), 0.012, 40)
    y = net.rounded(net.op("Add", [x, y], "sum"))
    both = net.rounded(net.op("Concat", [y, y], "both", axis=1))
    mean = net.op("GlobalAveragePool", [both], "mean")
    flat = net.rounded(net.op("Flatten", [mean], "flat"), 0.01, 60)
    product = net.op("Gemm", [flat, net.integers(10, 64), net.bias(10)], "product", transB=1)
    return net.rounded(product)


@needs_int8
def test_a_network_stays_in_integers(caplog: pytest.LogCaptureFixture) -> None:
    net = QuantisedNet()
    with caplog.at_level(logging.WARNING, "tvm_interop"):
        artifact, got, wanted = run_both(net.model(block(net)), x=image(1, 3, 20, 20))
    assert caplog.text == ""
    wanted_in_int8 = {"conv2d": 2, "matmul": 1, "max_pool2d": 1, "mean": 1}
    assert artifact.manifest.quantised.int8 == wanted_in_int8
    assert set(artifact.manifest.quantised.floats) >= {"add", "multiply"}
    assert "5 operators in int8: 2 conv2d, 1 matmul, 1 max_pool2d, 1 mean" in str(
        artifact.manifest.quantised
    )
    # Three roundings follow each other, and each may add an error of one step.
    assert np.abs(got - wanted).max() <= 2 * STEP * 1.001
    between = [v.dtype for v in artifact.plan.values if len(v.shape) == 4]
    # Only the input and the tensor before the sigmoid are in float32.
    assert between.count("float32") <= 2


@needs_int8
@pytest.mark.parametrize("scheduler", ["greedy", "ios"])
def test_schedules_and_parts_give_the_same_bits(scheduler: str) -> None:
    net = QuantisedNet()
    model = net.model(block(net))
    x = image(1, 3, 20, 20)
    results = []
    for options in ({"scheduler": "sequential", "streams": 1}, {"scheduler": scheduler}):
        artifact = tvm_interop.compile(model, keep_slower=True, **options)
        module = tvm_interop.GraphModule(artifact)
        module.run(x=x)
        results.append(module.get_output(0).numpy())
    np.testing.assert_array_equal(*results)


def test_without_a_library_all_is_in_floats(caplog: pytest.LogCaptureFixture) -> None:
    net = QuantisedNet()
    model = net.model(block(net))
    with caplog.at_level(logging.WARNING, "tvm_interop"):
        artifact = tvm_interop.compile(model, scheduler="sequential", providers=["tvm"])
    assert "0 operators in int8" in caplog.text
    assert "2 conv2d (`first/Conv`, `second/Conv`)" in caplog.text
    module = tvm_interop.GraphModule(artifact)
    x = image(1, 3, 20, 20)
    module.run(x=x)
    (wanted,) = run_onnxruntime(model, {"x": x}, rewrites=False).values()
    assert np.abs(module.get_output(0).numpy() - wanted).max() <= 2 * STEP * 1.001


@needs_int8
def test_what_needs_nine_bits_stays_in_floats(caplog: pytest.LogCaptureFixture) -> None:
    net = QuantisedNet()
    x = net.rounded(net.input("x", (1, 8, 9, 9)), 1 / 127)
    weight = net.integers(16, 8, 3, 3, axis=None, zero=90)
    y = net.op("Conv", [x, weight], "conv", kernel_shape=[3, 3])
    with caplog.at_level(logging.WARNING, "tvm_interop"):
        artifact, got, wanted = run_both(net.model(net.rounded(y)), x=image(1, 8, 9, 9))
    assert artifact.manifest.quantised.int8 == {}
    assert artifact.manifest.quantised.floats == {"conv2d": ("conv/Conv",)}
    assert "1 conv2d (`conv/Conv`)" in caplog.text
    check(got, wanted)


@needs_int8
def test_the_fallback_on_tvm_agrees() -> None:
    net = QuantisedNet()
    artifact, got, _ = run_both(net.model(block(net)), x=image(1, 3, 20, 20))
    assert artifact.fallback is not None
    artifact.plan, artifact.fallback = artifact.fallback, None
    module = tvm_interop.GraphModule(artifact)
    module.run(x=image(1, 3, 20, 20))
    assert np.abs(module.get_output(0).numpy() - got).max() <= 2 * STEP * 1.001


def test_halves_go_to_the_even_number() -> None:
    net = QuantisedNet()
    model = net.model(net.rounded(net.input("x", (1, 8)), 1.0, 10))
    x = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 300, -300, 3.2]], np.float32)
    _, got, wanted = run_both(model, x=x)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(got, [[0, 2, 2, 0, -2, 245, -10, 3]])


def test_other_models_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    load_model(nets.chain())
    artifact = tvm_interop.compile(nets.chain(), scheduler="sequential")
    assert artifact.manifest.quantised is None
    assert "quantised" not in caplog.text


def test_operators_of_integers_are_read() -> None:
    """The model has `QLinearConv`, a max pooling of integers, and onnxruntime's own operators."""
    net = QuantisedNet()

    def step(number: float, zero: int, dtype: str = "uint8") -> list[str]:
        return [net.constant(np.float32(number)), net.constant(np.asarray(zero, dtype))]

    def integers(*shape: int) -> str:
        return net.constant(net.rng.integers(-60, 61, shape).astype(np.int8))

    def microsoft(kind: str, inputs: list[str], output: str, **attrs: Any) -> str:
        return net.op(kind, inputs, output, domain="com.microsoft", **attrs)

    x = net.op("QuantizeLinear", [net.input("x", (1, 8, 12, 12)), *step(1 / 127, 128)], "words")
    steps = net.constant(net.rng.uniform(2e-4, 4e-4, 16).astype(np.float32))
    zeros = net.constant(np.zeros(16, np.int8))
    bias = net.constant(net.rng.integers(-4000, 4000, 16).astype(np.int32))
    weight = [integers(16, 8, 3, 3), steps, zeros]
    y = net.op(
        "QLinearConv",
        [x, *step(1 / 127, 128), *weight, *step(0.01, 100), bias],
        "conv",
        pads=[1, 1, 1, 1],
    )
    y = net.op("MaxPool", [y], "pool", kernel_shape=[2, 2], strides=[2, 2])
    z = microsoft("QLinearSigmoid", [y, *step(0.01, 100), *step(0.01, 0)], "sigmoid")
    y = microsoft("QLinearMul", [y, *step(0.01, 100), z, *step(0.01, 0), *step(0.01, 90)], "gate")
    y = microsoft("QLinearAdd", [y, *step(0.01, 90), z, *step(0.01, 0), *step(0.01, 60)], "sum")
    parts = [y, *step(0.01, 60), y, *step(0.01, 60)]
    y = microsoft("QLinearConcat", [*step(0.01, 60), *parts], "both", axis=1)
    y = net.op("Flatten", [y], "flat")
    right = [integers(32 * 36, 20), *step(0.0005, 0, "int8")]
    y = net.op("QLinearMatMul", [y, *step(0.01, 60), *right, *step(STEP, 128)], "product")
    gemm = [integers(10, 20), *step(0.003, 0, "int8")]
    bias = net.constant(net.rng.integers(-4000, 4000, 10).astype(np.int32))
    y = microsoft("QGemm", [y, *step(STEP, 128), *gemm, bias, *step(STEP, 110)], "gemm", transB=1)
    model = net.model(net.op("DequantizeLinear", [y, *step(STEP, 110)], "y"), check=False)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    # ONNX does not know onnxruntime's own operators, so it cannot infer the type of the output.
    (output,) = model.graph.output
    output.CopyFrom(
        onnx.helper.make_tensor_value_info(output.name, onnx.TensorProto.FLOAT, (1, 10))
    )
    artifact, got, wanted = run_both(model, x=image(1, 8, 12, 12))
    if why_missing("onednn") is None and INT8_FEATURE in host_features():
        wanted_in_int8 = {"conv2d": 1, "matmul": 2, "max_pool2d": 1}
        assert artifact.manifest.quantised.int8 == wanted_in_int8
    check(got, wanted, steps=2)


@pytest.mark.parametrize("kind", ["ConvInteger", "MatMulInteger"])
def test_sums_of_integers_are_exact(kind: str) -> None:
    net = QuantisedNet()
    shapes = ((1, 8, 9, 9), (16, 8, 3, 3)) if kind == "ConvInteger" else ((5, 24), (24, 30))
    given = [net.constant(np.float32(1 / 127)), net.constant(np.uint8(120))]
    words = net.op("QuantizeLinear", [net.input("x", shapes[0]), *given], "words")
    weight = net.constant(net.rng.integers(-128, 128, shapes[1]).astype(np.int8))
    model = net.model(net.op(kind, [words, weight, given[1]], "y"))
    _, got, _ = run_both(model, x=image(*shapes[0]))
    # On CPUs without VNNI, onnxruntime adds products of 8 bits in 16 bits, which is not exact.
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": image(*shapes[0])})
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("kind", ["Reshape", "MaxPool", "MatMul"])
def test_results_of_float16_keep_their_type(kind: str) -> None:
    net = QuantisedNet()
    given = [net.constant(np.float16(0.0625)), net.constant(np.int8(3))]
    shape = (3, 16) if kind == "MatMul" else (1, 4, 6, 6)
    words = net.op("QuantizeLinear", [net.input("x", shape, onnx.TensorProto.FLOAT16), *given], "q")
    x = net.op("DequantizeLinear", [words, *given], "floats")
    if kind == "Reshape":
        y = net.op("Reshape", [x, net.constant(np.array([4, 36]))], "y")
    elif kind == "MaxPool":
        y = net.op("MaxPool", [x], "y", kernel_shape=[2, 2])
    else:
        y = net.op("MatMul", [x, net.op("Transpose", [x], "turned")], "y")
    _, got, wanted = run_both(net.model(y, opset=21), x=image(*shape).astype(np.float16))
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, wanted, rtol=2e-3)


@needs_int8
@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
def test_weights_that_the_model_rounds_are_integers(kind: str) -> None:
    """Models that were trained with rounding hold weights of float32, and round them."""
    net = QuantisedNet()
    shape, axis = ((16, 8, 3, 3), 0) if kind == "Conv" else ((24, 16), 1)
    of_data = (1, 8, 9, 9) if kind == "Conv" else (5, 24)
    steps = net.rng.uniform(0.6, 1.4, 16).astype(np.float32) / 500
    given = [net.constant(steps), net.constant(np.zeros(16, np.int8))]
    words = net.op("QuantizeLinear", [net.weight(*shape), *given], "wq", axis=axis)
    weight = net.op("DequantizeLinear", [words, *given], "wd", axis=axis)
    x = net.rounded(net.input("x", of_data))
    y = net.op(kind, [x, weight], "product")
    artifact, got, wanted = run_both(net.model(net.rounded(y)), x=image(*of_data))
    assert sum(artifact.manifest.quantised.int8.values()) == 1
    assert not artifact.manifest.quantised.floats
    check(got, wanted)
