"""Converts the LSTM, GRU and RNN nodes of ONNX, for which TVM's importer has no converter.

Each direction of a node becomes two operators. One is a matrix product of the whole sequence with
the input weights. The other is a kernel that goes through the sequence step by step and updates the
state. So neither the number of operators nor the compile time depends on the length of the
sequence. The two directions of a bidirectional node do not depend on each other, so a schedule can
run them concurrently.

Source: the operators' definitions in the ONNX specification (`LSTM`, `GRU`, `RNN`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..errors import UnsupportedModelError
from ..lowering.static_shape import known_shape
from .constants import text_of
from .misfit import MisfitError
from .recurrent_kernel import Activation, Recurrence, recurrent_kernel

RECURRENT = ("GRU", "LSTM", "RNN")
"""The operators that `import_recurrent` converts."""

_DEFAULT_ACTIVATIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh")}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def import_recurrent(
    bb: relax.BlockBuilder, op_type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> relax.Tuple:
    """Return the outputs of a recurrent node: `Y`, `Y_h` and, for an LSTM, `Y_c`.

    Parameters
    ----------
    bb: the block builder that emits the operators.
    op_type: `LSTM`, `GRU` or `RNN`.
    inputs: `X`, `W`, `R`, `B`, `sequence_lens`, `initial_h` and, for an LSTM, `initial_c` and `P`.
        An input that the node leaves out is None, or missing at the end.
    attrs: the node's attributes.

    Raises
    ------
    UnsupportedModelError
        The node has an attribute or a dtype that no kernel supports.
    """
    return _Importer(bb, op_type, inputs, attrs).outputs()


class _Importer:
    def __init__(
        self,
        bb: relax.BlockBuilder,
        op_type: str,
        inputs: Sequence[Any],
        attrs: Mapping[str, Any],
    ) -> None:
        self._bb = bb
        self._op_type = op_type
        self._attrs = attrs
        given = [*inputs, *[None] * (8 - len(inputs))]
        x, self._w, self._r, self._b, self._lengths, self._h0, self._c0, self._peepholes = given
        if x.ty.ndim != 3:
            raise MisfitError(f"its input `X` has {x.ty.ndim} dimensions, and ONNX requires 3")
        self._batch_first = bool(attrs.get("layout", 0))
        # The lines below give X the shape (length, batch, inputs), and the states the shape
        # (directions, batch, hidden).
        self._x = self._swap(x) if self._batch_first else x
        if self._batch_first:
            self._h0 = None if self._h0 is None else self._swap(self._h0)
            self._c0 = None if self._c0 is None else self._swap(self._c0)
        self._length, self._batch, _ = (int(size) for size in self._x.ty.shape)
        self._directions, self._hidden = (int(self._r.ty.shape[axis]) for axis in (0, 2))
        self._dtype = str(self._x.ty.dtype)
        if self._dtype not in ("float32", "float64"):
            raise UnsupportedModelError(
                f"`{op_type}` of {self._dtype}: recurrent operators run in float32 or float64; "
                "export the model in float32"
            )
        self._activations = _activations(op_type, attrs, self._directions)
        self._check_shapes()

    def _check_shapes(self) -> None:
        """Refuse weights and states of other shapes than ONNX requires.

        Raises
        ------
        MisfitError: the message names the input.
        """
        directions, hidden = self._directions, self._hidden
        rows = _GATES[self._op_type] * hidden
        state = (directions, self._batch, hidden)
        for name, given, wanted in (
            ("W", self._w, (directions, rows, int(self._x.ty.shape[2]))),
            ("R", self._r, (directions, rows, hidden)),
            ("B", self._b, (directions, 2 * rows)),
            ("sequence_lens", self._lengths, (self._batch,)),
            ("initial_h", self._h0, state),
            ("initial_c", self._c0, state),
            ("P", self._peepholes, (directions, 3 * hidden)),
        ):
            shape = wanted if given is None else known_shape(given)
            if shape != wanted:
                raise MisfitError(
                    f"its input `{name}` has the shape {shape}, and ONNX requires {wanted}"
                )

    def outputs(self) -> relax.Tuple:
        directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
        name = text_of(self._attrs.get("direction", "forward"))
        if name not in directions or len(directions[name]) != self._directions:
            raise UnsupportedModelError(
                f"`{self._op_type}` has direction `{name}` and weights for {self._directions} "
                f"direction(s); known are {', '.join(f'`{known}`' for known in directions)}"
            )
        if self._length == 0:
            return self._nothing()
        # `results` is indexed by output, then by direction.
        results = list(
            zip(*(self._one(d, back) for d, back in enumerate(directions[name])), strict=True)
        )
        sequence = self._stack(results[0], axis=1)
        states = [self._stack(result, axis=0) for result in results[1:]]
        if self._batch_first:
            sequence = self._emit(relax.op.permute_dims(sequence, [2, 0, 1, 3]))
            states = [self._swap(state) for state in states]
        return relax.Tuple([sequence, *states])

    def _nothing(self) -> relax.Tuple:
        """Return the outputs for a sequence without steps: an empty `Y` and unchanged states."""
        shape = [0, self._directions, self._batch, self._hidden]
        if self._batch_first:
            shape = [self._batch, 0, *shape[1::2]]
        given = [self._h0, self._c0][: 2 if self._op_type == "LSTM" else 1]
        zeros = np.zeros((self._directions, self._batch, self._hidden))
        states = [relax.const(zeros, self._dtype) if s is None else s for s in given]
        if self._batch_first:
            states = [self._swap(state) for state in states]
        return relax.Tuple([relax.const(np.empty(shape), self._dtype), *states])

    def _one(self, direction: int, reverse: bool) -> list[relax.Expr]:
        """Return the hidden state at each step, and the states after the last step, for one
        direction.

        The hidden states of all steps have the shape (length, batch, hidden). Each state after the
        last step has the shape (batch, hidden).
        """
        gates = _GATES[self._op_type]
        # ONNX's `B` is two vectors joined: the biases of the inputs, followed by the recurrent
        # biases.
        bias = self._of(self._b, direction)
        after_reset = self._op_type == "GRU" and bool(self._attrs.get("linear_before_reset", 0))
        weights = relax.op.permute_dims(self._of(self._w, direction), [1, 0])
        inputs = relax.op.reshape(self._x, [self._length * self._batch, -1])
        product = relax.op.matmul(inputs, weights)
        arguments = [relax.op.permute_dims(self._of(self._r, direction), [1, 0])]
        if bias is not None:
            of_inputs, of_state = (
                relax.op.strided_slice(
                    bias, [0], [i * gates * self._hidden], [(i + 1) * gates * self._hidden]
                )
                for i in (0, 1)
            )
            if after_reset:
                # With `linear_before_reset`, the kernel of a GRU adds the recurrent bias, because
                # the reset gate scales this bias too.
                arguments.append(of_state)
            else:
                of_inputs = relax.op.add(of_inputs, of_state)
            product = relax.op.add(product, of_inputs)
        elif after_reset:
            arguments.append(relax.const(np.zeros(gates * self._hidden), self._dtype))
        projected = relax.op.reshape(product, [self._length, self._batch, gates * self._hidden])
        is_lstm = self._op_type == "LSTM"
        arguments.append(self._state(self._h0, direction))
        if is_lstm:
            arguments.append(self._state(self._c0, direction))
            if self._peepholes is not None:
                arguments.append(self._of(self._peepholes, direction))
        if self._lengths is not None:
            arguments.append(relax.op.astype(self._lengths, "int32"))
        clip = float(self._attrs.get("clip", 0.0))
        kernel = recurrent_kernel(
            Recurrence(
                cell=self._op_type,
                length=self._length,
                batch=self._batch,
                hidden=self._hidden,
                dtype=self._dtype,
                activations=self._activations[direction],
                reverse=reverse,
                clip=clip if clip > 0 else math.inf,
                couple_gates=bool(self._attrs.get("input_forget", 0)),
                linear_before_reset=after_reset,
                has_peepholes=is_lstm and self._peepholes is not None,
                has_lengths=self._lengths is not None,
            )
        )
        var = self._bb.add_func(kernel, f"{self._op_type.lower()}_sequence")
        sizes: list[tuple[int, ...]] = [(self._length, self._batch, self._hidden)]
        sizes += [(self._batch, self._hidden)] * (2 if is_lstm else 1)
        types = [relax.TensorType(size, self._dtype) for size in sizes]
        arguments = [self._emit(argument) for argument in (projected, *arguments)]
        result = self._emit(relax.call_tir(var, arguments, types))
        return [self._emit(relax.TupleGetItem(result, i)) for i in range(len(types))]

    def _state(self, given: Any, direction: int) -> relax.Expr:
        if given is None:
            return relax.const(np.zeros((self._batch, self._hidden)), self._dtype)
        return self._of(given, direction)

    def _of(self, stacked: Any, direction: int) -> Any:
        """Return the slice of `stacked` for one direction, without the axis of directions; None if
        `stacked` is None.
        """
        if stacked is None:
            return None
        if self._directions == 1:
            return relax.op.squeeze(stacked, 0)
        sliced = relax.op.strided_slice(stacked, [0], [direction], [direction + 1])
        return relax.op.squeeze(sliced, 0)

    def _stack(self, results: Sequence[relax.Expr], axis: int) -> relax.Expr:
        parts = [self._emit(relax.op.expand_dims(result, axis)) for result in results]
        return parts[0] if len(parts) == 1 else self._emit(relax.op.concat(parts, axis))

    def _swap(self, value: relax.Expr) -> relax.Expr:
        return self._emit(relax.op.permute_dims(value, [1, 0, 2]))

    def _emit(self, value: relax.Expr) -> relax.Expr:
        return (
            self._bb.emit(value) if isinstance(value, (relax.Call, relax.TupleGetItem)) else value
        )


@dataclass(frozen=True)
class _Rule:
    """An activation function, and the default values of its parameters `alpha` and `beta`."""

    alpha: float
    beta: float
    apply: Callable[[Any, float, float], Any]


def _sigmoid(x: Any, *_: float) -> Any:
    return tirx.sigmoid(x)


def _tanh(x: Any, *_: float) -> Any:
    return tirx.tanh(x)


def _const(x: Any, value: float) -> Any:
    return tirx.const(value, x.ty.dtype)


def _relu(x: Any, *_: float) -> Any:
    return tirx.max(x, _const(x, 0))


def _leaky_relu(x: Any, alpha: float, _: float) -> Any:
    return tirx.Select(x < _const(x, 0), _const(x, alpha) * x, x)


def _thresholded_relu(x: Any, alpha: float, _: float) -> Any:
    return tirx.Select(x > _const(x, alpha), x, _const(x, 0))


def _hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    line = _const(x, alpha) * x + _const(x, beta)
    return tirx.max(tirx.min(line, _const(x, 1)), _const(x, 0))


def _elu(x: Any, alpha: float, _: float) -> Any:
    return tirx.Select(x < _const(x, 0), _const(x, alpha) * (tirx.exp(x) - _const(x, 1)), x)


def _softsign(x: Any, *_: float) -> Any:
    return x / (tirx.abs(x) + _const(x, 1))


def _softplus(x: Any, *_: float) -> Any:
    # This formula equals log(1 + exp(x)), but does not overflow for large x.
    return tirx.max(x, _const(x, 0)) + tirx.log(_const(x, 1) + tirx.exp(-tirx.abs(x)))


_RULES = {
    "affine": _Rule(1, 0, lambda x, alpha, beta: _const(x, alpha) * x + _const(x, beta)),
    "elu": _Rule(1, 0, _elu),
    "hardsigmoid": _Rule(0.2, 0.5, _hard_sigmoid),
    "leakyrelu": _Rule(0.01, 0, _leaky_relu),
    "relu": _Rule(0, 0, _relu),
    "scaledtanh": _Rule(1, 1, lambda x, a, b: _const(x, a) * tirx.tanh(_const(x, b) * x)),
    "sigmoid": _Rule(0, 0, _sigmoid),
    "softplus": _Rule(0, 0, _softplus),
    "softsign": _Rule(0, 0, _softsign),
    "tanh": _Rule(0, 0, _tanh),
    "thresholdedrelu": _Rule(1, 0, _thresholded_relu),
}
_WITH_ALPHA = ("affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu")
_WITH_BETA = ("affine", "hardsigmoid", "scaledtanh")


def _activations(
    op_type: str, attrs: Mapping[str, Any], directions: int
) -> list[tuple[Activation, ...]]:
    """Return the activations of each direction, in ONNX's order: `f`, `g` and, for an LSTM, `h`."""
    usual = _DEFAULT_ACTIVATIONS.get(op_type, ("tanh",))
    names = [text_of(name).lower() for name in attrs.get("activations", usual * directions)]
    if len(names) != len(usual) * directions:
        raise UnsupportedModelError(
            f"`{op_type}` names {len(names)} activations and needs {len(usual)} for each of its "
            f"{directions} direction(s)"
        )
    # The list `activation_alpha` has entries only for activations that use an alpha. In the same
    # way, the list `activation_beta` has entries only for activations that use a beta.
    alphas, betas = list(attrs.get("activation_alpha", ())), list(attrs.get("activation_beta", ()))
    found: list[Activation] = []
    for name in names:
        if name not in _RULES:
            raise UnsupportedModelError(
                f"`{op_type}` has the activation `{name}`; known are {', '.join(_RULES)}"
            )
        rule = _RULES[name]
        alpha = alphas.pop(0) if name in _WITH_ALPHA and alphas else rule.alpha
        beta = betas.pop(0) if name in _WITH_BETA and betas else rule.beta
        found.append(_bound(rule, float(alpha), float(beta)))
    return [tuple(found[d * len(usual) : (d + 1) * len(usual)]) for d in range(directions)]


def _bound(rule: _Rule, alpha: float, beta: float) -> Activation:
    return lambda x: rule.apply(x, alpha, beta)
