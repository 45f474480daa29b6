"""Bounds the values of a tensor where its positions are filled up.

A tensor has three bounds. The first holds for all its elements. The second holds for elements at a
filled position. The third holds for elements at the anchor, which is a position that the mask
keeps. For each of its positions (`position_form`), a tensor has a second and a third bound of its
own. The second holds if the other positions of the element are given. The third always holds.

The bounds rest on one condition: all floats that the model computes, at given and at filled
positions, are finite and at most `ORDINARY` in size. This does not include floats that the bounds
themselves show to be larger, such as the summand of a mask. A filled position holds the numbers
that the model computes for a sequence whose last element is repeated there, with a mask of 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .kernel_stores import UnprovenError
from .position_form import Form, Position, Tree

ORDINARY = 1e30
"""The largest size of a float that is not a mask."""
WIDE = 1e6
"""Bounds this far apart belong to data, about which nothing else is known."""
_VANISHES = -1000.0
"""The exponential of this number, and of every smaller number, is exactly 0 in every type of
floats."""


class Bound(NamedTuple):
    """The least and the greatest value that an element may have.

    If they are -inf and inf, it may also be NaN.
    """

    least: float
    greatest: float


ANY = Bound(-math.inf, math.inf)
ZERO, ONE = Bound(0, 0), Bound(1, 1)
_TRUTH = Bound(0, 1)


class Bounds(NamedTuple):
    """The bounds of a tensor.

    Attributes
    ----------
    all: the bound of all elements.
    filled, anchor: for each position of an element, the bound if the position is filled up, and the
        bound if it is the anchor.
    """

    all: Bound
    filled: tuple[Bound, ...] = ()
    anchor: tuple[Bound, ...] = ()


def plain(dtype: str, positions: int) -> Bounds:
    """The bounds of a tensor about which nothing is known."""
    whole = ordinary(dtype)
    return Bounds(whole, (whole,) * positions, (whole,) * positions)


def ordinary(dtype: str) -> Bound:
    """The bound of a value about which nothing is known."""
    if dtype == "bool":
        return _TRUTH
    if dtype.startswith("uint"):
        return Bound(0, 2 ** int(dtype[4:]) - 1)
    if dtype.startswith("int"):
        size = 2 ** (int(dtype[3:]) - 1)
        return Bound(-size, size - 1)
    most = 65504.0 if dtype == "float16" else ORDINARY
    return Bound(-most, most)


def after(form: Form, known: Mapping[str, Bounds], is_first: bool) -> Bounds:
    """The bounds of a buffer after a statement.

    Parameters
    ----------
    known: the bounds of all buffers before it.
    is_first: whether no statement has written the buffer before.

    Raises
    ------
    UnprovenError
        The statement combines positions, and filled positions may change the result.
    """
    parts = (form.value, *form.conditions, *form.places)
    if form.mixed and any(_is_mixed(part, form) for part in parts):
        return _combined(form, known)
    own, operands = _accumulated(form)
    before = known.get(form.buffer)
    if own is not None and before is not None and not form.conditions:
        what = _each(form, lambda where: bound_of(operands, known, where))
        return _zip(before, what, lambda old, new: _repeated(own, old, new, form.value[-1]))
    made = _each(form, lambda where: bound_of(form.value, known, where))
    if is_first or before is None:
        return made
    joined = _zip(before, made, _hull)
    if any(_reads(part, form.buffer) for part in (form.value, *form.conditions)):
        # Each step of the loop begins with the result of the step before it.
        both = {**known, form.buffer: joined}
        again = _each(form, lambda where: bound_of(form.value, both, where))
        if _zip(joined, again, _hull) != joined:
            whole = ANY if "float" in form.value[-1] else ordinary(form.value[-1])
            return Bounds(whole, *((whole,) * len(form.positions) for _ in range(2)))
    return joined


def reads_later(forms: Sequence[Form]) -> bool:
    """Whether a statement reads a buffer that a later one writes, as in a loop around both."""
    for i, form in enumerate(forms):
        later = {each.buffer for each in forms[i + 1 :]}
        parts = (form.value, *form.conditions, *form.places)
        if any(_reads(part, buffer) for part in parts for buffer in later):
            return True
    return False


def _each(form: Form, bound: Callable[[Mapping[str, str]], Bound]) -> Bounds:
    """The bounds of a statement's result, computed from its bound at given loop positions."""
    return Bounds(
        bound({}),
        tuple(bound({str(p): "filled"}) for p in form.positions),
        tuple(bound({str(p): "anchor"}) for p in form.positions),
    )


