"""What the schedulers check alike about their options."""

from __future__ import annotations

import time

import numpy as np

from ..errors import ScheduleError
from ..latency.base import LatencyModel


def required_latency(latency: LatencyModel | None, name: str) -> LatencyModel:
    """`latency`, or a ScheduleError that says `name` cannot do without."""
    if latency is None:
        raise ScheduleError(
            f"scheduler `{name}` needs a latency model; pass `latency=`, for example a "
            "LatencyTable of the operators' latencies in microseconds"
        )
    return latency


def check_counts(at_least: int = 0, **options: int) -> None:
    """Refuse an option that is no whole number of `at_least` or more, naming it."""
    for option, value in options.items():
        is_count = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not is_count or value < at_least:
            raise ScheduleError(
                f"`{option}` is {value!r}; it must be a whole number, {at_least} or more"
                + ("" if at_least else " (0: no limit)")
            )


def check_streams(streams: int | None) -> None:
    """Refuse a number of streams below 1; None is any number."""
    if streams is not None:
        check_counts(at_least=1, streams=streams)


def us_since(started: float) -> float:
    """Microseconds since `time.perf_counter()` gave `started`."""
    return (time.perf_counter() - started) * 1e6
