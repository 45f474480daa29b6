"""Defines `OperatorTiming`. All native executors return objects of this class."""

from __future__ import annotations

from typing import NamedTuple


class OperatorTiming(NamedTuple):
    """The times at which one operator ran, in microseconds since the run began.

    Attributes
    ----------
    op, stream: indices of the operator and of its stream in the plan.
    start_us, end_us: when the operator started and when it ended.
    thread: on a CPU, the thread that ran the operator: 0 for the thread that called `run`, a higher
        number for a helper thread.
    on_core_us: on a CPU, how long the thread had a core between `start_us` and `end_us`.
    """

    op: int
    stream: int
    start_us: float
    end_us: float
    thread: int | None = None
    on_core_us: float | None = None