def _zip(one: Bounds, other: Bounds, join: Callable[[Bound, Bound], Bound]) -> Bounds:
    return Bounds(
        join(one.all, other.all),
        tuple(map(join, one.filled, other.filled)),
        tuple(map(join, one.anchor, other.anchor)),
    )


def _accumulated(form: Form) -> tuple[str | None, Tree]:
    """The operation and the operand, if the statement has the form `buffer[place] =
    buffer[place] op operand`."""
    value = form.value
    own = ("load", form.buffer, form.positions, form.places)
    if value[0] in ("add", "max", "min") and len(value) == 4:
        for mine, other in ((value[1], value[2]), (value[2], value[1])):
            if mine[:4] == own and not _reads(other, form.buffer):
                return value[0], other
    if value[0] == "select" and value[3][:4] == own and value[1][0] == "or":
        # A maximum or minimum that passes on NaN, as ONNX demands.
        new = value[2]
        (kind, *compared), is_nan = value[1][1][:3], value[1][2]
        is_one = compared == [new, value[3]] and is_nan[:2] == ("call isnan", new)
        if kind in ("gt", "lt") and is_one and not _reads(new, form.buffer):
            return ("max" if kind == "gt" else "min"), new
    return None, value


def _reads(tree: Any, buffer: str) -> bool:
    if not isinstance(tree, tuple) or not tree:
        return False
    if tree[0] == "load" and tree[1] == buffer:
        return True
    parts = tree[3] if tree[0] == "load" else tree[1:]
    return any(_reads(part, buffer) for part in parts)


def _is_mixed(part: Any, form: Form) -> bool:
    """Whether a part of a statement varies with a combined loop, or reads its own buffer."""
    if isinstance(part, str):
        return any(name in part for name in form.mixed)
    if not isinstance(part, tuple) or not part:
        return False
    if part[0] == "load":
        is_own = part[1] == form.buffer
        return is_own or any(_is_mixed(each, form) for each in (*part[2], *part[3]))
    return any(_is_mixed(each, form) for each in part[1:])


def _repeated(kind: str, old: Bound, new: Bound, dtype: str) -> Bound:
    """The bound of a value in the bound `old` after it is combined with one or more values in
    the bound `new`."""
    if kind == "max":
        return Bound(max(old.least, new.least), max(old.greatest, new.greatest))
    if kind == "min":
        return Bound(min(old.least, new.least), min(old.greatest, new.greatest))
    if new == ZERO:
        return old
    whole = ordinary(dtype)
    if not (_within(old, whole) and _within(new, whole)):
        return ANY
    least = old.least if new.least >= 0 else whole.least
    return Bound(least, old.greatest if new.greatest <= 0 else whole.greatest)


def _combined(form: Form, known: Mapping[str, Bounds]) -> Bounds:
    """The bounds of a statement that combines positions.

    In a sum, the terms of filled positions must be 0. In a maximum, their values must be below the
    value at the anchor. In a minimum, they must be above it.
    """
    kind, operand = _accumulated(form)
    before = known.get(form.buffer)
    if len(form.mixed) != 1 or kind is None or before is None or form.conditions:
        raise UnprovenError(
            "combines positions by an operation other than a sum, a maximum or a minimum"
        )
    (mixed,) = form.mixed

    def bound(where: Mapping[str, str], at: str = "") -> Bound:
        return bound_of(operand, known, {**where, mixed: at} if at else where)

    filled, anchor, dtype = bound({}, "filled"), bound({}, "anchor"), form.value[-1]
    if kind == "add" and filled != ZERO:
        raise UnprovenError(
            "sums over positions, and the terms of filled positions may differ from 0: a mask must "
            "make these terms exactly 0"
        )
    if kind == "max" and not filled.greatest <= anchor.least:
        raise UnprovenError(
            "takes the maximum over positions, and a filled position may be the greatest: a mask "
            "must add the least float or minus infinity to filled positions, and must keep one "
            "position that is the same for all others (a sliding window does not keep one, and "
            "neither does a mask that also excludes queries, as in DeBERTa)"
        )
    if kind == "min" and not filled.least >= anchor.greatest:
        raise UnprovenError(
            "takes the minimum over positions, and a filled position may be the least"
        )

    def result(where: Mapping[str, str], old: Bound) -> Bound:
        everywhere = _hull(bound(where), bound(where, "filled"))
        if not where:
            everywhere = bound(where)
        found = _repeated(kind, old, everywhere, dtype)
        there = bound(where, "anchor")  # One of the values that are combined.
        if kind == "max":
            return Bound(max(found.least, there.least), found.greatest)
        if kind == "min":
            return Bound(found.least, min(found.greatest, there.greatest))
        return found

    each = zip(form.positions, before.filled, before.anchor, strict=True)
    pairs = [
        (result({str(p): "filled"}, filled), result({str(p): "anchor"}, anchor))
        for p, filled, anchor in each
    ]
    return Bounds(
        result({}, before.all), tuple(one for one, _ in pairs), tuple(other for _, other in pairs)
    )


