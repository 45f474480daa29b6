"""LIOS: list scheduling by latency."""

from __future__ import annotations

from .._native import passes as native
from ..latency.base import LatencyModel
from ..program.graph import OpGraph
from .list_scheduling import list_schedule
from .registry import register_scheduler
from .schedules import Schedule


@register_scheduler("lios")
def lios(graph: OpGraph, latency: LatencyModel | None, streams: int | None = None) -> Schedule:
    """LIOS: list scheduling, longest operator first, each where it finishes first.

    Section IV, Algorithm 1 of the LIOS paper. Rank is the operator's own latency (Eq. 5), not a
    path length. Ties: the operator that waits longest (operators that become ready together
    arrive by ascending id), the lowest stream.

    Parameters
    ----------
    streams: how many streams there are; None for the graph's width, more would stay empty.

    Complexity: O(n log n + edges), besides the graph's width.
    """
    return list_schedule("lios", native.lios, graph, latency, streams)
