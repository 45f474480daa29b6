"""Tests models of rare forms: sparse weights, inputs that are left out, names of ONNX's domain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed, one_node

X = np.linspace(-3, 3, 6, dtype="float32").reshape(2, 3)


def assert_right(model: onnx.ModelProto) -> None:
    (got,) = computed(model, {"x": X})
    np.testing.assert_allclose(got, run_onnxruntime(model, {"x": X})["y"], rtol=1e-6)


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
@pytest.mark.parametrize("is_constant", [False, True])
def test_sparse_weights(indices: Sequence[object], is_constant: bool) -> None:
    values = numpy_helper.from_array(np.array([2.0, -7.0], "float32"), "w")
    sparse = helper.make_sparse_tensor(
        values, numpy_helper.from_array(np.array(indices), "i"), X.shape
    )
    net = nets.Net()
    net.input("x", X.shape)
    if is_constant:
        net.op("Constant", [], "w", sparse_value=sparse)
    net.op("Add", ["x", "w"], "y")
    model = net.model("y", check=False)
    if not is_constant:
        model.graph.sparse_initializer.append(sparse)
    dense = np.zeros(X.shape, "float32")
    dense[0, 1], dense[1, 2] = 2, -7
    (got,) = computed(model, {"x": X})
    np.testing.assert_allclose(got, X + dense, rtol=1e-6)


@pytest.mark.parametrize("op", ["SequenceInsert", "SequenceErase"])
def test_a_position_that_is_left_out_by_an_empty_name(op: str) -> None:
    net = nets.Net()
    net.input("x", X.shape)
    net.op("SplitToSequence", ["x"], "parts", axis=0)
    tensor = ["x"] if op == "SequenceInsert" else []
    net.op(op, ["parts", *tensor, ""], "others")
    net.op("ConcatFromSequence", ["others"], "y", axis=0)
    assert_right(net.model("y"))


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("pads", [[1, 0, 0, 2], [0, -1, 2, 1]])
def test_padding_with_a_computed_number(dtype: str, pads: Sequence[int]) -> None:
    data = (np.arange(6) % 4).reshape(2, 3).astype(dtype)
    given = [data, np.array(pads), np.array(3).astype(dtype)]
    model, feeds = one_node("Pad", given, constants=(1,))
    (got,) = computed(model, feeds)
    np.testing.assert_array_equal(got, run_onnxruntime(model, feeds)["y0"])


def test_a_dropout_in_training_that_drops_nothing() -> None:
    net = nets.Net()
    net.input("x", X.shape)
    ratio, training = (net.constant(np.array(v)) for v in (np.float32(0), True))
    net.op("Dropout", ["x", ratio, training], "y")
    assert_right(net.model("y"))


@pytest.mark.parametrize("of_nodes", ["", "ai.onnx"])
@pytest.mark.parametrize("of_opset", ["", "ai.onnx"])
@pytest.mark.parametrize("op", ["Relu", "Swish"])
def test_both_names_of_onnx_own_domain(op: str, of_nodes: str, of_opset: str) -> None:
    net = nets.Net()
    net.input("x", X.shape)
    net.op(op, ["x"], "y", domain=of_nodes)
    model = net.model("y", opset=24, check=False)
    model.opset_import[0].domain = of_opset
    (got,) = computed(model, {"x": X})
    np.testing.assert_allclose(got, run_onnxruntime(model, {"x": X})["y"], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64"])
@pytest.mark.parametrize(("limit", "bias"), [(0.5, 0.5), (1.5, 1.0)])
def test_integers_shrink_by_fractions(dtype: str, limit: float, bias: float) -> None:
    data = np.array([0, 1, 2, 3, 200 if dtype == "uint8" else -5]).astype(dtype)
    model, feeds = one_node("Shrink", [data], lambd=limit, bias=bias)
    (got,) = computed(model, feeds)
    np.testing.assert_array_equal(got, run_onnxruntime(model, feeds)["y0"])


@pytest.mark.parametrize("diagonal", [2**40, -(2**62), -3, 2])
@pytest.mark.parametrize("upper", [0, 1])
def test_triangles_of_any_diagonal(diagonal: int, upper: int) -> None:
    model, feeds = one_node("Trilu", [X, np.array(diagonal)], constants=(1,), upper=upper)
    (got,) = computed(model, feeds)
    np.testing.assert_array_equal(got, run_onnxruntime(model, feeds)["y0"])


def test_bytes_are_chosen_by_a_condition() -> None:
    first, second = (np.array(bytes_, "uint8") for bytes_ in ([3, 4, 200], [3, 4, 9]))
    steps = [np.array(step, "float32") for step in (0.1, 0.2, 0.05)]
    zeros = [np.array(zero, "uint8") for zero in (3, 5, 9)]
    given = [np.array([True, False, True]), first, steps[0], zeros[0]]
    given += [second, steps[1], zeros[1], steps[2], zeros[2]]
    constants = (2, 3, 5, 6, 7, 8)
    model, feeds = one_node("QLinearWhere", given, constants, domain="com.microsoft")
    (got,) = computed(model, feeds)
    np.testing.assert_array_equal(got, run_onnxruntime(model, feeds)["y0"])


@pytest.mark.parametrize("opset", [10, 12, 13])
@pytest.mark.parametrize("scale", ["initializer", "Constant", "Identity"])
def test_scales_of_channels_in_integer_convolutions(opset: int, scale: str) -> None:
    """The weights have as many inputs as outputs, so a wrong axis would not be noticed."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, (1, 4, 5, 5)).astype("uint8")
    steps = np.array([0.01, 0.04, 0.02, 0.09], "float32")
    net = nets.Net()
    net.input("x", image.shape, TensorProto.UINT8)
    names = {"initializer": net.constant(steps)}
    if opset >= 12:  # Earlier opsets have no `value_floats`.
        names["Constant"] = net.op("Constant", [], "constant", value_floats=steps.tolist())
    names["Identity"] = net.op("Identity", [names["initializer"]], "same")
    weights = rng.integers(-40, 40, (4, 4, 3, 3)).astype("int8")
    given = [*map(net.constant, (np.float32(0.1), np.uint8(128), weights))]
    zeros = net.constant(np.zeros(4, "int8"))
    result = [*map(net.constant, (np.float32(0.9), np.uint8(100)))]
    steps_of = names.get(scale, names["initializer"])
    net.op("QLinearConv", ["x", *given, steps_of, zeros, *result], "y", pads=[1] * 4)
    model = net.model("y", opset=opset)
    (got,) = computed(model, {"x": image})
    wanted = run_onnxruntime(model, {"x": image})["y"].astype(int)
    assert len(np.unique(wanted)) > 20
    assert abs(got.astype(int) - wanted).max() <= 1