def bound_of(tree: Tree, known: Mapping[str, Bounds], where: Mapping[str, str]) -> Bound:
    """The bound of an expression.

    Parameters
    ----------
    where: for some loops over positions, whether their position is `filled` or the `anchor`. All
        other loops may be at any position.
    """
    kind, dtype = tree[0], tree[-1]
    if kind == "const":
        return widened(Bound(tree[1], tree[1]), dtype) if not math.isnan(tree[1]) else ANY
    if kind == "index":
        return ordinary(dtype)
    if kind == "load":
        return _of_load(known[tree[1]], tree[2], where)
    parts = [bound_of(part, known, where) for part in tree[1:-1]]
    if kind == "select":
        condition, one, other = parts
        if condition == ZERO:
            return other
        return one if condition.least >= 1 else _hull(one, other)
    if kind == "cast":
        return _cast(parts[0], tree[1][-1], dtype)
    if kind == "not":
        return Bound(1 - parts[0].greatest, 1 - parts[0].least)
    if kind in _COMPARISONS or kind in ("and", "or"):
        return _truth(kind, *parts)
    if kind in ("max", "min"):
        if ANY in parts:
            return ANY
        least, greatest = zip(*parts, strict=True)
        choose = max if kind == "max" else min
        return Bound(choose(least), choose(greatest))
    if kind == "div" and parts[0] == ZERO and not _at_filled(tree[2], where):
        return ZERO  # A divisor of 0 would make NaN at the given positions too.
    if kind in ("add", "sub", "mul", "div"):
        return _arithmetic(kind, parts[0], parts[1], dtype)
    return _of_call(kind, parts, dtype)


def _of_load(bounds: Bounds, positions: tuple[Position, ...], where: Mapping[str, str]) -> Bound:
    """The bound of an element that is read."""
    at = [where.get(p, "") if isinstance(p, str) else "" for p in positions]
    # A position before a filled position may be filled or given.
    maybe = [
        i for i, p in enumerate(positions) if isinstance(p, tuple) and where.get(p[1]) == "filled"
    ]
    if any(bounds.filled[i] == ANY for i in maybe):
        return ANY
    hold = [bounds.all, *(bounds.anchor[i] for i, each in enumerate(at) if each == "anchor")]
    if at.count("filled") == 1 and not maybe:
        hold.append(bounds.filled[at.index("filled")])
        if hold[-1] == ANY:
            return ANY  # The value may be NaN there, whatever bound holds for numbers.
    return Bound(max(bound.least for bound in hold), min(bound.greatest for bound in hold))


def _at_filled(tree: Tree, where: Mapping[str, str]) -> bool:
    """Whether an expression reads an element at a filled position."""
    if tree[0] == "load":
        inside = any(isinstance(part, tuple) and _at_filled(part, where) for part in tree[3])
        loops = (p[1] if isinstance(p, tuple) else str(p) for p in tree[2])
        return inside or any(where.get(loop) == "filled" for loop in loops)
    return any(isinstance(part, tuple) and _at_filled(part, where) for part in tree[1:-1])


def _within(inner: Bound, outer: Bound) -> bool:
    return outer.least <= inner.least and inner.greatest <= outer.greatest


def _hull(one: Bound, other: Bound) -> Bound:
    return Bound(min(one.least, other.least), max(one.greatest, other.greatest))


_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def _truth(kind: str, one: Bound, other: Bound) -> Bound:
    """The bound of a comparison or of a logical operation: 0, 1 or either."""
    if kind in ("gt", "ge"):
        return _truth("lt" if kind == "gt" else "le", other, one)
    if kind == "ne":
        equal = _truth("eq", one, other)
        return Bound(1 - equal.greatest, 1 - equal.least)
    if kind == "and":
        return Bound(min(one.least, other.least), min(one.greatest, other.greatest))
    if kind == "or":
        return Bound(max(one.least, other.least), max(one.greatest, other.greatest))
    if ANY in (one, other):
        return _TRUTH
    if kind == "eq":
        if one == other and one.least == one.greatest:
            return ONE
        return ZERO if one.greatest < other.least or other.greatest < one.least else _TRUTH
    if kind == "lt":
        holds, fails = one.greatest < other.least, one.least >= other.greatest
    else:
        holds, fails = one.greatest <= other.least, one.least > other.greatest
    return ONE if holds else ZERO if fails else _TRUTH


