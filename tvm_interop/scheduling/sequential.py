"""The scheduler `sequential`: all operators in order, as a baseline for the other schedulers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..errors import ScheduleError
from ..latency.base import LatencyModel
from ..program.graph import OpGraph
from ..program.planning import Buffer, memory_order
from .options import us_since
from .registry import register_scheduler
from .schedules import Schedule


@register_scheduler("sequential")
def sequential(
    graph: OpGraph,
    latency: LatencyModel | None,
    order: str = "topological",
    buffers: Sequence[Buffer] | None = None,
) -> Schedule:
    """Run the operators one after the other on one stream.

    Parameters
    ----------
    order: `topological` for `OpGraph.topological_order`. `memory` for an order that keeps few bytes
        in use at the same time (`planning.memory_order`, a greedy order with ties to the lowest
        id). With `memory`, `stats["peak_bytes"]` is the largest number of bytes in use at once.
        `stats["topological_peak_bytes"]` is the same number for the topological order.
    buffers: the tensors between operators, needed for the order `memory`. `compile` passes the
        tensors of its model.
    """
    started = time.perf_counter()
    counts: dict[str, Any] = {}
    ops = graph.topological_order()
    if order == "memory":
        if buffers is None:
            raise ScheduleError(
                "`order='memory'` needs to know how large tensors are; pass `buffers=`, for "
                "example `Program.buffers()`"
            )
        found = memory_order(graph, buffers)
        ops = found.order
        counts = {
            "peak_bytes": found.peak_bytes,
            "topological_peak_bytes": found.topological_peak_bytes,
        }
    elif order != "topological":
        raise ScheduleError(f"`order` is {order!r}; it must be `topological` or `memory`")
    streams = (ops,) if ops else ()
    stats = {"search_us": us_since(started), "pricing_us": 0.0, **counts}
    return Schedule("sequential", graph.names, streams=streams, stats=stats)
