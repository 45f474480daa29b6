"""Cases of LSTM, GRU and RNN: directions, layouts, states, lengths and activations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..case import Case, numbers, versions

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_LENGTH, _BATCH, _INPUTS, _HIDDEN = 5, 3, 4, 6


def recurrent() -> Iterator[Case]:
    """All cases of this module."""
    for op in _GATES:
        for direction in ("forward", "reverse", "bidirectional"):
            yield from _of_direction(op, direction)
        yield from _activations(op)


def _of_direction(op: str, direction: str) -> Iterator[Case]:
    for opset, states, lengths in itertools.product(versions(op), (False, True), (False, True)):
        yield _case(op, direction, states, lengths, opset=opset)
    yield _case(op, direction, False, False, bias=False)
    yield _case(op, direction, True, True, clip=0.3)
    yield _case(op, direction, True, False, dtype="float64")
    yield _case(op, direction, True, True, length=1)
    if op == "GRU":
        for lengths in (False, True):
            yield _case(op, direction, True, lengths, linear_before_reset=1)
            yield _case(op, direction, True, lengths, linear_before_reset=1, bias=False)
    if op == "LSTM":
        for peepholes, coupled in ((True, 0), (False, 1), (True, 1)):
            for lengths in (False, True):
                more = {"input_forget": coupled} if coupled else {}
                yield _case(op, direction, True, lengths, peepholes=peepholes, **more)


def _activations(op: str) -> Iterator[Case]:
    number = {"LSTM": 3, "GRU": 2, "RNN": 1}[op]
    for name, alpha, beta in (
        ("Relu", None, None),
        ("Sigmoid", None, None),
        ("Tanh", None, None),
        ("Affine", 0.5, 0.1),
        ("LeakyRelu", 0.1, None),
        ("ThresholdedRelu", 0.2, None),
        ("ScaledTanh", 0.8, 0.7),
        ("HardSigmoid", 0.3, 0.4),
        ("Elu", 0.9, None),
        ("Softsign", None, None),
        ("Softplus", None, None),
    ):
        more: dict[str, Any] = {"activations": [name] * number}
        if alpha is not None:
            more["activation_alpha"] = [alpha] * number
        if beta is not None:
            more["activation_beta"] = [beta] * number
        yield _case(op, "forward", True, False, **more)


def _case(
    op: str,
    direction: str,
    states: bool,
    lengths: bool,
    *,
    opset: int = 22,
    dtype: str = "float32",
    bias: bool = True,
    peepholes: bool = False,
    length: int = _LENGTH,
    **attributes: Any,
) -> Case:
    number, gates = 2 if direction == "bidirectional" else 1, _GATES[op]
    weights = [
        numbers(dtype, number, gates * _HIDDEN, _INPUTS, seed=1) * np.array(0.5, dtype),
        numbers(dtype, number, gates * _HIDDEN, _HIDDEN, seed=2) * np.array(0.5, dtype),
    ]
    inputs: list[np.ndarray | None] = [numbers(dtype, length, _BATCH, _INPUTS), *weights]
    inputs.append(numbers(dtype, number, 2 * gates * _HIDDEN, seed=3) if bias else None)
    some = np.array([min(length, n) for n in (5, 2, 3)], "int32")
    inputs.append(some if lengths else None)
    initial = (numbers(dtype, number, _BATCH, _HIDDEN, seed=s) for s in (4, 5))
    for _, state in zip(range(2 if op == "LSTM" else 1), initial, strict=False):
        inputs.append(state if states else None)
    if peepholes:
        inputs.append(numbers(dtype, number, 3 * _HIDDEN, seed=6))
    while inputs[-1] is None:
        inputs.pop()
    named = {"hidden_size": _HIDDEN, "direction": direction, **attributes}
    outputs = 3 if op == "LSTM" else 2
    return Case(op, inputs, named, opset=opset, outputs=outputs, sums=True, tolerance=1e-4)
