"""lios+: list scheduling by the longest remaining path, with a price on waits."""

from __future__ import annotations

from .._native import passes as native
from ..latency.base import LatencyModel
from ..program.graph import OpGraph
from .list_scheduling import list_schedule
from .options import check_numbers
from .registry import register_scheduler
from .schedules import Schedule


@register_scheduler("lios+")
def lios_plus(
    graph: OpGraph,
    latency: LatencyModel | None,
    streams: int | None = None,
    wait_us: float = 0.0,
) -> Schedule:
    """LIOS by longest remaining path, with a cost per wait. Beyond the LIOS paper.

    As `lios`, with two changes. The operator from which the longest path leads to the end goes
    first, its own latency included, rather than the longest operator. And an operator starts
    `wait_us` later for each other stream that holds an operator it reads, so that work spreads
    only where that pays. Nothing is inserted into gaps. Ties as `lios`.

    Parameters
    ----------
    streams: how many streams there are; None for the graph's width.
    wait_us: microseconds that one wait across streams costs on this device; 0 leaves waits free.
        The predicted makespan holds them, whether or not the plan can drop some that others
        cover.

    Complexity: O(n log n + edges * log streams), besides the graph's width.
    """
    check_numbers(wait_us=wait_us)
    return list_schedule("lios+", native.lios_plus, graph, latency, streams, float(wait_us))
