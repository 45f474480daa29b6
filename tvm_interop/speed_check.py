"""Schedules run against each other, and what is said of one run against sequential execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .artifact import SpeedCheck

_COMPARISON_S = 3.0
"""About how long a comparison may take, in seconds."""
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
    round_s = sum(times[0] for times in trial)
    rounds = int(np.clip(_COMPARISON_S / round_s, _MIN_ROUNDS, _MAX_ROUNDS))
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
