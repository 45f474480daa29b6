"""Limits the time of a compilation, and lists the steps that are left out when no time is left."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

from ..errors import InputError
from ..plain_data import is_finite
from ..scheduling.budget import Budget

CHOICE_SHARE = 0.4
"""The fraction of a compilation's time in which kernels are chosen for the operators."""
LIBRARIES_SHARE = 0.5
"""The share that the check of libraries' kernels gets of the time that is left after the choice of
kernels."""
SCHEDULE_SHARE = 0.8
"""The share that the schedule and its speed check get of the time that is left after the choice of
kernels and the check of libraries' kernels. The check of TVM's kernels gets the rest."""

_T = TypeVar("_T")
_PIECE = 8
"""The number of kernels that are checked before the clock is read again."""


class TimeBudget(Budget):
    """The time that a compilation may take, and a list of the work that it left out.

    The time starts to run when the object is made. If one step of the compilation ends early, later
    steps have more time.

    Attributes
    ----------
    is_limited: whether there is a limit.
    measures_nothing: whether the limit is 0. Then nothing is measured or checked, and measurements
        of earlier compilations are not used.
    not_tried: the work that was left out because time was short. Each item is a phrase for users.
    """

    def __init__(self, seconds: float = math.inf, not_tried: list[str] | None = None) -> None:
        """Start the clock of the budget.

        Parameters
        ----------
        seconds: the time that the compilation may take; inf for no limit.
        not_tried: the list that `leave_out` adds to; None makes a new list.
        """
        super().__init__(seconds)
        self.is_limited = seconds < math.inf
        self.measures_nothing = seconds == 0
        self.not_tried = [] if not_tried is None else not_tried

    @classmethod
    def of(cls, seconds: object) -> TimeBudget:
        """Make the budget of a compilation from the seconds that a user gave.

        Raises
        ------
        InputError
            `seconds` is not a finite number of 0 or more.
        """
        if not is_finite(seconds) or seconds < 0:
            raise InputError(
                f"`time_budget` is {seconds!r}: give the seconds that compiling may take, a number "
                "of 0 or more, or leave it out for no limit"
            )
        return cls(float(seconds))

    @property
    def is_spent(self) -> bool:
        """Whether the time is over."""
        return self.left_s() <= 0

    def share(self, part: float) -> TimeBudget:
        """Make a budget of a fraction `part`, above 0 and up to 1, of the time that is left.

        The new budget and this budget have one common list `not_tried`.
        """
        return TimeBudget(self.left_s() * part, self.not_tried)

    def for_one_of(self, models: int) -> TimeBudget:
        """Make the budget for one of `models` models, which gets an equal fraction of the time
        left.
        """
        return TimeBudget(self.left_s() / models)

    def leave_out(self, what: str) -> None:
        """Add the phrase `what` to `not_tried`, unless it is there already."""
        if what not in self.not_tried:
            self.not_tried.append(what)

    def pieces(self, items: Sequence[_T]) -> Iterator[Sequence[_T]]:
        """Yield a few `items` at a time until the time is over; without a limit, all at once."""
        size = _PIECE if self.is_limited else max(len(items), 1)
        for begin in range(0, len(items), size):
            if self.is_spent:
                return
            yield items[begin : begin + size]
