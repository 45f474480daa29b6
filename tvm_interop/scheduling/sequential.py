"""Sequential: what the others are measured against."""

from __future__ import annotations

import time

from ..graph import OpGraph
from ..latency.base import LatencyModel
from .options import us_since
from .registry import register_scheduler
from .schedule import Schedule


@register_scheduler("sequential")
def sequential(graph: OpGraph, latency: LatencyModel | None) -> Schedule:
    """One operator after the other on one stream, in `OpGraph.topological_order`."""
    started = time.perf_counter()
    streams = (graph.topological_order(),) if graph.num_ops else ()
    stats = {"search_us": us_since(started), "pricing_us": 0.0}
    return Schedule("sequential", graph.names, streams=streams, stats=stats)
