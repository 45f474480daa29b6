"""Runs schedules against each other, and decides whether a schedule beats sequential execution."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ..artifact.manifest import SpeedCheck
from ..execution.instance import Clock
from ..scheduling import Schedule
from ..scheduling.budget import Budget
from ..scheduling.paired_rounds import FEWEST_ROUNDS, Confirmation, checked_rounds, confirm

_LIMIT_S = 30.0
"""The approximate limit of a speed check's duration, in seconds."""
_ROUGH_LIMIT_S = 2.0
"""The approximate limit of the duration of a rough speed check (see `check_rounds`), in seconds."""
_BATCH_S = 0.1
_MOST_IN_BATCH = 16


def interleaved_rounds(executors: list[Any], clock: Clock) -> Iterator[npt.NDArray[np.float64]]:
    """Run executors in turns, in rounds, until the caller stops the iteration.

    Yields
    ------
    The latencies of one round, in microseconds, of shape (len(executors),). Each executor runs once
    in a round, in a new random order.

    Parameters
    ----------
    clock: the clock of the executors' device.
    """
    warmup, batch = 1, 1
    for seed in itertools.count():
        seconds = np.array(
            clock.measure_interleaved(executors, warmup, batch, seed), dtype=np.float64
        )
        yield from seconds.T * 1e6
        # Run several rounds in one call. Between two calls the threads of the streams fall asleep.
        # The time to wake them must not be a part of the measured latencies.
        warmup, round_s = 0, float(seconds.sum()) / batch
        batch = int(np.clip(_BATCH_S / max(round_s, 1e-9), 1, _MOST_IN_BATCH))


def speed_check(confirmation: Confirmation) -> SpeedCheck:
    """Convert the result of a speed check to the record in the artifact.

    The artifact runs the schedule if the check found that the schedule is faster.
    """
    compared = confirmation.compared
    low, high = compared.interval
    return SpeedCheck(
        sequential_us=confirmation.sequential_us,
        scheduled_us=confirmation.scheduled_us,
        noise_ratio=confirmation.noise_ratio,
        shipped="scheduled" if compared.is_faster else "sequential",
        rounds=compared.rounds,
        paired_ratio=compared.ratio,
        interval=(low, high) if np.isfinite(high) else None,
    )


def check_rounds(
    rounds: Iterator[npt.NDArray[np.float64]], limit_s: float = math.inf, rough: bool = False
) -> SpeedCheck:
    """Check the speed of a schedule.

    Parameters
    ----------
    rounds: the three latencies of each round, in microseconds: sequential execution, sequential
        execution again, and the schedule.
    limit_s: seconds after which no further round begins. If it is short, there may be too few
        rounds to show that the schedule is faster.
    rough: whether new processes check the schedule's speed afterwards (`new_processes`). If so,
        this check takes at most about 2 seconds, and a schedule passes if it seems more than 1%
        faster.
    """
    three = checked_rounds(_until(Budget(limit_s), rounds), 3)
    within = Budget(_ROUGH_LIMIT_S if rough else _LIMIT_S)
    found = confirm(three, within, at_least=FEWEST_ROUNDS + 1, ends_early=True)
    return _rough_check(found, found.compared.seems_faster) if rough else speed_check(found)


def _rough_check(found: Confirmation, passes: bool) -> SpeedCheck:
    shipped: Literal["scheduled", "sequential"] = "scheduled" if passes else "sequential"
    return msgspec.structs.replace(speed_check(found), shipped=shipped)


def _until(
    budget: Budget, rounds: Iterator[npt.NDArray[np.float64]]
) -> Iterator[npt.NDArray[np.float64]]:
    """Yield the rounds that begin before the time is over, but at least one round."""
    for times_us in rounds:
        yield times_us
        if budget.left_s() <= 0:
            return


def speed_check_by_auto(schedule: Schedule) -> SpeedCheck | None:
    """The speed check that `auto` made of its schedule; None if `auto` measured nothing.

    The speed check is rough if `auto` did not confirm its choice (option `confirm_choice`).
    """
    confirmation = schedule.stats.get("confirmation")
    if confirmation is None:
        return None
    return _rough_check(confirmation, schedule.stats["winner"] != "sequential")
