"""Compares LSTM, GRU and RNN with onnxruntime: all options, long sequences, rows of all lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

from tvm_interop import onnx_backend
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend import load_model

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _model(
    op: str,
    length: int,
    batch: int,
    hidden: int,
    *,
    directions: int = 1,
    lengths: list[int] | None = None,
    states: bool = False,
    peepholes: bool = False,
    **attrs: Any,
) -> ModelProto:
    rng = np.random.default_rng(7)
    inputs, gates = 9, _GATES[op]

    def weight(name: str, *shape: int) -> TensorProto:
        values = rng.standard_normal(shape, np.float32) * 0.3
        return helper.make_tensor(name, TensorProto.FLOAT, shape, values.ravel())

    weights = [
        weight("W", directions, gates * hidden, inputs),
        weight("R", directions, gates * hidden, hidden),
        weight("B", directions, 2 * gates * hidden),
    ]
    names = ["X", "W", "R", "B", "", "", "", ""]
    if lengths is not None:
        names[4] = "lengths"
        weights.append(helper.make_tensor("lengths", TensorProto.INT32, [batch], lengths))
    if states:
        names[5] = "h0"
        weights.append(weight("h0", directions, batch, hidden))
        if op == "LSTM":
            names[6] = "c0"
            weights.append(weight("c0", directions, batch, hidden))
    if peepholes:
        names[7] = "P"
        weights.append(weight("P", directions, 3 * hidden))
    while not names[-1]:
        names.pop()
    shapes = {
        "Y": (length, directions, batch, hidden),
        "Y_h": (directions, batch, hidden),
        **({"Y_c": (directions, batch, hidden)} if op == "LSTM" else {}),
    }
    node = helper.make_node(op, names, list(shapes), hidden_size=hidden, **attrs)
    graph = helper.make_graph(
        [node],
        op,
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, (length, batch, inputs))],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


_BOTH = {"direction": "bidirectional", "directions": 2}


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("LSTM", {"length": 200, "batch": 1, "hidden": 40}),
        ("LSTM", {"length": 5, "batch": 6, "hidden": 33, "states": True, **_BOTH}),
        ("LSTM", {"length": 4, "batch": 3, "hidden": 16, "peepholes": True, "clip": 0.2}),
        ("LSTM", {"length": 6, "batch": 3, "hidden": 5, "lengths": [2, 6, 1], **_BOTH}),
        ("LSTM", {"length": 3, "batch": 1, "hidden": 4, "input_forget": 1}),
        ("GRU", {"length": 7, "batch": 2, "hidden": 20, "linear_before_reset": 1, **_BOTH}),
        ("GRU", {"length": 7, "batch": 2, "hidden": 20, "states": True, "direction": "reverse"}),
        ("GRU", {"length": 5, "batch": 2, "hidden": 3, "lengths": [5, 3]}),
        ("RNN", {"length": 9, "batch": 5, "hidden": 17, "activations": ["Relu"]}),
        (
            "LSTM",
            {
                "length": 3,
                "batch": 1,
                "hidden": 6,
                "activations": ["HardSigmoid", "Softsign", "LeakyRelu"],
                "activation_alpha": [0.25, 0.1],
                "activation_beta": [0.4],
            },
        ),
    ],
)
def test_agrees_with_onnxruntime(op: str, options: dict[str, Any]) -> None:
    model = _model(op, **options)
    x = np.random.default_rng(3).standard_normal(
        (options["length"], options["batch"], 9), np.float32
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    wanted = session.run(None, {"X": x})
    for got, want in zip(onnx_backend.prepare(model).run([x]), wanted, strict=True):
        np.testing.assert_allclose(got, want, 1e-4, 1e-5)


def test_length_does_not_change_the_number_of_operators() -> None:
    short, long = (
        len(load_model(_model("LSTM", length, 1, 8))["main"].body.blocks[0].bindings)
        for length in (2, 500)
    )
    assert short == long


def test_unknown_activation_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match="wobble"):
        load_model(_model("RNN", 2, 1, 4, activations=["Wobble"]))


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("options", [{}, {"states": True}, {"states": True, **_BOTH}])
def test_a_sequence_of_no_steps_leaves_the_states(op: str, options: dict[str, Any]) -> None:
    model = _model(op, length=0, batch=2, hidden=4, **options)
    got = onnx_backend.prepare(model).run([np.zeros((0, 2, 9), "float32")])
    directions = options.get("directions", 1)
    assert got[0].shape == (0, directions, 2, 4)
    weights = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer
    }
    for state, name in zip(got[1:], ("h0", "c0"), strict=False):
        np.testing.assert_array_equal(state, weights.get(name, np.zeros((directions, 2, 4))))


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_lengths_above_the_number_of_steps_count_as_that_number(op: str) -> None:
    """The reverse direction begins at the end of the sequence, and not at elements after it."""
    model = _model(op, length=5, batch=2, hidden=4, lengths=[5, 5], **_BOTH)
    (given,) = [tensor for tensor in model.graph.initializer if tensor.name == "lengths"]
    model.graph.initializer.remove(given)
    model.graph.input.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, [2]))
    x = np.random.default_rng(3).standard_normal((5, 2, 9), np.float32)
    prepared = onnx_backend.prepare(model)
    wanted, got = (
        prepared.run([x, np.array(lengths, "int32")]) for lengths in ([5, 5], [6, 2**31 - 1])
    )
    for each, want in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(each, want)
