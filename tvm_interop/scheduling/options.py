"""Helpers that schedulers share: checks of their options, and a timer."""

from __future__ import annotations

import math
import time

from ..errors import NoLatencyError, ScheduleError
from ..latency.base import LatencyModel
from ..plain_data import LARGEST, is_finite, is_whole


def required_latency(latency: LatencyModel | None, name: str) -> LatencyModel:
    """Return `latency`, which scheduler `name` needs; raise NoLatencyError if it is None."""
    if latency is None:
        raise NoLatencyError(
            f"scheduler `{name}` needs a latency model; pass `latency=`, for example a "
            "LatencyTable of the operators' latencies in microseconds"
        )
    return latency


def check_counts(at_least: int = 0, **options: int) -> None:
    """Check that options are whole numbers of at least `at_least`.

    Raises
    ------
    ScheduleError: an option has another value; the message names the option.
    """
    for option, value in options.items():
        if not is_whole(value) or not at_least <= value <= LARGEST:
            raise ScheduleError(
                f"`{option}` is {value!r}; it must be a whole number, {at_least} or more"
                + ("" if at_least else " (0: no limit)")
                + (f", and at most {LARGEST}" if is_whole(value) and value > LARGEST else "")
            )


def check_numbers(below: float = math.inf, **options: float) -> None:
    """Check that options are finite numbers, at least 0 and less than `below`.

    Raises
    ------
    ScheduleError: an option has another value; the message names the option.
    """
    for option, value in options.items():
        if not is_finite(value) or not 0 <= value < below:
            upwards = "or more" if below == math.inf else f"to under {below}"
            raise ScheduleError(f"`{option}` is {value!r}; it must be a number, 0 {upwards}")


def check_streams(streams: int | None) -> None:
    """Check that `streams` is a whole number of 1 or more, or None for any number of streams."""
    if streams is not None:
        check_counts(at_least=1, streams=streams)


def us_since(started: float) -> float:
    """Microseconds that have passed since `time.perf_counter()` returned `started`."""
    return (time.perf_counter() - started) * 1e6
