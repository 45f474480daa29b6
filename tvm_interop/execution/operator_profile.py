"""Profiles of runs.

A profile says when each operator ran, and how long it was ready but had no core.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from .._native.timing import OperatorTiming

if TYPE_CHECKING:
    from ..plan.plan import Plan


class OpProfile(NamedTuple):
    """The times at which one operator ran, in microseconds since the run began.

    Attributes
    ----------
    name, kernel: names of the operator and of its kernel.
    stream: index of the operator's stream.
    start_us, end_us: when the operator started and when it ended.
    thread: on a CPU, the thread that ran the operator: 0 for the thread that called `run`,
        otherwise the number of a helper thread.
    lost_us: on a CPU, the time in which the operator could run but had no core. During this time no
        thread had started the operator yet, or the system had taken the core from its thread.
    off_core_us: how much of `lost_us` lies between `start_us` and `end_us`.
    """

    name: str
    kernel: str
    stream: int
    start_us: float
    end_us: float
    thread: int | None = None
    lost_us: float = 0.0
    off_core_us: float = 0.0


def operator_profile(plan: Plan, timings: Iterable[OperatorTiming]) -> list[OpProfile]:
    """Return one row per operator, in order of start, from the timings of a run of `plan`."""
    by_operator = {timing.op: timing for timing in timings}
    ready_us = _ready_us(plan, by_operator)
    rows = []
    for op, timing in sorted(by_operator.items()):
        planned = plan.operators[op]
        lost_us = off_core_us = 0.0
        if timing.on_core_us is not None:
            off_core_us = max(timing.end_us - timing.start_us - timing.on_core_us, 0.0)
            lost_us = max(timing.start_us - ready_us[op], 0.0) + off_core_us
        rows.append(
            OpProfile(
                planned.name,
                planned.kernel,
                timing.stream,
                timing.start_us,
                timing.end_us,
                timing.thread,
                lost_us,
                off_core_us,
            )
        )
    return sorted(rows, key=lambda row: (row.start_us, row.stream))


def _ready_us(plan: Plan, timings: Mapping[int, OperatorTiming]) -> dict[int, float]:
    """Return when each operator could start, in microseconds since the run began.

    An operator can start when two conditions hold: all operators that it waits for have ended, and
    the operator before it on its stream has ended.
    """
    ready_us: dict[int, float] = {}
    ended_us: dict[int, float] = {}  # For each stream: when its latest operator ended.
    for op, planned in enumerate(plan.operators):
        ends_us = [timings[wait].end_us for wait in planned.waits]
        ready_us[op] = max([*ends_us, ended_us.get(planned.stream, 0.0)])
        ended_us[planned.stream] = timings[op].end_us
    return ready_us
