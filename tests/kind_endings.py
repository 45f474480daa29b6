"""Computes biases, sums, activations and roundings of operators in NumPy."""

from __future__ import annotations

import math

import numpy as np

from tvm_interop.program.library_op import LibraryOp

_ERF = np.vectorize(math.erf)

_ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "swish": lambda x: x / (1 + np.exp(-x)),
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "gelu": lambda x: x / 2 * (1 + _ERF(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def ended(op: LibraryOp, result: np.ndarray, more: list[np.ndarray]) -> np.ndarray:
    """`result` after the bias, the sum and the activation. `more` has bias and tensor to add."""
    more = list(more)
    if op.has_bias:
        axis = op.channel_axis
        bias = more.pop(0)
        result = result + bias.reshape(-1, *(1,) * (result.ndim - 1 - axis))
    if op.has_sum:
        result = result + more.pop(0)
    return activated(op, result)


def activated(op: LibraryOp, result: np.ndarray) -> np.ndarray:
    """`result` after the activation."""
    fields = op.fields()
    if fields["activation"] == "clip":
        return np.clip(result, fields["clip_low"], fields["clip_high"])
    return np.asarray(_ACTIVATIONS[fields["activation"]](result))


def rounded(op: LibraryOp, total: np.ndarray, scale: np.ndarray, *more: np.ndarray) -> np.ndarray:
    """The result of `op` from `total`, its sums of products of integers, with channels last."""
    given = list(more)
    result = total * scale
    if op.has_bias:
        result = result + given.pop(0)
    return integers(op, result, given[0] if given else None)


def integers(op: LibraryOp, result: np.ndarray, added: np.ndarray | None = None) -> np.ndarray:
    """`result` after the steps in the description of `op`, and after its activation.

    For an output of integers, the result is rounded and clipped to the type.
    """
    for kind, a, b in op.fields()["steps"]:
        if kind == "clip":
            result = np.clip(result, a, b)
        elif kind == "round":
            result = np.rint(result)
        elif kind == "linear":
            result = result * a + b
        else:
            assert added is not None
            result = result + added
    result = activated(op, result)
    if op.stored_types[-1] == "float32":
        return result
    bounds = np.iinfo(op.stored_types[-1])
    return np.clip(np.rint(result), bounds.min, bounds.max)
