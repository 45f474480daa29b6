"""LIOS: list scheduling by latency."""

from __future__ import annotations

import tvm_ffi

from ..graph import OpGraph
from ..latency.base import LatencyModel
from .list_scheduling import list_schedule
from .registry import register_scheduler
from .schedule import Schedule

_LIOS = tvm_ffi.get_global_func("tvm_interop.lios")


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
    return list_schedule("lios", _LIOS, graph, latency, streams)
