"""Tests that unsupported inputs of operators are refused, and tests constants of float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.one_node import computed, one_node
from tvm_interop.errors import UnsupportedModelError, first_line
from tvm_interop.frontend import load_model
from tvm_interop.frontend.misfit import MisfitError


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Max", "LessOrEqual"])
def test_arithmetic_of_booleans_is_refused(op_type: str) -> None:
    marks = np.array([True, False])
    model, _ = one_node(op_type, [marks, ~marks])
    with pytest.raises(UnsupportedModelError, match=f"`{op_type}`.*booleans.*cast them") as caught:
        load_model(model)
    # A branch of an `If` that raises a `MisfitError` would be left out of the model.
    assert not isinstance(caught.value, MisfitError)


@pytest.mark.parametrize(
    ("op_type", "second"),
    [("TopK", np.array([1])), ("CumSum", np.array(0)), ("Gather", np.array(0)), ("Softmax", None)],
)
def test_an_axis_of_a_tensor_without_dimensions_is_refused(
    op_type: str, second: np.ndarray | None
) -> None:
    inputs = [np.float32(2.5), *([] if second is None else [second])]
    outputs = 2 if op_type == "TopK" else 1
    model, _ = one_node(op_type, inputs, range(1, len(inputs)), outputs=outputs)
    with pytest.raises(MisfitError, match=f"`{op_type}`.*no dimensions.*at least one"):
        load_model(model)


def test_a_node_without_a_required_output_is_refused() -> None:
    model, _ = one_node("TopK", [np.ones(3, np.float32), np.array([1])], [1])
    with pytest.raises(UnsupportedModelError, match=r"is not valid ONNX: .*TopK"):
        load_model(model)


def test_a_tensor_without_dimensions_is_reduced_to_itself() -> None:
    model, feeds = one_node("ReduceProd", [np.float32(2.5), np.array([0])], [1], keepdims=0)
    assert computed(model, feeds, time_budget=0)[0] == np.float32(2.5)


_RECURRENT = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _recurrent(op_type: str, dtype: str) -> list[np.ndarray | None]:
    draw, gates = np.random.default_rng(0), _RECURRENT[op_type]
    shapes = [(5, 2, 4), (1, 3 * gates, 4), (1, 3 * gates, 3), (1, 6 * gates)]
    return [draw.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("op_type", list(_RECURRENT))
def test_recurrent_operators_of_float64_start_with_zeros(op_type: str) -> None:
    found = []
    for dtype in ("float32", "float64"):
        model, feeds = one_node(op_type, _recurrent(op_type, dtype), outputs=2, hidden_size=3)
        found.append(computed(model, feeds, time_budget=0))
        assert found[-1][0].dtype == dtype
    for single, double in zip(*found, strict=True):
        np.testing.assert_allclose(single, double, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("name", "at", "shape"),
    [("W", 1, (1, 12, 8)), ("R", 2, (1, 9, 3)), ("B", 3, (1, 12)), ("initial_c", 6, (1, 2, 6))],
)
def test_recurrent_inputs_of_wrong_shapes_are_refused(
    name: str, at: int, shape: tuple[int, ...]
) -> None:
    inputs = [*_recurrent("LSTM", "float32"), None, *[np.zeros((1, 2, 3), np.float32)] * 2]
    inputs[at] = np.zeros(shape, np.float32)
    model, _ = one_node("LSTM", inputs, hidden_size=3)
    with pytest.raises(MisfitError, match=f"input `{name}` has the shape .*ONNX requires"):
        load_model(model)


def test_transposed_convolutions_of_float64() -> None:
    draw = np.random.default_rng(0)
    x, weights = draw.standard_normal((1, 4, 5, 5)), draw.standard_normal((4, 3, 4, 4))
    model, feeds = one_node("ConvTranspose", [x, weights], [1], strides=[2, 2], pads=[1, 1, 1, 1])
    (want,) = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_allclose(computed(model, feeds, time_budget=0)[0], want, 1e-12, 1e-12)


def test_definitions_of_operators_are_left_out_of_messages() -> None:
    shapes = np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)
    model, _ = one_node("Where", [np.ones((2, 1), bool), *shapes])
    with pytest.raises(UnsupportedModelError, match=r"`relax\.where`") as caught:
        load_model(model)
    assert "ir.Op(" not in str(caught.value)
    assert first_line(ValueError("\n one\ntwo")) == "one"
