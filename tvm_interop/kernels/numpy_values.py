"""Evaluates TIR expressions by NumPy, for many values of their variables at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

Array: TypeAlias = np.ndarray[Any, Any]


class UndefinedError(Exception):
    """A kernel's result is undefined, for example by a division by 0 or an index out of range."""


class Axis(NamedTuple):
    """The values of a variable along one axis of an array.

    Attributes
    ----------
    number: the axis's position.
    start: the first value.
    size: the number of values, each one more than the value before.
    """

    number: int
    start: int
    size: int


@dataclass(frozen=True)
class Places:
    """The places at which expressions are evaluated: all combinations of the variables' values.

    Attributes
    ----------
    axes: the axis of each variable.
    buffers: the contents of each buffer that was computed so far.
    lets: values of variables that `Let` expressions bind.
    asked: an array of booleans that is True at the places where a value is needed; None for all
        places.
    """

    axes: Mapping[Any, Axis]
    buffers: Mapping[Any, Array]
    lets: Mapping[Any, Array]
    asked: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis, in order."""
        return tuple(axis.size for axis in sorted(self.axes.values()))

    def value(self, node: Any) -> Array:
        """The values of an expression. If it does not depend on an axis, the axis may have one
        element.

        Raises
        ------
        UndefinedError
            The expression has no defined value at a place where a value is needed.
        """
        found: Array = _RULES[type(node)](self, node)
        return found

    def view(self, load: Any) -> Array | None:
        """The elements that a load reads, as a view of their buffer without a copy.

        An axis has one element if no index depends on it. Return None if an index is not a linear
        expression of the axes' variables, or may be outside of the buffer.
        """
        array = self.buffers[load.source]
        strides, begins = [0] * len(self.axes), []
        for index, size, stride in zip(load.indices, array.shape, array.strides, strict=True):
            line = linear(index, self.axes)
            if line is None or not line.factors.keys() <= self.axes.keys():
                return None
            first, (least, most) = line.constant, line.range_in(self.axes)
            for variable, factor in line.factors.items():
                axis = self.axes[variable]
                first += factor * axis.start
                strides[axis.number] += factor * stride
            if least < 0 or most >= size:
                return None
            begins.append(first)
        sizes = [size if stride else 1 for size, stride in zip(self.shape, strides, strict=True)]
        corner = array[tuple(slice(begin, begin + 1) for begin in begins)]
        return np.lib.stride_tricks.as_strided(corner, sizes, strides, writeable=False)

    def where(self, condition: Array) -> Places:
        """A copy of this object. In the copy, values are needed only where the condition holds."""
        return replace(self, asked=condition if self.asked is None else self.asked & condition)

    def require(self, is_defined: Array) -> None:
        """Raise `UndefinedError` if the value at a place is needed but not defined."""
        if not np.all(is_defined if self.asked is None else is_defined | ~self.asked):
            raise UndefinedError


class Linear(NamedTuple):
    """A linear expression: a sum of variables, each times a factor, plus a constant."""

    factors: dict[Any, int]
    constant: int

    def range_in(self, axes: Mapping[Any, Axis]) -> tuple[int, int]:
        """The least and the largest value of the expression; each variable must have an axis."""
        least = most = self.constant
        for variable, factor in self.factors.items():
            axis = axes[variable]
            ends = (factor * axis.start, factor * (axis.start + axis.size - 1))
            least, most = least + min(ends), most + max(ends)
        return least, most


def linear(index: Any, axes: Mapping[Any, Axis]) -> Linear | None:
    """An integer expression in linear form; None if it is not recognised as linear.

    A quotient by a constant counts as linear if it is the same for all values of its variables. For
    example, `channel // 8` is always 0 if all values of `channel` are below 8.

    Parameters
    ----------
    axes: the values of the variables.
    """
    if isinstance(index, tirx.IntImm):
        return Linear({}, int(index.value))
    if isinstance(index, tirx.Var):
        return Linear({index: 1}, 0)
    if isinstance(index, tirx.Cast):
        return linear(index.value, axes)
    if not isinstance(index, (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv)):
        return None
    a, b = linear(index.a, axes), linear(index.b, axes)
    if a is None or b is None:
        return None
    if isinstance(index, tirx.FloorDiv):
        return _quotient_of(a, b, axes)
    if isinstance(index, tirx.Mul):
        if a.factors and b.factors:
            return None
        times, of = (b, a) if a.factors else (a, b)
        return _sum(Linear({}, 0), of, times.constant)
    return _sum(a, b, -1 if isinstance(index, tirx.Sub) else 1)


def _quotient_of(a: Linear, b: Linear, axes: Mapping[Any, Axis]) -> Linear | None:
    if b.factors or b.constant <= 0 or not a.factors.keys() <= axes.keys():
        return None
    least, most = a.range_in(axes)
    quotient = least // b.constant
    return Linear({}, quotient) if most // b.constant == quotient else None


def _sum(a: Linear, b: Linear, times: int) -> Linear:
    factors = dict(a.factors)
    for variable, factor in b.factors.items():
        factors[variable] = factors.get(variable, 0) + times * factor
    return Linear(
        {v: factor for v, factor in factors.items() if factor}, a.constant + times * b.constant
    )


def dtype_of(node: Any) -> np.dtype[Any]:
    """The NumPy data type of an expression or a buffer.

    Raises
    ------
    TypeError
        NumPy does not have the type.
    """
    kind = str(node.ty.dtype if hasattr(node, "ty") else node.dtype)
    return np.dtype(kind)


def is_known(expression: Any) -> bool:
    """Whether this module can evaluate every part of an expression."""
    unknown: list[Any] = []

    def look(node: Any) -> None:
        if not isinstance(node, tvm.ir.Expr) or isinstance(node, tvm.ir.Op):
            return
        if (
            type(node) not in _RULES
            or not _has_known_type(node)
            or (isinstance(node, tvm.ir.Call) and _name(node) not in _CALLS)
        ):
            unknown.append(node)
        elif isinstance(node, (tirx.FloorDiv, tirx.FloorMod, tirx.Mod)):
            unknown.extend([node] if dtype_of(node).kind == "f" else [])

    tvm_ffi.structural_walk(expression, (tvm_ffi.Object, look))
    return not unknown


def _has_known_type(node: Any) -> bool:
    try:
        return dtype_of(node).kind in "biuf"
    except TypeError:
        return False


def _name(call: Any) -> str:
    return str(getattr(call.op, "name", "")).rpartition(".")[2]


def _variable(places: Places, node: Any) -> Array:
    if node in places.lets:
        return places.lets[node]
    axis = places.axes[node]
    values = np.arange(axis.start, axis.start + axis.size, dtype=dtype_of(node))
    return values.reshape([axis.size if i == axis.number else 1 for i in range(len(places.axes))])


def _load(places: Places, node: Any) -> Array:
    seen = places.view(node)
    if seen is not None:
        return seen
    array, indices = places.buffers[node.source], []
    for index, size in zip(node.indices, array.shape, strict=True):
        chosen = places.value(index)
        inside = (chosen >= 0) & (chosen < size)
        places.require(inside)
        indices.append(np.where(inside, chosen, 0))
    found: Array = array[tuple(indices)]
    return found


def _either(places: Places, node: Any) -> Array:
    """Evaluate `if_then_else`. The branch that is not taken may have an undefined value."""
    condition, true, false = node.args
    holds = places.value(condition)
    taken = places.where(holds).value(true)
    return np.where(holds, taken, places.where(~holds).value(false))


def _select(places: Places, node: Any) -> Array:
    holds = places.value(node.condition)
    return np.where(holds, places.value(node.true_value), places.value(node.false_value))


def _let(places: Places, node: Any) -> Array:
    bound = {**places.lets, node.var: places.value(node.value)}
    return replace(places, lets=bound).value(node.body)


def _cast(places: Places, node: Any) -> Array:
    return places.value(node.value).astype(dtype_of(node), copy=False)


def _call(places: Places, node: Any) -> Array:
    return _CALLS[_name(node)](places, node)


def _binary(function: Callable[[Array, Array], Any]) -> Callable[[Places, Any], Array]:
    def rule(places: Places, node: Any) -> Array:
        return np.asarray(function(places.value(node.a), places.value(node.b)))

    return rule


def _divided(function: Callable[[Array, Array], Any]) -> Callable[[Places, Any], Array]:
    """Make a function that evaluates one kind of division. Integer divisors must not be 0."""

    def rule(places: Places, node: Any) -> Array:
        a, b = places.value(node.a), places.value(node.b)
        if b.dtype.kind != "f":
            places.require(b != 0)
            b = np.where(b == 0, b.dtype.type(1), b)
        return np.asarray(function(a, b))

    return rule


def _quotient(a: Array, b: Array) -> Array:
    """The quotient of two numbers; integer quotients are rounded toward zero."""
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    down = a // b
    return np.asarray(down + ((down < 0) & (down * b != a)))


def _of_arguments(function: Callable[..., Any]) -> Callable[[Places, Any], Array]:
    def rule(places: Places, node: Any) -> Array:
        found = function(*(places.value(argument) for argument in node.args))
        return np.asarray(found).astype(dtype_of(node), copy=False)

    return rule


def _bits(places: Places, node: Any) -> Array:
    return np.ascontiguousarray(places.value(node.args[0])).view(dtype_of(node))


def _number(places: Places, node: Any) -> Array:
    return np.asarray(node.value, dtype_of(node))


def _larger(a: Array, b: Array) -> Array:
    # TVM's maximum is a selection by `a > b`, which may drop NaN. `np.maximum` always keeps NaN.
    return np.where(a > b, a, b)


def _smaller(a: Array, b: Array) -> Array:
    return np.where(a < b, a, b)


def _sigmoid(x: Array) -> Array:
    one = x.dtype.type(1)
    return np.asarray(one / (one + np.exp(-x)))


def _erf(x: Array) -> Array:
    """The error function erf, with an error below 1e-13. NumPy has no such function.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.6. All terms of this
    series have the same sign, so no digits cancel.
    """
    inside = np.clip(x.astype(np.float64), -_ERF_IS_1, _ERF_IS_1)
    square = inside * inside
    term = inside * np.exp(-square)
    total = term.copy()
    for n in range(1, _TERMS):
        term *= square
        term *= 2 / (2 * n + 1)
        total += term
    return np.asarray(total * (2 / math.sqrt(math.pi))).astype(x.dtype)


_ERF_IS_1 = 5.5
"""From this argument on, the error function differs from 1 by less than 1e-14."""
_TERMS = 110
"""Number of terms of the series for `_erf`.

