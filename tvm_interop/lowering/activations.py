"""Recognises activation functions by their values, and not by the operators that compute them.

A chain of element-wise operators on one tensor and on constant numbers is a function of one number.
This module computes the function for many arguments. If all results agree with those of an
activation that kernel libraries support, the chain computes this activation. So `x * sigmoid(x)`,
`x / (1 + exp(-x))` and SiLU are all recognised as the same activation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from .static_shape import static_shape

_Array = npt.NDArray[np.float64]

MOST_OPERATORS = 12
"""The largest number of operators in a chain that is compared with an activation. No known model
needs more operators for one activation.
"""
_TOLERANCE = 2e-6
"""Two results are equal if their relative difference is at most this number.

For a result below 1, this is the limit of the absolute difference, except for a clip. Constants
such as 1/6 are rounded to float32, so results are not exact.
"""
_EXACT = 1e-7
"""The largest relative difference at 0 and far from 0, if the activation is 0, 1 or -1 there.

Otherwise small numbers could be lost that a model adds on purpose, as in `log(sigmoid(x) + 1e-6)`.
"""
_VANISHING = 1e-30
"""Results that are smaller than this number are taken to be 0."""
_LARGE = 1e30
"""The bound that is set for a clip that has no lower bound or no upper bound."""


@dataclass(frozen=True)
class Activation:
    """An activation function of one number.

    Attributes
    ----------
    name: the function's name, as in `LibraryOp.activation`.
    low, high: the bounds of the function `clip`.
    """

    name: str
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class ActivationChain:
    """Operators that compute an activation of a tensor.

    Attributes
    ----------
    vars: the variables that the operators define, in order. Operators outside of the chain read
        only the last variable.
    activation: the activation that the operators compute.
    """

    vars: tuple[relax.Var, ...]
    activation: Activation


_erf: Callable[[_Array], _Array] = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: _Array) -> _Array:
    result: _Array = np.where(x < 0, np.exp(np.minimum(x, 0)), 1.0) / (1 + np.exp(-np.abs(x)))
    return result


def _gelu(x: _Array) -> _Array:
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _gelu_tanh(x: _Array) -> _Array:
    result: _Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return result


_KNOWN: dict[str, Callable[[_Array], _Array]] = {
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "swish": lambda x: x * _sigmoid(x),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
"""The activations by their names in `LibraryOp.activation`, except ReLU and clip.

A chain that computes ReLU or clip is recognised by the bounds of its results.
"""

_OPERATORS: dict[str, Callable[..., _Array]] = {
    "relax.abs": np.abs,
    "relax.add": np.add,
    "relax.clip": np.clip,
    "relax.divide": np.divide,
    "relax.erf": _erf,
    "relax.exp": np.exp,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
    "relax.multiply": np.multiply,
    "relax.negative": np.negative,
    "relax.nn.gelu": _gelu,
    "relax.nn.gelu_tanh": _gelu_tanh,
    "relax.nn.relu": lambda x: np.maximum(x, 0),
    "relax.nn.silu": lambda x: x * _sigmoid(x),
    "relax.power": np.power,
    "relax.sigmoid": _sigmoid,
    "relax.sqrt": np.sqrt,
    "relax.square": np.square,
    "relax.subtract": np.subtract,
    "relax.tanh": np.tanh,
}
"""The NumPy function of each element-wise operator."""

_SIZES = np.array(
    [1e-20, 1e-12, 1e-8, 1e-6, 1e-4, 20, 50, 200, 1e4, 1e5, 1e6, 1e8, 1e12, 1e20, 1e30, 1e37, 1e38]
)
_SAMPLES = np.concatenate([np.linspace(-12, 12, 481), [0.0], _SIZES, -_SIZES])
"""The arguments for which a chain is compared with an activation.

