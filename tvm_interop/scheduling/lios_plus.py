"""The scheduler `lios+`: list scheduling by the longest remaining path, with a cost for waits."""

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
    """LIOS with ranks by longest remaining path, and with a cost for waits; not in the LIOS paper.

    `lios+` differs from `lios` in two ways. First, the rank of an operator is the longest path from
    the operator to the end of the graph, its own latency included. Second, an operator that reads
    from other streams starts later, by `wait_us` for each of these streams. So an operator goes to
    another stream only if this gains more time than the waits cost. Operators are not inserted into
    gaps. Ties are broken as in `lios`.

    Parameters
    ----------
    streams: number of streams; None for the graph's width.
    wait_us: microseconds that one wait across streams costs on this device; 0 makes waits free. The
        predicted makespan includes the cost of every wait. This holds even for a wait that the plan
        leaves out because another wait makes it unnecessary.

    Complexity: O(n log n + edges * log streams), plus the computation of the graph's width.
    """
    check_numbers(wait_us=wait_us)
    return list_schedule("lios+", native.lios_plus, graph, latency, streams, float(wait_us))