At `_ERF_IS_1` the remaining terms add up to less than 1e-14.
"""

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": _erf,
    "exp": np.exp,
    "exp2": np.exp2,
    "fabs": np.abs,
    "floor": np.floor,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "isfinite": np.isfinite,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "likely": lambda x: x,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "nearbyint": np.rint,
    "pow": np.power,
    "rsqrt": lambda x: x.dtype.type(1) / np.sqrt(x),
    "sigmoid": _sigmoid,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
}

_CALLS: dict[str, Callable[[Places, Any], Array]] = {
    **{name: _of_arguments(function) for name, function in _FUNCTIONS.items()},
    "if_then_else": _either,
    "reinterpret": _bits,
}
"""Maps the part after the last dot of a TIR function's name to the code that evaluates it."""

_RULES: dict[type, Callable[[Places, Any], Array]] = {
    tirx.Add: _binary(np.add),
    tirx.And: _binary(np.logical_and),
    tirx.BitwiseAnd: _binary(np.bitwise_and),
    tirx.BitwiseNot: lambda places, node: np.invert(places.value(node.a)),
    tirx.BitwiseOr: _binary(np.bitwise_or),
    tirx.BitwiseXor: _binary(np.bitwise_xor),
    tirx.Cast: _cast,
    tirx.Div: _divided(_quotient),
    tirx.EQ: _binary(np.equal),
    tirx.FloatImm: _number,
    tirx.FloorDiv: _divided(np.floor_divide),
    tirx.FloorMod: _divided(np.mod),
    tirx.GE: _binary(np.greater_equal),
    tirx.GT: _binary(np.greater),
    tirx.IntImm: _number,
    tirx.LE: _binary(np.less_equal),
    tirx.LShift: _binary(np.left_shift),
    tirx.LT: _binary(np.less),
    tirx.Let: _let,
    tirx.Max: _binary(_larger),
    tirx.Min: _binary(_smaller),
    tirx.Mod: _divided(np.fmod),
    tirx.Mul: _binary(np.multiply),
    tirx.NE: _binary(np.not_equal),
    tirx.Not: lambda places, node: np.logical_not(places.value(node.a)),
    tirx.Or: _binary(np.logical_or),
    tirx.RShift: _binary(np.right_shift),
    tirx.Select: _select,
    tirx.Sub: _binary(np.subtract),
    tirx.Var: _variable,
    tvm.ir.Call: _call,
    tvm.ir.TensorLoad: _load,
}
"""Maps a class of TIR expressions to the function that evaluates them."""