The largest arguments show bounds such as the largest number of float16. The smallest ones show
whether a small number is added.
"""
_IS_FLAT = (_SAMPLES == 0) | (np.abs(_SAMPLES) >= 20)
"""Whether an activation may be flat around each sample, so that constants cause no rounding error.
"""


def find_activation(
    values: Mapping[relax.Var, relax.Expr],
    users: Mapping[relax.Var, Sequence[relax.Var]],
    uses: Mapping[relax.Var, int],
    source: relax.Var,
) -> ActivationChain | None:
    """The longest chain that applies an activation to `source`; None if there is no such chain.

    A chain is found only if no operator outside of it reads `source`.

    Parameters
    ----------
    values: the expression that each variable is bound to.
    users: the variables that are computed from each variable, in order.
    uses: how often each variable is read, including by the function's result.
    source: the variable of the tensor that the activation is applied to.
    """
    computed = {source: _SAMPLES}
    chain: list[relax.Var] = []
    found = None
    with np.errstate(all="ignore"):
        while len(chain) < MOST_OPERATORS:
            var = _next(values, users, computed, source)
            if var is None:
                return found
            computed[var] = _apply(values[var], computed)
            chain.append(var)
            if _only_leaves_by(var, computed, values, uses):
                activation = _recognised(computed[var])
                if activation is not None:
                    found = ActivationChain(tuple(chain), activation)
    return found


def constant_number(expr: relax.Expr) -> float | None:
    """The number in a constant tensor of one element or in a scalar; None for anything else."""
    if isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.ty, relax.TensorType):
        array = expr.value.numpy()
        return float(array.reshape(())) if array.size == 1 and array.dtype.kind == "f" else None
    value = getattr(expr, "value", None)  # A scalar is an `IntImm` or a `FloatImm`.
    return float(value) if isinstance(value, (int, float)) else None


def with_scalars(call: relax.Call) -> relax.Call:
    """`call` with constant tensors of one element replaced by scalars."""
    args = []
    for arg in call.args:
        number = constant_number(arg) if isinstance(arg, tvm.ir.GenericConst) else None
        args.append(arg if number is None else relax.const(number, str(arg.ty.dtype)))
    return relax.Call(call.op, args, call.attrs, call.ty_args)


def _next(
    values: Mapping[relax.Var, relax.Expr],
    users: Mapping[relax.Var, Sequence[relax.Var]],
    computed: Mapping[relax.Var, _Array],
    source: relax.Var,
) -> relax.Var | None:
    """Return the next element-wise operator whose arguments are all constant or in `computed`.

    Return None if there is no such operator.
    """
    for known in computed:
        for user in users.get(known, ()):
            if user not in computed and _is_elementwise(values[user], computed, source):
                return user
    return None


def _is_elementwise(
    value: relax.Expr, computed: Mapping[relax.Var, _Array], source: relax.Var
) -> bool:
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, tvm.ir.Op)
        and value.op.name in _OPERATORS
        and static_shape(value.ty) == static_shape(source.ty)
        and str(value.ty.dtype) == str(source.ty.dtype)
        and all(arg in computed or constant_number(arg) is not None for arg in value.args)
    )


def _apply(value: Any, computed: Mapping[relax.Var, _Array]) -> _Array:
    args = [computed[arg] if arg in computed else constant_number(arg) for arg in value.args]
    result: _Array = _OPERATORS[value.op.name](*args)
    return result


def _only_leaves_by(
    last: relax.Var,
    computed: Mapping[relax.Var, _Array],
    values: Mapping[relax.Var, relax.Expr],
    uses: Mapping[relax.Var, int],
) -> bool:
    """Whether operators outside of the chain read only the variable `last` of the chain."""
    inside = [
        arg for var in computed for arg in getattr(values.get(var), "args", ()) if arg in computed
    ]
    # `computed` includes `source`. This adds nothing to `inside`, because the arguments of the
    # operator that computes `source` are not in `computed`.
    return uses[last] > 0 and all(
        uses[var] == sum(1 for arg in inside if arg.same_as(var))
        for var in computed
        if not var.same_as(last)
    )


def _recognised(results: _Array) -> Activation | None:
    clip = _recognised_clip(results)
    if clip is not None:
        return clip
    for name, function in _KNOWN.items():
        if _agree(results, function(_SAMPLES)):
            return Activation(name)
    return None


def _recognised_clip(results: _Array) -> Activation | None:
    """The ReLU or the clip with these results; None for other results.

    A bound is the result for at least two samples. If only one sample gives the smallest or the
    largest result, it lies at the end of the samples, and its result is not a bound.
    """
    low, high = float(np.min(results)), float(np.max(results))
    if not low < high:
        return None
    wanted = np.clip(_SAMPLES, low, high)
    if not np.all(np.abs(results - wanted) <= _TOLERANCE * np.abs(wanted)):
        return None
    has_low, has_high = (np.count_nonzero(results == bound) > 1 for bound in (low, high))
    if has_low and not has_high and low == 0:
        return Activation("relu")
    if not has_low and not has_high:
        return None
    return Activation("clip", low if has_low else -_LARGE, high if has_high else _LARGE)


def _agree(got: _Array, wanted: _Array) -> bool:
    difference, size = np.abs(got - wanted), np.abs(wanted)
    is_exact = _IS_FLAT & ((size < _VANISHING) | (size == 1))
    allowed = np.where(is_exact, _EXACT * size + _VANISHING, _TOLERANCE * np.maximum(size, 1))
    return bool(np.all(difference <= allowed))
