"""Tests ONNX's operators of sequences and optional values, and `Compress`, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tvm_interop.onnxruntime as ort
from tests.masked_nets import theirs
from tests.nets import Net
from tests.one_node import computed
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend.load import load_model

ROWS, COLUMNS = 6, 4
X = {"x": np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)}


def checked(made: onnx.ModelProto) -> None:
    """Check that our results are equal to onnxruntime's results."""
    for ours, wanted in zip(computed(made, X), theirs(made, X), strict=True):
        np.testing.assert_array_equal(ours, wanted, strict=True)


def split(parts: np.ndarray | None, places: list[int], **attributes: int) -> onnx.ModelProto:
    """A model that splits `x`, and returns the number of parts and the parts at `places`."""
    net = Net()
    net.input("x", (ROWS, COLUMNS))
    sizes = [] if parts is None else [net.constant(parts)]
    net.op("SplitToSequence", ["x", *sizes], "parts", **attributes)
    for i, place in enumerate(places):
        at = net.constant(np.array(place))
        net.op("Neg", [net.op("SequenceAt", ["parts", at], f"part{i}")], f"y{i}")
    net.op("SequenceLength", ["parts"], "number")
    return net.model("number", *(f"y{i}" for i in range(len(places))), check=False)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 9])
@pytest.mark.parametrize("axis", [0, -1])
def test_the_last_of_several_parts_may_be_smaller(size: int, axis: int) -> None:
    checked(split(np.array(size), [0, -1], axis=axis))


def test_parts_of_given_sizes() -> None:
    checked(split(np.array([1, 3, 2]), [0, 1, -1, -3]))
    checked(split(np.array([6]), [0]))
    checked(split(np.array([2, 2], np.int32), [1], axis=1))


@pytest.mark.parametrize("keepdims", [0, 1])
def test_parts_of_one_row(keepdims: int) -> None:
    checked(split(None, [0, -2, 5], keepdims=keepdims))


def test_a_position_that_does_not_exist_is_refused() -> None:
    for place in (2, -3):
        with pytest.raises(UnsupportedModelError, match=f"its position {place} is out of range"):
            load_model(split(np.array(3), [place]))


def test_sizes_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"sizes \[1, 3\] do not add up to the 6"):
        load_model(split(np.array([1, 3]), [0]))
    with pytest.raises(UnsupportedModelError, match="the size of the parts must be at least 1"):
        load_model(split(np.array(0), [0]))


def test_without_an_optional_value_there_is_no_element() -> None:
    net = Net()
    net.input("x", (ROWS, COLUMNS))
    net.op("OptionalHasElement", [], "none")
    net.op("OptionalHasElement", ["x"], "one")
    net.op("Neg", ["x"], "y")
    checked(net.model("none", "one", "y", opset=18, check=False))


@pytest.mark.parametrize(
    "condition", [[1, 0, 0, 1, 1, 0], [0, 1], [0, 0, 0], [1, 1, 1, 1, 1, 1]], ids=str
)
@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_rows_are_taken_where_a_constant_is_true(condition: list[int], axis: int | None) -> None:
    kept = condition if axis in (0, None) else condition[:COLUMNS]
    net = Net()
    net.input("x", (ROWS, COLUMNS))
    named = {} if axis is None else {"axis": axis}
    net.op("Compress", ["x", net.constant(np.array(kept, bool))], "rows", **named)
    checked(net.model(net.op("Neg", ["rows"], "y"), check=False))


def test_rows_are_taken_where_a_computed_condition_is_true() -> None:
    net = Net()
    net.input("x", (ROWS, COLUMNS))
    least = net.op("ReduceMin", ["x"], "least", axes=[1], keepdims=0)
    kept = net.op("Greater", [least, net.constant(np.float32(-1))], "kept")
    checked(net.model(net.op("Compress", ["x", kept], "y", axis=0), check=False))


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("is_sorted", [0, 1])
def test_different_numbers_of_a_constant(axis: int | None, is_sorted: int) -> None:
    net = Net()
    net.input("x", (ROWS, COLUMNS))
    given = net.constant(np.array([[3, 1, 3], [2, 2, 2], [3, 1, 3]]))
    names = ["numbers", "first", "places", "counts"]
    named = {} if axis is None else {"axis": axis}
    net.op("Unique", [given], *names, sorted=is_sorted, **named)
    checked(net.model(*names, check=False))


def sequences(rows: int | str, *outputs: str) -> onnx.ModelProto:
    """A model whose outputs are tensors and sequences."""
    net = Net()
    net.input("x", (rows, COLUMNS))
    net.op("SplitToSequence", ["x", net.constant(np.array(3))], "parts", axis=1)
    net.op("SequenceConstruct", ["x", net.op("Neg", ["x"], "y"), "x"], "same")
    net.op(
        "SequenceErase", [net.op("Identity", ["same"], "copied"), net.constant(np.array(0))], "two"
    )
    net.op("SequenceEmpty", [], "none")
    net.op("SequenceConstruct", [net.constant(np.zeros((2, 0), np.float32))] * 2, "no_numbers")
    net.op("SequenceLength", ["no_numbers"], "number")
    model = net.model(*outputs, check=False)
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    types = {"y": tensor, "number": helper.make_tensor_type_proto(TensorProto.INT64, [])}
    for output in model.graph.output:
        output.type.CopyFrom(types.get(output.name, helper.make_sequence_type_proto(tensor)))
    return model


@pytest.mark.parametrize("rows", [ROWS, "rows"])
def test_sequences_as_outputs(rows: int | str) -> None:
    model = sequences(rows, "parts", "y", "none", "two", "number")
    session = ort.InferenceSession(
        model.SerializeToString(), scheduler="sequential", latency_db=":memory:"
    )
    other = onnxruntime.InferenceSession(model.SerializeToString())
    for names in (None, ["two"], ["number", "y", "parts", "none", "parts"]):
        for got, wanted in zip(session.run(names, X), other.run(names, X), strict=True):
            if not isinstance(wanted, list):
                got, wanted = [got], [wanted]
            for one, two in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(one, two, strict=True)
    for info, wanted in zip(session.get_outputs(), other.get_outputs(), strict=True):
        assert (info.name, info.type) == (wanted.name, wanted.type)
    assert "a sequence of float32" in str(session.outputs[0])


def test_tensors_of_a_sequence_are_outputs_of_the_compiled_model() -> None:
    names = load_model(sequences(ROWS, "two", "y"))["main"].attrs["tvm_interop.output_names"]
    assert list(map(str, names)) == ["two[0]", "two[1]", "y"]
    with pytest.raises(UnsupportedModelError, match="sequences without tensors"):
        load_model(sequences(ROWS, "none"))
    model = sequences(ROWS, "two", "y")
    model.graph.input[0].name = model.graph.node[0].input[0] = "two[0]"
    for node in model.graph.node:
        node.input[:] = ["two[0]" if name == "x" else name for name in node.input]
    with pytest.raises(UnsupportedModelError, match=r"tensors are called `two\[0\]`.*rename"):
        load_model(model)
    row = helper.make_map_type_proto(TensorProto.INT64, model.graph.output[1].type)
    model.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(row))
    with pytest.raises(UnsupportedModelError, match="is a sequence_type of map_type"):
        load_model(model)
