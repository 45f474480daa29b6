"""Tests models of rare forms: sparse weights, inputs that are left out, names of ONNX's domain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

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
