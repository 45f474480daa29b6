"""Checks of the fields of a schedule. A scheduler or a user has filled them in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import ScheduleError
from ..plain_data import LARGEST, is_finite, is_text, is_whole


def as_tuple(values: Any, what: str) -> tuple[Any, ...]:
    """Return `values` as a tuple; raise ScheduleError, naming `what`, if it is not a list."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise ScheduleError(f"{what} are {values!r}; give a list")
    return tuple(values)


def as_ids(ops: Any, where: str) -> tuple[int, ...]:
    """Return operator ids as a tuple; raise ScheduleError, naming `where`, for an invalid id."""
    if isinstance(ops, (str, bytes)) or not isinstance(ops, Iterable):
        raise ScheduleError(f"{where} is {ops!r}; give a list of operators' ids")
    ids = tuple(ops)
    for op in ids:
        if not is_whole(op):
            raise ScheduleError(
                f"{where} holds {op!r}; give an operator by its id, which is the position of its "
                "name in `op_names`"
            )
    return tuple(map(int, ids))


def as_numbers(numbers: Any, kind: str, owner: str) -> tuple[int, ...]:
    """Return stream or device numbers as a tuple; raise ScheduleError for an invalid number.

    Parameters
    ----------
    kind: the word for a number in the error message, such as `stream`.
    owner: the word for the owner of a number in the error message, such as `group`.
    """
    checked = as_tuple(numbers, f"the {kind}s of each {owner}")
    for i, number in enumerate(checked):
        if not is_whole(number) or not 0 <= number <= LARGEST:
            raise ScheduleError(f"{owner} {i} is on {kind} {number!r}; {kind}s count from 0")
    return tuple(map(int, checked))


def as_timeline(rows: Any) -> tuple[tuple[int, int, float, float], ...]:
    """Return the rows of a timeline as tuples; raise ScheduleError if a row is invalid."""
    return tuple(_placement(row) for row in as_tuple(rows, "the rows of the timeline"))


def check_labels(scheduler: object, op_names: Sequence[object], makespan: object) -> None:
    """Check that names are text, and that the makespan is a time in microseconds or None.

    Raises
    ------
    ScheduleError
        A name is not text, or the makespan is not a finite number of 0 or more. The message shows
        the value.
    """
    if not is_text(scheduler):
        raise ScheduleError(f"the scheduler is called {scheduler!r}; a name is text")
    for name in as_tuple(op_names, "the operators' names"):
        if not is_text(name):
            raise ScheduleError(f"an operator is called {name!r}; a name is text")
    if makespan is not None and not (is_finite(makespan) and makespan >= 0):
        raise ScheduleError(
            f"the makespan is {makespan!r}; give microseconds, finite and not negative, or None"
        )


def _placement(row: Any) -> tuple[int, int, float, float]:
    try:
        op, stream, start_us, finish_us = row
    except (TypeError, ValueError):
        op, stream, start_us, finish_us = None, None, None, None
    is_one = is_whole(op) and is_whole(stream) and is_finite(start_us) and is_finite(finish_us)
    if not is_one or not (0 <= op <= LARGEST and 0 <= stream <= LARGEST):
        raise ScheduleError(
            f"the timeline has a row {row!r}; give an operator's id, its stream, and its start and "
            "finish in microseconds"
        )
    return int(op), int(stream), float(start_us), float(finish_us)
