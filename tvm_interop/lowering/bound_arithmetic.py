"""Computes bounds of the results of operations from the bounds of their operands."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .kernel_stores import UnprovenError

ORDINARY = 1e30
"""The largest absolute value that a float is assumed to have. Masks may have larger values."""
WIDE = 1e6
"""A value is called data if the two ends of its bound differ by more than this number. Nothing else
is known about such a value.
"""
_VANISHES = -1000.0
"""The exponential of this number, and of every smaller number, is exactly 0 in every float type."""


class Bound(NamedTuple):
    """The smallest and the largest value that an element may have.

    If the bound goes from -inf to inf, the element may also be NaN.
    """

    least: float
    greatest: float


ANY = Bound(-math.inf, math.inf)
ZERO, ONE = Bound(0, 0), Bound(1, 1)
TRUTH = Bound(0, 1)


def ordinary(dtype: str) -> Bound:
    """The bound of a value about which nothing is known."""
    if dtype == "bool":
        return TRUTH
    if dtype.startswith("uint"):
        return Bound(0, 2 ** int(dtype[4:]) - 1)
    if dtype.startswith("int"):
        size = 2 ** (int(dtype[3:]) - 1)
        return Bound(-size, size - 1)
    most = 65504.0 if dtype == "float16" else ORDINARY
    return Bound(-most, most)


def within(inner: Bound, outer: Bound) -> bool:
    return outer.least <= inner.least and inner.greatest <= outer.greatest


def hull(one: Bound, other: Bound) -> Bound:
    return Bound(min(one.least, other.least), max(one.greatest, other.greatest))


COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def truth(kind: str, one: Bound, other: Bound) -> Bound:
    """The bound of the result of a comparison or logical operation: 0, 1, or 0 to 1."""
    if kind in ("gt", "ge"):
        return truth("lt" if kind == "gt" else "le", other, one)
    if kind == "ne":
        equal = truth("eq", one, other)
        return Bound(1 - equal.greatest, 1 - equal.least)
    if kind == "and":
        return Bound(min(one.least, other.least), min(one.greatest, other.greatest))
    if kind == "or":
        return Bound(max(one.least, other.least), max(one.greatest, other.greatest))
    if ANY in (one, other):
        return TRUTH
    if kind == "eq":
        if one == other and one.least == one.greatest:
            return ONE
        return ZERO if one.greatest < other.least or other.greatest < one.least else TRUTH
    if kind == "lt":
        holds, fails = one.greatest < other.least, one.least >= other.greatest
    else:
        holds, fails = one.greatest <= other.least, one.least > other.greatest
    return ONE if holds else ZERO if fails else TRUTH


def cast(value: Bound, before: str, after_it: str) -> Bound:
    if after_it == "bool":
        if value == ZERO:
            return ZERO
        return ONE if value.least > 0 or value.greatest < 0 else TRUTH
    whole = ordinary(after_it)
    if not after_it.startswith(("float", "bfloat")):
        is_exact = value.least == value.greatest and float(value.least).is_integer()
        if not within(value, whole) or ("float" in before and not is_exact):
            return whole
        return Bound(int(value.least), int(value.greatest))
    found = widened(value, after_it)
    if value.greatest - value.least > WIDE and within(value, ordinary("float32")):
        return Bound(max(found.least, whole.least), min(found.greatest, whole.greatest))
    return _rounded(found, after_it)


def _rounded(value: Bound, dtype: str) -> Bound:
    """Replace the limits of `value` that are too large for the float type by infinity."""
    most = {"float16": 65504.0, "float64": 1.7976931348623157e308}.get(dtype, 3.4028234663852886e38)
    least = -math.inf if value.least < -most else value.least
    greatest = math.inf if value.greatest > most else value.greatest
    return Bound(least, greatest)


def widened(value: Bound, dtype: str) -> Bound:
    """A bound that still holds after its value is rounded to a type, perhaps to 0."""
    if "float" not in dtype:
        return value
    kind: Any = {"float16": np.float16, "float64": np.float64}.get(dtype, np.float32)
    with np.errstate(over="ignore"):
        ends = [end for each in value for end in (each, float(kind(each)))]
    if dtype == "bfloat16":
        ends += [each * part for each in value for part in (1 - 2**-8, 1 + 2**-8)]
    if any(0 < abs(end) < float(np.finfo(kind).tiny) for end in ends):
        ends.append(0)
    return Bound(min(ends), max(ends))


def arithmetic(kind: str, one: Bound, other: Bound, dtype: str) -> Bound:
    """The bound of a sum, a difference, a product or a quotient of two values with known bounds."""
    whole = ordinary(dtype)
    if ANY in (one, other):
        return ANY if "float" in dtype else whole
    if kind == "div":
        if "float" not in dtype or other.least <= 0 <= other.greatest:
            is_data = other.greatest - other.least > WIDE
            are_ordinary = within(one, whole) and within(other, whole)
            return whole if "float" not in dtype or (is_data and are_ordinary) else ANY
        ends = [_quotient(a, b) for a in one for b in other]
    elif kind == "mul":
        ends = [a * b for a in one for b in other]
    else:
        sign = 1 if kind == "add" else -1
        ends = [one.least + sign * b for b in other] + [one.greatest + sign * b for b in other]
    if any(math.isnan(end) for end in ends):
        return ANY
    found = widened(Bound(min(ends), max(ends)), dtype)
    if "float" not in dtype:
        return found if within(found, whole) else whole
    # `padding_bounds` states the assumption that results lie in the range of ordinary floats,
    # `whole`. There is one exception. If an operand's bound exceeds `whole` at one end, the
    # result's bound may exceed it at the same end. For a product or a quotient, it may exceed it at
    # both ends.
    low, high = other if kind in ("add", "mul", "div") else (-other.greatest, -other.least)
    is_low, is_high = min(one.least, low) < whole.least, max(one.greatest, high) > whole.greatest
    if kind in ("mul", "div"):
        is_low = is_high = is_low or is_high
    return _rounded(
        Bound(
            found.least if is_low else max(found.least, whole.least),
            found.greatest if is_high else min(found.greatest, whole.greatest),
        ),
        dtype,
    )


def _quotient(a: float, b: float) -> float:
    return math.nan if math.isinf(a) and math.isinf(b) else a / b


_TOTAL = frozenset(
    f"call {name}"
    for name in (
        "abs", "asinh", "atan", "atan2", "ceil", "cos", "erf", "fabs", "floor", "nearbyint",
        "round", "sigmoid", "sin", "tanh", "trunc",
    )
)  # fmt: skip
"""Functions whose result is finite for each finite number `x`. The absolute value of the result is
at most 4, or below `abs(x) + 1`.
"""


def of_call(kind: str, parts: list[Bound], dtype: str) -> Bound:
    whole = ordinary(dtype)
    if kind == "call exp":
        (value,) = parts
        if value.greatest <= _VANISHES:
            return ZERO
        if value == ANY:
            return ANY
        least = 0.0 if value.least <= _VANISHES else math.exp(min(value.least, 60.0)) * 0.999
        # The exponential of a very negative number is rounded to 0.
        least = widened(Bound(least, least), dtype).least
        if value.greatest < 60:
            return widened(Bound(least, 1.001 * math.exp(value.greatest)), dtype)
        return Bound(least, whole.greatest if value.greatest <= whole.greatest else math.inf)
    if kind == "call isnan":
        return TRUTH if ANY in parts else ZERO
    if "float" not in dtype:
        return _of_whole_numbers(kind, parts, dtype)
    if not all(within(part, ordinary("float32")) for part in parts):
        return ANY
    if kind in ("call pow", "call power") and parts[1] == Bound(2, 2):
        return arithmetic("mul", parts[0], parts[0], dtype)
    if any(part.greatest - part.least > WIDE for part in parts):
        return whole
    if kind not in _TOTAL:
        return ANY
    if parts == [ZERO] and kind not in ("call cos", "call sigmoid"):
        return ZERO
    # `arithmetic` assumes that a divisor is not 0 if its bounds are wider than `WIDE`. The result
    # of this function may be exactly 0, so its bounds must be narrower than `WIDE`.
    most = 1 + max(4.0, *(abs(end) for part in parts for end in part))
    return Bound(-most, most)


_NO_LARGER = frozenset(
    (
        "floordiv", "floormod", "mod", "call abs", "call fabs", "call bitwise_and",
        "call bitwise_or", "call bitwise_xor", "call bitwise_not", "call shift_right",
    )
)  # fmt: skip
"""Functions of whole numbers whose results are at most slightly larger than their arguments."""


def _of_whole_numbers(kind: str, parts: list[Bound], dtype: str) -> Bound:
    """The bound of the result of a function that returns a whole number or a boolean."""
    whole = ordinary(dtype)
    if dtype == "bool" or any(part.greatest - part.least > WIDE for part in parts):
        return whole
    most = 2 * max(1, *(abs(end) for part in parts for end in part)) + 1
    if kind not in _NO_LARGER or most > whole.greatest:
        raise UnprovenError(f"computes a whole number by `{kind}`, which the proof does not cover")
    return Bound(max(-most, whole.least), most)
