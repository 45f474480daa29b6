"""Tests floats of 8 and 4 bits within a model, against onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.masked_nets import theirs
from tests.one_node import computed
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend.load import load_model

NAMES = {
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
}
"""The names of the types in ONNX and in NumPy."""
EIGHT = [*NAMES]
ENDS = [240, 248, 249, 448, 464, 465, 480, 57344, 61440, 65536, 1e30, np.inf]
X = np.concatenate([np.linspace(0, 600, 301), np.linspace(0, 0.05, 201), [1e-9], ENDS])
X = np.concatenate([X, -X, [np.nan]]).astype("float32")
SMALL = np.random.default_rng(0).standard_normal((6, 4)).astype("float32")


def model_of(
    nodes: list[onnx.NodeProto], x: np.ndarray, constants: list[onnx.TensorProto], result: int = 1
) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", result, None)],
        constants,
    )
    opsets = [helper.make_opsetid("", 23)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def check(model: onnx.ModelProto, x: np.ndarray, tolerance: float = 0.0) -> None:
    (ours,), (wanted,) = computed(model, {"x": x}), theirs(model, {"x": x})
    assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(ours, wanted, tolerance, tolerance)


@pytest.mark.parametrize("saturates", [0, 1])
@pytest.mark.parametrize("kind", EIGHT)
def test_casts(kind: str, saturates: int) -> None:
    to = getattr(TensorProto, kind)
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=to, saturate=saturates),
        helper.make_node("Cast", ["narrow"], ["y"], to=TensorProto.FLOAT),
    ]
    model = model_of(nodes, X, [])
    if saturates:
        check(model, X)
        return
    # onnxruntime limits some numbers even here.
    with np.errstate(all="ignore"):
        narrow = X.astype(getattr(ml_dtypes, NAMES[kind]))
    np.testing.assert_array_equal(computed(model, {"x": X})[0], narrow.astype("float32"))


def test_casts_to_four_bits() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=TensorProto.FLOAT4E2M1),
        helper.make_node("Cast", ["narrow"], ["y"], to=TensorProto.FLOAT),
    ]
    x = np.linspace(-9, 9, 145, dtype="float32")
    narrow = x.astype(ml_dtypes.float4_e2m1fn)
    ours = computed(model_of(nodes, x, []), {"x": x})[0]
    np.testing.assert_array_equal(ours, narrow.astype("float32"))


@pytest.mark.parametrize("kind", EIGHT)
def test_numbers_that_are_quantised(kind: str) -> None:
    to = getattr(TensorProto, kind)
    for axis, scale in ((1, np.float32(0.02)), (0, np.linspace(0.01, 0.1, 6, dtype="float32"))):
        for zero in (["z"], []):
            stated = {} if zero else {"output_dtype": to}
            nodes = [
                helper.make_node("QuantizeLinear", ["x", "s", *zero], ["q"], axis=axis, **stated),
                helper.make_node("DequantizeLinear", ["q", "s", *zero], ["y"], axis=axis),
            ]
            constants = [numpy_helper.from_array(np.asarray(scale), "s")]
            constants += [helper.make_tensor("z", to, np.shape(scale), [0.0] * np.size(scale))]
            check(model_of(nodes, SMALL, constants[: 1 + len(zero)]), SMALL, 1e-6)


@pytest.mark.parametrize("kind", EIGHT)
def test_weights(kind: str) -> None:
    values = [0, 1, -2, 0.5, 3, -4, 6, 1.5] * 3
    weights = helper.make_tensor("w", getattr(TensorProto, kind), (6, 4), values)
    scales = numpy_helper.from_array(np.linspace(0.1, 0.6, 6, dtype="float32"), "s")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["wide"], axis=0),
        helper.make_node("Transpose", ["wide"], ["turned"]),
        helper.make_node("MatMul", ["x", "turned"], ["y"]),
    ]
    check(model_of(nodes, SMALL, [weights, scales]), SMALL, 1e-5)


def test_weights_of_four_bits_in_blocks() -> None:
    """The scales of the blocks are floats of eight bits, as in NVFP4."""
    values = np.array([0, 1, -2, 0.5, 3, -4, 6, 1.5] * 3, "float32").reshape(6, 4)
    steps = np.array([[1, 2, 0.5, 4], [8, 1, 0.25, 2]], "float32")
    weights = helper.make_tensor("w", TensorProto.FLOAT4E2M1, (6, 4), values.ravel().tolist())
    scales = helper.make_tensor("s", TensorProto.FLOAT8E4M3FN, (2, 4), steps.ravel().tolist())
    one = numpy_helper.from_array(np.float32(0.5), "one")
    nodes = [
        helper.make_node("DequantizeLinear", ["s", "one"], ["steps"]),
        helper.make_node("DequantizeLinear", ["w", "steps"], ["wide"], axis=0, block_size=3),
        helper.make_node("MatMul", ["x", "wide"], ["y"]),
    ]
    x = SMALL.T.copy()
    (ours,) = computed(model_of(nodes, x, [weights, scales, one]), {"x": x})
    np.testing.assert_allclose(ours, x @ (values * np.repeat(steps / 2, 3, 0)), 1e-5, 1e-5)


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("result", [TensorProto.FLOAT8E5M2, TensorProto.UNDEFINED])
def test_a_narrow_output_is_refused(is_moved: bool, result: int) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E5M2)]
    if is_moved:
        nodes[0].output[0] = "narrow"
        nodes.append(helper.make_node("Transpose", ["narrow"], ["y"]))
    model = model_of(nodes, SMALL, [], result)
    if not result:
        model.graph.output[0].CopyFrom(onnx.ValueInfoProto(name="y"))
    with pytest.raises(UnsupportedModelError, match=r"output `y` is of FLOAT8E5M2"):
        load_model(model)


def test_an_operator_that_depends_on_the_type_is_refused() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=TensorProto.FLOAT8E5M2),
        helper.make_node("CastLike", ["x", "narrow"], ["again"]),
        helper.make_node("Cast", ["again"], ["y"], to=TensorProto.FLOAT),
    ]
    with pytest.raises(UnsupportedModelError, match=r"`again` \(`CastLike`\) depends on the type"):
        load_model(model_of(nodes, SMALL, []))


def test_integers_of_four_bits_that_are_cast() -> None:
    values = [-8, 7, 1, 0] * 6
    weights = helper.make_tensor("w", TensorProto.INT4, (6, 4), values)
    nodes = [
        helper.make_node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "wide"], ["y"]),
    ]
    check(model_of(nodes, SMALL, [weights]), SMALL)


def test_integers_of_four_bits_in_a_branch() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    agraph (float[3, 4] x, bool c) => (float[3, 2] y) {
        y = If (c) <
            then_branch = t () => (float[3, 2] p) <float step = {0.5}> {
                wide = DequantizeLinear(w, step)
                p = MatMul(x, wide)
            },
            else_branch = e () => (float[3, 2] q) <int64[2] w = {1, 3}> {
                q = Gather <axis = 1> (x, w)
            }
        >
    }"""
    model = onnx.parser.parse_model(text)
    x = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
    weights = np.array([[-8, 7], [1, 2], [3, -4], [5, 6]])
    branch = model.graph.node[0].attribute[0].g
    branch.initializer.append(helper.make_tensor("w", TensorProto.INT4, (4, 2), weights.ravel()))
    for condition, wanted in ((True, x @ weights / 2), (False, x[:, [1, 3]])):
        (got,) = computed(model, {"x": x, "c": np.array(condition)})
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
