"""Limits the time in which a search for a schedule may measure, and lists the work left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..artifact.manifest import SpeedCheck
from ..errors import OutOfTimeError
from ..latency.base import LatencyModel, op_latencies
from ..latency.batch import StageBatch
from ..measure.active import ActiveSearch
from ..measure.few_search import Limits
from ..measure.measured import MeasuredLatency
from ..plain_data import is_finite
from ..program.program import Program
from ..scheduling import Schedule, options_of
from ..scheduling.budget import Budget, BudgetedLatency
from ..scheduling.options import check_counts
from .time_budget import TimeBudget

_SEARCH_SHARE = 0.65
"""The fraction of a schedule's time that the search for the schedule may take. The rest is for the
speed check. The fraction does not apply to `auto`, which divides its time itself."""


class MeasuredInTime(BudgetedLatency):
    """Measured latencies for a search that does not need all latencies, such as `ios`.

    Once the time is over, a stage that is not measured yet is refused: it gets the latency inf.
    Unlike `BudgetedLatency`, this class never refuses a stage that is already measured.
    """

    def __init__(
        self,
        model: MeasuredLatency,
        names: Sequence[str],
        wholes: Sequence[Sequence[int]],
        budget: Budget,
    ) -> None:
        """Measure all operators alone, and the parts of each divided operator side by side.

        Parameters
        ----------
        names: the operators' names.
        wholes: for each operator before division, the ids of its parts; empty if no operator is
            divided.

        Raises
        ------
        OutOfTimeError
            The time of `model` is over before all operators are measured.
        """
        super().__init__(model, op_latencies(model, names), budget, wholes)
        self._measured = model

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return self._budget.left_s() <= 0

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Latency of each stage in microseconds, shape (len(stages),); inf for a refused stage."""
        batch = StageBatch.from_stages(stages)
        us = super().stages(batch)
        refused = np.flatnonzero(np.isinf(us))
        if len(refused):
            known_us = self._measured.known([batch[int(i)] for i in refused])
            is_known = ~np.isnan(known_us)
            us[refused[is_known]] = known_us[is_known]
            self.refused -= int(is_known.sum())
        return us


def latency_in_time(
    scheduler: str, measured: MeasuredLatency, program: Program, budget: TimeBudget
) -> LatencyModel:
    """The latencies for a scheduler that measures `program`.

    If the time is limited, the scheduler `ios` gets a latency model that stops measuring early, so
    that time is left for the speed check.

    Parameters
    ----------
    budget: the time for the schedule and its speed check.
    """
    if scheduler != "ios" or not budget.is_limited:
        return measured
    names = [op.name for op in program.operators]
    return MeasuredInTime(measured, names, program.parts() or [], budget.share(_SEARCH_SHARE))


def options_in_time(
    scheduler: str, options: Mapping[str, Any], budget: TimeBudget
) -> dict[str, Any]:
    """A scheduler's options, with `time_budget_s` reduced to the time that the scheduler may take.

    Options are not changed if the time is unlimited, or if the scheduler has no option
    `time_budget_s`.

    Parameters
    ----------
    budget: the time for the schedule and its speed check.
    """
    if "time_budget_s" not in options_of(scheduler):
        return dict(options)
    # `auto` may use all of the time, because it keeps enough of it for running schedules itself.
    return _cut(options, budget, 1.0 if scheduler == "auto" else _SEARCH_SHARE)


def searched_in_time(
    search: Callable[..., ActiveSearch], options: Mapping[str, Any], budget: TimeBudget
) -> Schedule:
    """Run the search with learned latencies for at most the time that a search may take.

    Parameters
    ----------
    search: makes the search from its options.
    budget: the time for the schedule and its speed check.
    """
    share = budget.share(_SEARCH_SHARE)
    made = search(**_cut(options, budget, _SEARCH_SHARE))
    try:
        found = made.run()
    except OutOfTimeError:
        found = made.best()
    return replace(found, stats={**found.stats, "budget_used_up": share.is_spent})


def search_limits(options: Mapping[str, Any], budget: TimeBudget) -> tuple[Limits, int]:
    """Read the limits and the seed of a search with learned latencies from its options.

    The option's limit in seconds is reduced to the time that a search may take.

    Parameters
    ----------
    budget: the time for the schedule and its speed check.

    Raises
    ------
    InputError: a limit is negative.
    ScheduleError: the seed is not a whole number of 0 or more.
    """
    seed = options.get("seed", 0)
    check_counts(seed=seed)
    seconds = _cut(options, budget, _SEARCH_SHARE).get("time_budget_s")
    return Limits(options.get("max_measurements"), seconds), seed


def _cut(options: Mapping[str, Any], budget: TimeBudget, share: float) -> dict[str, Any]:
    given = options.get("time_budget_s")
    # If `time_budget_s` is not a number, the search refuses it with a message.
    if not budget.is_limited or not (given is None or is_finite(given)):
        return dict(options)
    left_s = budget.left_s() * share
    return {**options, "time_budget_s": left_s if given is None else min(given, left_s)}


def with_refused(schedule: Schedule, latency: LatencyModel | None) -> Schedule:
    """Add to `schedule.stats` how many stages `latency` refused, and if its time is over."""
    if not isinstance(latency, MeasuredInTime):
        return schedule
    late = {"stages_refused": latency.refused, "budget_used_up": latency.is_late}
    return replace(schedule, stats={**schedule.stats, **late})


def note_speed_check(checked: SpeedCheck | None, budget: TimeBudget) -> None:
    """Add a phrase to `budget.not_tried` if the speed check lacked the time for more rounds.

    A speed check lacked time if it chose sequential execution and its time was over.

    Parameters
    ----------
    budget: the time for the schedule and its speed check.
    """
    if checked is not None and checked.shipped == "sequential" and budget.is_spent:
        budget.leave_out(f"more than {checked.rounds} rounds of the speed check")


def note_search(schedule: Schedule, budget: TimeBudget) -> None:
    """Add to `budget.not_tried` the work that a scheduler left out, according to its `stats`."""
    if not budget.is_limited:
        return
    stats = schedule.stats
    refused = stats.get("stages_refused", 0)
    if refused:
        budget.leave_out(f"measuring {refused} stages in the search for a schedule")
    elif stats.get("budget_used_up"):
        budget.leave_out("a part of the search for a schedule")
    if stats.get("not_run"):
        budget.leave_out("running the schedules that were found against sequential execution")