def _cast(value: Bound, before: str, after_it: str) -> Bound:
    if after_it == "bool":
        if value == ZERO:
            return ZERO
        return ONE if value.least > 0 or value.greatest < 0 else _TRUTH
    whole = ordinary(after_it)
    if not after_it.startswith(("float", "bfloat")):
        is_exact = value.least == value.greatest and float(value.least).is_integer()
        if not _within(value, whole) or ("float" in before and not is_exact):
            return whole
        return Bound(int(value.least), int(value.greatest))
    found = widened(value, after_it)
    if value.greatest - value.least > WIDE and _within(value, ordinary("float32")):
        return Bound(max(found.least, whole.least), min(found.greatest, whole.greatest))
    return _rounded(found, after_it)


def _rounded(value: Bound, dtype: str) -> Bound:
    """The bound; an end that is too large for the float type becomes infinity."""
    most = {"float16": 65504.0, "float64": 1.7976931348623157e308}.get(dtype, 3.4028234663852886e38)
    least = -math.inf if value.least < -most else value.least
    greatest = math.inf if value.greatest > most else value.greatest
    return Bound(least, greatest)


def widened(value: Bound, dtype: str) -> Bound:
    """A bound that also holds after rounding to a type, which may turn the smallest numbers into
    0."""
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


def _arithmetic(kind: str, one: Bound, other: Bound, dtype: str) -> Bound:
    """The bound of a sum, a difference, a product or a quotient."""
    whole = ordinary(dtype)
    if ANY in (one, other):
        return ANY if "float" in dtype else whole
    if kind == "div":
        if "float" not in dtype or other.least <= 0 <= other.greatest:
            is_data = other.greatest - other.least > WIDE
            are_ordinary = _within(one, whole) and _within(other, whole)
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
        return found if _within(found, whole) else whole
    # If no summand is shown to be large on one side, the sum does not count as large on that side.
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
"""Functions whose result is finite for each finite number `x`, and in size at most 4 or below
`abs(x) + 1`."""


def _of_call(kind: str, parts: list[Bound], dtype: str) -> Bound:
    whole = ordinary(dtype)
    if kind == "call exp":
        (value,) = parts
        if value.greatest <= _VANISHES:
            return ZERO
        if value == ANY:
            return ANY
        least = 0.0 if value.least <= _VANISHES else math.exp(min(value.least, 60.0)) * 0.999
        least = widened(Bound(least, least), dtype).least  # It may be too small for the type.
        if value.greatest < 60:
            return widened(Bound(least, 1.001 * math.exp(value.greatest)), dtype)
        return Bound(least, whole.greatest if value.greatest <= whole.greatest else math.inf)
    if kind == "call isnan":
        return _TRUTH if ANY in parts else ZERO
    if "float" not in dtype:
        return _of_whole_numbers(kind, parts, dtype)
    if not all(_within(part, ordinary("float32")) for part in parts):
        return ANY
    if kind in ("call pow", "call power") and parts[1] == Bound(2, 2):
        return _arithmetic("mul", parts[0], parts[0], dtype)
    if any(part.greatest - part.least > WIDE for part in parts):
        return whole
    if kind not in _TOTAL:
        return ANY
    if parts == [ZERO] and kind not in ("call cos", "call sigmoid"):
        return ZERO
    # A result that may be exactly 0 must not get the bounds of data.
    most = 1 + max(4.0, *(abs(end) for part in parts for end in part))
    return Bound(-most, most)


_NO_LARGER = frozenset(
    (
        "floordiv", "floormod", "mod", "call abs", "call fabs", "call bitwise_and",
        "call bitwise_or", "call bitwise_xor", "call bitwise_not", "call shift_right",
    )
)  # fmt: skip
"""Functions of whole numbers whose results are hardly larger than their arguments."""


def _of_whole_numbers(kind: str, parts: list[Bound], dtype: str) -> Bound:
    """The bound of a function whose result is a whole number or a truth value."""
    whole = ordinary(dtype)
    if dtype == "bool" or any(part.greatest - part.least > WIDE for part in parts):
        return whole
    most = 2 * max(1, *(abs(end) for part in parts for end in part)) + 1
    if kind not in _NO_LARGER or most > whole.greatest:
        raise UnprovenError(f"computes a whole number by `{kind}`, which the proof does not know")
    return Bound(max(-most, whole.least), most)
