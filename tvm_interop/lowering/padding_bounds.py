"""Computes bounds of the values of a tensor, with separate bounds for padded positions.

An element may have several positions, such as one for queries and one for keys (`position_form`). A
position that is not padded is called given. The anchor is a given position that the mask keeps. A
tensor has these bounds:

- The bound `all` holds for all elements.
- The list `filled` has a bound for each position of an element. The bound holds if this position is
  padded and the other positions of the element are given.
- The list `anchor` has a bound for each position of an element. The bound holds if this position is
  the anchor. The other positions may be any.
- The bound `given` holds if all positions of an element are given, and the bound `all_filled` holds
  if all are padded.

The bounds assume that all floats that the model computes are finite, with absolute values of at
most `ORDINARY`, at given and at padded positions. Floats whose bounds are known to be larger are
excepted, such as the very negative number that a mask adds to a score. A padded position holds the
numbers that the model computes for a longer sequence. In this sequence, the last element is
repeated at the padded positions, with a mask of 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .bound_arithmetic import (
    ANY,
    COMPARISONS,
    ZERO,
    Bound,
    arithmetic,
    cast,
    hull,
    of_call,
    ordinary,
    truth,
    widened,
    within,
)
from .kernel_stores import UnprovenError
from .position_form import Form, Position, Tree


class Bounds(NamedTuple):
    """The bounds of the elements of a tensor.

    Attributes
    ----------
    all: the bound of all elements.
    filled: for each position of an element, the bound if this position is padded and the element's
        other positions are given (not padded).
    anchor: for each position of an element, the bound if this position is the anchor.
    given: the bound if all positions are given.
    all_filled: the bound if all positions are padded.
    """

    all: Bound
    filled: tuple[Bound, ...] = ()
    anchor: tuple[Bound, ...] = ()
    given: Bound = ANY
    all_filled: Bound = ANY


def plain(dtype: str, positions: int) -> Bounds:
    """The bounds of a tensor if only its type is known."""
    whole = ordinary(dtype)
    return everywhere(whole, positions)


def everywhere(bound: Bound, positions: int) -> Bounds:
    """The bounds of a tensor for which the same bound holds at all positions."""
    each = (bound,) * positions
    return Bounds(bound, each, each, bound, bound)


def after(form: Form, known: Mapping[str, Bounds], is_first: bool) -> Bounds:
    """The bounds of a buffer after a statement has written to it.

    Parameters
    ----------
    known: the bounds of all buffers before the statement.
    is_first: whether no statement has written the buffer before.

    Raises
    ------
    UnprovenError
        The statement combines positions, and padded positions may change the result.
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
    joined = _zip(before, made, hull)
    if any(_reads(part, form.buffer) for part in (form.value, *form.conditions)):
        # A step of the loop may read the result of the step before it.
        both = {**known, form.buffer: joined}
        again = _each(form, lambda where: bound_of(form.value, both, where))
        if _zip(joined, again, hull) != joined:
            whole = ANY if "float" in form.value[-1] else ordinary(form.value[-1])
            return everywhere(whole, len(form.positions))
    return joined


def reads_later(forms: Sequence[Form]) -> bool:
    """Return whether a statement reads a buffer that a later statement writes.

    A statement can read a buffer that a later one writes if one loop contains both statements.
    """
    for i, form in enumerate(forms):
        later = {each.buffer for each in forms[i + 1 :]}
        parts = (form.value, *form.conditions, *form.places)
        if any(_reads(part, buffer) for part in parts for buffer in later):
            return True
    return False


def _each(form: Form, bound: Callable[[Mapping[str, str]], Bound]) -> Bounds:
    """The bounds of a statement's result. The function `bound` computes each of them (see
    `bound_of`).
    """
    return Bounds(
        bound({}),
        tuple(bound(_elsewhere_given(form, p, "filled")) for p in form.positions),
        tuple(bound({str(p): "anchor"}) for p in form.positions),
        bound(_all(form, "given")),
        bound(_all(form, "filled")),
    )


def _all(form: Form, at: str) -> dict[str, str]:
    """Map each loop over the positions that are written to `at`, such as the word `given`."""
    return dict.fromkeys(map(str, form.positions), at)


def _elsewhere_given(form: Form, position: Position, at: str) -> dict[str, str]:
    return {**_all(form, "given"), str(position): at}


