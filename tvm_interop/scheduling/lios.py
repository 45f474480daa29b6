"""The scheduler `lios`: list scheduling by the operators' latencies."""

from __future__ import annotations

from .._native import passes as native
from ..latency.base import LatencyModel
from ..program.graph import OpGraph
from .list_scheduling import list_schedule
from .registry import register_scheduler
from .schedules import Schedule


@register_scheduler("lios")
def lios(graph: OpGraph, latency: LatencyModel | None, streams: int | None = None) -> Schedule:
    """LIOS: list scheduling; the longest ready operator goes to the stream on which it ends first.

    The scheduler is Algorithm 1 in section IV of the LIOS paper (Ping et al., "Latency-Based
    Inter-Operator Scheduling for CNN Inference Acceleration on GPU"). The rank of an operator is
    its own latency (Eq. 5), and not the length of a path. Ties go to the operator that has been
    ready longest, then to the lowest stream. Operators that become ready together are ordered by
    ascending id.

    Parameters
    ----------
    streams: number of streams; None for the graph's width. Streams beyond the width would stay
        empty.

    Complexity: O(n log n + edges), plus the computation of the graph's width.
    """
    return list_schedule("lios", native.lios, graph, latency, streams)
