"""Tests the operators of onnxruntime's own domain against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tests.masked_nets import theirs
from tests.nets import attention
from tests.one_node import computed
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend.load import load_model

MICROSOFT = "com.microsoft"
Arrays = dict[str, np.ndarray]


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


def one(
    op: str,
    inputs: Sequence[np.ndarray],
    weights: Sequence[np.ndarray | None] = (),
    *,
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
    domain: str = MICROSOFT,
    **attributes: object,
) -> tuple[onnx.ModelProto, Arrays]:
    """A model of one operator with constant `weights`, and its inputs by name."""
    feed = {f"x{i}": array for i, array in enumerate(inputs)}
    kept = {f"w{i}": array for i, array in enumerate(weights) if array is not None}
    names = [*feed, *(f"w{i}" if w is not None else "" for i, w in enumerate(weights))]
    node = helper.make_node(op, names, outputs, "the_node", domain=domain, **attributes)
    kind = helper.np_dtype_to_tensor_dtype(inputs[0].dtype)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, kind, a.shape) for name, a in feed.items()],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs if name],
        [numpy_helper.from_array(array, name) for name, array in kept.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feed


def checked(made: onnx.ModelProto, feed: Arrays) -> None:
    for ours, wanted in zip(computed(made, feed), theirs(made, feed), strict=True):
        assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype)
        error = 1e-2 if ours.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(ours, wanted, error, error)


X, ROW = numbers(2, 3, 8), numbers(8)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", ["Gelu", "BiasGelu", "FastGelu", "QuickGelu"])
def test_activations(op: str, dtype: str) -> None:
    weights = [ROW.astype(dtype)] if op == "BiasGelu" else []
    checked(*one(op, [X.astype(dtype)], weights))
    if op == "FastGelu":
        checked(*one(op, [X.astype(dtype)], [ROW.astype(dtype)]))
    if op == "QuickGelu":
        checked(*one(op, [X.astype(dtype)], alpha=0.5))


@pytest.mark.parametrize("a", [0, 1])
@pytest.mark.parametrize("b", [0, 1])
def test_products_of_turned_factors(a: int, b: int) -> None:
    x = numbers(2, 8, 3) if a else X
    for y in (numbers(2, 5, 8), numbers(5, 8)):
        right = y if b else np.swapaxes(y, -1, -2).copy()
        checked(*one("FusedMatMul", [x, right], transA=a, transB=b, alpha=0.3))


@pytest.mark.parametrize(
    ("x", "y", "turned"),
    [
        ((3, 2, 4), (2, 4, 5), {"transBatchA": 1}),
        ((3, 2, 4), (4, 2, 5), {"transBatchA": 1, "transBatchB": 1}),
        ((4, 2, 7, 3), (2, 7, 4, 5), {"transBatchA": 1, "transA": 1}),
        ((3, 2, 7, 4), (5, 2, 7, 4), {"transBatchA": 1, "transBatchB": 1, "transB": 1}),
    ],
)
def test_products_with_turned_batches(
    x: tuple[int, ...], y: tuple[int, ...], turned: dict[str, int]
) -> None:
    checked(*one("FusedMatMul", [numbers(*x), numbers(*y)], **turned))


def test_a_vector_is_not_turned() -> None:
    made, _ = one("FusedMatMul", [numbers(4), numbers(4, 5)], transA=1)
    with pytest.raises(UnsupportedModelError, match=r"the_node.*transposes `A`, which is a vector"):
        load_model(made)


@pytest.mark.parametrize("activation", ["Relu", "Tanh", "LeakyRelu", "Elu", "Selu"])
def test_a_fused_gemm_with_parameters_that_its_activation_does_not_read(activation: str) -> None:
    named = {"activation_alpha": 0.2, "activation_beta": 0.3, "activation_gamma": 0.4}
    checked(*one("FusedGemm", [numbers(3, 8)], [numbers(8, 4)], activation=activation, **named))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("scale", [(1,), (1, 8), (3, 1)])
def test_normalisations_with_scales_that_are_broadcast(scale: tuple[int, ...], dtype: str) -> None:
    x, w = X.astype(dtype), numbers(*scale).astype(dtype)
    axis = 1 if len(scale) == 2 else -1
    checked(*one("LayerNormalization", [x], [w, w + 1], domain="", axis=axis))
    if scale != (3, 1):
        checked(*one("RMSNormalization", [x], [w], domain="", opset=23, axis=axis))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("outputs", [["y"], ["y", "", "", "sum"]], ids=["norm", "sum"])
def test_normalisations_of_sums(outputs: list[str], dtype: str) -> None:
    x, row = X.astype(dtype), ROW.astype(dtype)
    for skip in (x + 1, numbers(1, 3, 8, dtype=dtype)):
        for weights in ([row], [row, row + 1], [row, row + 1, row - 1], [row, None, row]):
            op = "SkipLayerNormalization"
            checked(*one(op, [x, skip], weights, outputs=outputs, epsilon=1e-5))
        for weights in ([row], [row, row + 1]):
            op = "SkipSimplifiedLayerNormalization"
            checked(*one(op, [x, skip], weights, outputs=outputs, epsilon=1e-5))


def test_a_mean_for_training_is_refused() -> None:
    made, _ = one("SkipLayerNormalization", [X, X], [ROW, ROW], outputs=["y", "mean"])
    with pytest.raises(UnsupportedModelError, match=r"the_node.*a mean or a deviation"):
        load_model(made)


@pytest.mark.parametrize("axis", [-1, 1])
def test_normalisations_that_the_opset_lacks(axis: int) -> None:
    scale = ROW if axis == -1 else numbers(3, 8)
    for weights in ([scale], [scale, scale + 1]):
        checked(*one("LayerNormalization", [X], weights, opset=12, domain="", axis=axis))
    checked(*one("SimplifiedLayerNormalization", [X], [scale], domain="", axis=axis))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("rows", [32, 40])
@pytest.mark.parametrize("points", ["none", "packed", "floats"])
def test_products_of_few_bits(bits: int, rows: int, points: str) -> None:
    columns, block = 5, 16
    blocks = -(-rows // block)
    draw = np.random.default_rng(0)
    packed = draw.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8)
    weights: list[np.ndarray | None] = [packed, np.abs(numbers(columns * blocks)) + 0.1]
    if points == "packed":
        size = columns * -(-blocks * bits // 8)
        weights.append(draw.integers(0, 256, size).astype(np.uint8))
    elif points == "floats" and bits < 8:  # onnxruntime has no float zero points for 8 bits.
        weights.append(draw.uniform(0, 15, columns * blocks).astype(np.float32))
    sizes = {"K": rows, "N": columns, "block_size": block, "bits": bits}
    checked(*one("MatMulNBits", [numbers(3, rows)], weights, **sizes))


ACTIVATIONS: dict[str, list[float]] = {
    **{"": [], "Relu": [], "Tanh": [], "Sigmoid": []},
    **{"LeakyRelu": [0.1], "Clip": [-0.5, 0.7], "HardSigmoid": [0.3, 0.4]},
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_operators_fused_with_an_activation(activation: str) -> None:
    named: dict[str, object] = {"activation": activation} if activation else {}
    if given := ACTIVATIONS[activation]:
        named["activation_params"] = given
    image, weights = numbers(1, 3, 6, 6), [numbers(4, 3, 3, 3), numbers(4)]
    checked(*one("FusedConv", [image], weights, pads=[1] * 4, **named))
    checked(*one("FusedConv", [image], [*weights, numbers(1, 4, 6, 6)], pads=[1] * 4, **named))
    # onnxruntime's FusedGemm does not support `Clip`, and needs an activation.
    if activation not in ("", "Clip"):
        named.pop("activation_params", None)
        for name, number in zip(("alpha", "beta"), given, strict=False):
            named[f"activation_{name}"] = number
        checked(*one("FusedGemm", [numbers(3, 8)], [numbers(8, 4), numbers(4)], **named))


def test_operators_of_onnx_under_another_domain() -> None:
    for opset in (13, 17):
        checked(*one("Trilu", [X], [np.array(-1)], opset=opset, upper=0))
    checked(*one("TransposeMatMul", [numbers(3, 8), numbers(4, 8)], transB=1))


def integers(*shape: int, dtype: str) -> np.ndarray:
    ends = np.iinfo(dtype)
    return np.random.default_rng(0).integers(ends.min, ends.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("points", ["none", "one", "columns"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_of_integers_that_become_floats(dtype: str, points: str, has_bias: bool) -> None:
    step = abs(numbers(6)) / 50 + np.float32(0.01)
    # On some CPUs, onnxruntime adds products in 16 bits, which overflows unless the numbers are
    # small.
    right: list[np.ndarray | None] = [integers(16, 6, dtype=dtype) // 2]
    end: list[np.ndarray | None] = {
        "none": [None],
        "one": [integers(1, dtype=dtype).reshape(())],
        "columns": [integers(6, dtype=dtype)],
    }[points]
    bias: list[np.ndarray | None] = [numbers(6)] if has_bias else []
    steps = [step] if points == "columns" else [step[0]]
    checked(*one("DynamicQuantizeMatMul", [numbers(4, 16)], [*right, *steps, *end, *bias]))
    weights = [*right, np.float32(0.03), *steps, np.uint8(5), *end, *bias]
    node = one("MatMulIntegerToFloat", [integers(2, 4, 16, dtype="uint8")], weights)
    for value in node[0].graph.output:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    checked(*node)


def test_roundings_of_onnxruntime() -> None:
    made, feed = one("QuantizeLinear", [X], [np.float32(0.1), np.uint8(7)], outputs=["words"])
    made.graph.node.append(
        helper.make_node(
            "DequantizeLinear", ["words", "w0", "w1"], ["y"], "the_second", domain=MICROSOFT
        )
    )
    made.graph.output[0].name = "y"
    checked(made, feed)


def test_an_operator_of_integers_in_a_branch() -> None:
    branches = {}
    for name in ("then", "else"):
        weights = integers(16, 6, dtype="int8") // (1 if name == "then" else 2)
        branches[f"{name}_branch"] = helper.make_graph(
            [helper.make_node("MatMulInteger", ["x", f"{name}_w"], [name], f"{name}_node")],
            name,
            [],
            [helper.make_tensor_value_info(name, onnx.TensorProto.INT32, [5, 6])],
            [numpy_helper.from_array(weights, f"{name}_w")],
        )
    graph = helper.make_graph(
        [helper.make_node("If", ["condition"], ["y"], "the_if", **branches)],
        "g",
        [
            helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [5, 16]),
            helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT32, [5, 6])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for condition in (True, False):
        # On some CPUs, onnxruntime adds products in 16 bits, which overflows unless the numbers
        # are small.
        words = integers(5, 16, dtype="uint8") // 4
        checked(made, {"x": words, "condition": np.array(condition)})


def test_an_operator_that_onnx_defines_in_a_branch() -> None:
    shape = [1, 2, 3, 4]
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Attention", ["x"] * 3, [name], f"{name}_node", is_causal=causal)],
            name,
            [],
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)],
        )
        for name, causal in (("then", 0), ("else", 1))
    }
    graph = helper.make_graph(
        [helper.make_node("If", ["condition"], ["y"], "the_if", **branches)],
        "g",
        [
            helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
    )
    opsets = [helper.make_opsetid("", 23)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    for condition in (True, False):
        checked(made, {"x": numbers(*shape), "condition": np.array(condition)})


def test_a_model_that_onnxruntime_has_optimised(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(
        attention().SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    made = onnx.load(options.optimized_model_filepath)
    assert any(node.domain == MICROSOFT for node in made.graph.node)
    checked(made, {"hidden.states": numbers(1, 6, 16)})