def test_a_scan_of_opset_8_over_the_sequences_of_a_batch() -> None:
    text = """<ir_version: 8, opset_import: ["" : 8]>
    agraph (float[2, 3] s0, float[2, 4, 3] x) => (float[2, 3] s, float[2, 4, 3] y) {
        s, y = Scan ("", s0, x) <
            num_scan_inputs = 1, directions = [1],
            body = b (float[3] a, float[3] e) => (float[3] n, float[3] o) {
                n = Add(a, e)
                o = Tanh(n)
            }
        >
    }"""
    rng = np.random.default_rng(5)
    feeds = {name: rng.standard_normal(shape).astype("float32")
             for name, shape in (("s0", (2, 3)), ("x", (2, 4, 3)))}  # fmt: skip
    model = onnx.parser.parse_model(text)
    wanted = run_onnxruntime(model, feeds)
    for got, name in zip(computed(model, feeds), "sy", strict=True):
        np.testing.assert_allclose(got, wanted[name], rtol=1e-6)


def test_scales_of_the_columns_of_each_matrix_and_of_rows() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.integers(0, 9, (2, 3, 4)).astype("uint8"), rng.integers(-9, 9, (2, 4, 5))
    steps, zeros = rng.uniform(0.1, 1, (2, 1, 5)).astype("float32"), rng.integers(-3, 3, (2, 1, 5))
    given = [a, b.astype("int8"), np.uint8(2), zeros.astype("int8")]
    model, feeds = one_node("MatMulInteger", given, (1, 2, 3))
    np.testing.assert_array_equal(
        computed(model, feeds), list(run_onnxruntime(model, feeds).values())
    )
    given = [
        a,
        np.float32(0.1),
        np.uint8(2),
        given[1],
        steps,
        given[3],
        np.float32(0.3),
        np.uint8(9),
    ]
    model, feeds = one_node("QLinearMatMul", given, range(1, 8))
    np.testing.assert_array_equal(
        computed(model, feeds), list(run_onnxruntime(model, feeds).values())
    )
    # onnxruntime takes no scales of rows.
    rows = np.array([0.5, 0.25, 2.0], "float32")
    given = [a[0], rows, np.zeros(3, "uint8"), given[3][0], np.float32(1), np.int8(0)]
    model, feeds = one_node("QLinearMatMul", [*given, np.float32(1), np.uint8(128)], range(1, 8))
    exact = rows[:, None] * (a[0].astype(float) @ b[0]) + 128
    np.testing.assert_array_equal(computed(model, feeds)[0], np.round(exact).clip(0, 255))


def test_nodes_that_no_output_needs() -> None:
    """They are left out, even if they could not be compiled. The branches need `half`."""
    net = nets.Net()
    net.input("x", X.shape)
    net.op("Bernoulli", ["x"], "drawn")
    net.op("NonZero", [net.op("Neg", ["drawn"], "negative")], "places")
    net.op("Mul", ["x", net.constant(np.float32(0.5))], "half")
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["half"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, X.shape)],
        )
        for name, op in (("then", "Abs"), ("else", "Neg"))
    }
    condition = net.op("Equal", [net.op("Shape", ["x"], "shape")] * 2, "same")
    first = net.op("Gather", [condition, net.constant(np.array(0))], "first")
    net.op("If", [first], "y", **branches)
    assert_right(net.model("y", check=False))


def test_nodes_that_are_not_in_order() -> None:
    """onnxruntime's converter to float16 gives such models."""
    net = nets.Net()
    net.input("x", X.shape)
    net.op("Neg", ["x"], "a")
    net.op("Exp", ["a"], "b")
    net.op("Mul", ["a", "b"], "y")
    model = net.model("y")
    nodes = [*model.graph.node][::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert_right(model)
