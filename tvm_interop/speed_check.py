"""Schedules run against each other, and what is said of one run against sequential execution.

Each schedule runs as long however many there are: the measurement that `auto` decides by is as good
as a check of its winner alone, and serves as one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .artifact import SpeedCheck
from .scheduling import Schedule

_EACH_S = 1.0
"""About how long each schedule of a comparison runs, in seconds."""
_MIN_ROUNDS = 7
_MAX_ROUNDS = 101


def interleaved_us(
    executors: list[Any],
    measure_interleaved: Callable[[list[Any], int, int, int], list[list[float]]],
) -> list[float]:
    """Run executors against each other: the median of each in microseconds.

    Parameters
    ----------
    measure_interleaved: the device's, of executors, warm-up runs, rounds, and a seed.
    """
    trial = measure_interleaved(executors, 1, 1, 0)
    mean_s = sum(times[0] for times in trial) / len(executors)
    rounds = int(np.clip(_EACH_S / mean_s, _MIN_ROUNDS, _MAX_ROUNDS))
    timed = measure_interleaved(executors, 1, rounds, 1)
    return [float(np.median(times)) * 1e6 for times in timed]


def speed_check(sequential_us: float, noise_us: float, scheduled_us: float) -> SpeedCheck:
    """Which ships: the schedule, where it is faster.

    Parameters
    ----------
    sequential_us: the lower of two measurements of sequential execution.
    noise_us: how far the two differ.
    """
    return SpeedCheck(
        sequential_us=sequential_us,
        scheduled_us=scheduled_us,
        noise_ratio=(sequential_us + noise_us) / sequential_us,
        shipped="scheduled" if scheduled_us < sequential_us else "sequential",
    )


def speed_check_by_auto(schedule: Schedule) -> SpeedCheck | None:
    """What `auto` measured of the schedule it made; None where it measured nothing.

    Being the fastest of several by chance does not do: `auto` asks its winner to beat sequential
    execution by more than the noise, where a check asks it to be faster at all.
    """
    measured_us = schedule.stats.get("measured_us")
    if not measured_us:
        return None
    return speed_check(
        measured_us["sequential"],
        schedule.stats["noise_us"],
        measured_us[schedule.stats["winner"]],
    )