def _zip(one: Bounds, other: Bounds, join: Callable[[Bound, Bound], Bound]) -> Bounds:
    return Bounds(
        join(one.all, other.all),
        tuple(map(join, one.filled, other.filled)),
        tuple(map(join, one.anchor, other.anchor)),
        join(one.given, other.given),
        join(one.all_filled, other.all_filled),
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
        # A maximum or minimum that keeps NaN, as ONNX requires, has this form.
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
    """Whether an expression of a statement varies with a loop in `form.mixed`, or reads
    `form.buffer`.
    """
    if isinstance(part, str):
        return any(name in part for name in form.mixed)
    if not isinstance(part, tuple) or not part:
        return False
    if part[0] == "load":
        is_own = part[1] == form.buffer
        return is_own or any(_is_mixed(each, form) for each in (*part[2], *part[3]))
    return any(_is_mixed(each, form) for each in part[1:])


def _repeated(kind: str, old: Bound, new: Bound, dtype: str) -> Bound:
    """The bound of the result of combining two values, whose bounds are `old` and `new`."""
    if kind == "max":
        return Bound(max(old.least, new.least), max(old.greatest, new.greatest))
    if kind == "min":
        return Bound(min(old.least, new.least), min(old.greatest, new.greatest))
    if new == ZERO:
        return old
    whole = ordinary(dtype)
    if not (within(old, whole) and within(new, whole)):
        return ANY
    least = old.least if new.least >= 0 else whole.least
    return Bound(least, old.greatest if new.greatest <= 0 else whole.greatest)


def _combined(form: Form, known: Mapping[str, Bounds]) -> Bounds:
    """The bounds of the result of a statement that combines positions.

    In a sum, the terms of padded positions must be 0. In a maximum, the values of padded positions
    must be below the value at the anchor, the position that the mask keeps. In a minimum, they must
    be above the value at the anchor.
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

    given, dtype = _all(form, "given"), form.value[-1]
    # Padding may change the results at padded positions, so only given results are checked.
    filled, anchor = bound(given, "filled"), bound(given, "anchor")
    if kind == "add" and filled != ZERO:
        raise UnprovenError(
            "sums over positions, and the terms of padded positions may differ from 0: a mask must "
            "make these terms exactly 0"
        )
    if kind == "max" and not filled.greatest <= anchor.least:
        raise UnprovenError(
            "takes the maximum over positions, and a padded position may be the greatest: a mask "
            "must add the least float or minus infinity to padded positions. It must also keep one "
            "position, the same for all other positions, which a sliding window does not do"
        )
    if kind == "min" and not filled.least >= anchor.greatest:
        raise UnprovenError(
            "takes the minimum over positions, and a padded position may be the least"
        )

    def result(where: Mapping[str, str], old: Bound) -> Bound:
        of_all = hull(bound(where, "given"), bound(where, "filled"))
        if not where:
            of_all = bound(where)
        found = _repeated(kind, old, of_all, dtype)
        # The maximum is at least the value at the anchor, and the minimum at most this value.
        there = bound(where, "anchor")
        if kind == "max":
            return Bound(max(found.least, there.least), found.greatest)
        if kind == "min":
            return Bound(found.least, min(found.greatest, there.greatest))
        return found

    def at(place: str, olds: Sequence[Bound], *, elsewhere: bool) -> tuple[Bound, ...]:
        each = zip(map(str, form.positions), olds, strict=True)
        return tuple(result({**(given if elsewhere else {}), p: place}, old) for p, old in each)

    return Bounds(
        result({}, before.all),
        at("filled", before.filled, elsewhere=True),
        at("anchor", before.anchor, elsewhere=False),
        result(given, before.given),
        result(_all(form, "filled"), before.all_filled),
    )


def bound_of(tree: Tree, known: Mapping[str, Bounds], where: Mapping[str, str]) -> Bound:
    """The bound of an expression.

    Parameters
    ----------
    where: for some loops over positions, whether their position is padded (`filled`), `given`, or
        the `anchor` (see the module's docstring). All other loops may be at any position.
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
        return one if condition.least >= 1 else hull(one, other)
    if kind == "cast":
        return cast(parts[0], tree[1][-1], dtype)
    if kind == "not":
        return Bound(1 - parts[0].greatest, 1 - parts[0].least)
    if kind in COMPARISONS or kind in ("and", "or"):
        return truth(kind, *parts)
    if kind in ("max", "min"):
        if ANY in parts:
            return ANY
        least, greatest = zip(*parts, strict=True)
        choose = max if kind == "max" else min
        return Bound(choose(least), choose(greatest))
    if kind == "div" and parts[0] == ZERO and not _at_filled(tree[2], where):
        return ZERO  # The divisor may be 0, but then the result is NaN without padding too.
    if kind in ("add", "sub", "mul", "div"):
        return arithmetic(kind, parts[0], parts[1], dtype)
    return of_call(kind, parts, dtype)


def _of_load(bounds: Bounds, positions: tuple[Position, ...], where: Mapping[str, str]) -> Bound:
    """The bound of an element that is read."""
    at = [where.get(p, "") if isinstance(p, str) else "" for p in positions]
    are_given = [_is_given(p, where) for p in positions]
    # For an earlier position, use its loop: a position before a padded one may be padded or given.
    loops = [p[1] if isinstance(p, tuple) else p for p in positions]
    may_be_filled = [bounds.filled[i] for i, p in enumerate(loops) if where.get(str(p)) == "filled"]
    is_alone = are_given.count(False) == 1  # All positions but one are given.
    if may_be_filled and not is_alone:
        may_be_filled.append(bounds.all_filled)
    if at and at.count("filled") == len(at) > 1:
        may_be_filled = [bounds.all_filled]
    if ANY in may_be_filled:
        return ANY  # The position may be padded, and the element there may be NaN.
    hold = [bounds.all, *(bounds.anchor[i] for i, each in enumerate(at) if each == "anchor")]
    if all(are_given):
        hold.append(bounds.given)
    if "filled" in at and (is_alone or at.count("filled") == len(at)):
        hold += may_be_filled
    return Bound(max(bound.least for bound in hold), min(bound.greatest for bound in hold))


def _is_given(position: Position, where: Mapping[str, str]) -> bool:
    """Return whether an element that is read lies at a given position, not at a padded one.

    A constant position, such as the first, is given.
    """
    if isinstance(position, int):
        return True
    loop = position if isinstance(position, str) else position[1]  # ("earlier", loop, ...)
    return where.get(loop) in ("given", "anchor")


def _at_filled(tree: Tree, where: Mapping[str, str]) -> bool:
    """Whether an expression reads an element at a padded position."""
    if tree[0] == "load":
        inside = any(isinstance(part, tuple) and _at_filled(part, where) for part in tree[3])
        loops = (p[1] if isinstance(p, tuple) else str(p) for p in tree[2])
        return inside or any(where.get(loop) == "filled" for loop in loops)
    return any(isinstance(part, tuple) and _at_filled(part, where) for part in tree[1:-1])
