"""The scheduler `nimble`: it finds the streams with the fewest waits by graph matchings."""

from __future__ import annotations

import time

from .._native import passes as native
from ..latency.base import LatencyModel, op_latencies
from ..program.graph import OpGraph
from ..program.planning import sync_plan
from .folding import fold_streams
from .options import check_streams, us_since
from .registry import register_scheduler
from .schedules import Schedule


@register_scheduler("nimble")
def nimble(graph: OpGraph, latency: LatencyModel | None, streams: int | None = None) -> Schedule:
    """Nimble: full parallelism with the fewest waits, and with as few streams as these allow.

    Kwon et al., "Nimble: Lightweight and Parallel GPU Task Scheduling for Deep Learning", NeurIPS
    2020, section 4.2. A maximum matching M of the minimum equivalent graph E' joins the operators
    into chains. The operators of a chain share a stream, so only `|E'| - |M|` edges need a wait. No
    other assignment that keeps independent operators on different streams has fewer waits.

    A second matching decides which chains of operators share a stream. Two chains share a stream
    only if this orders no independent operators and adds no wait. The number of streams is the
    smallest among all assignments with the same number of waits. For neural networks, the number of
    streams is usually the width of the graph. The number is a little larger if the fewest waits
    need more streams than the width.

    Ties: in the matchings, lowest ids come first. Streams are numbered by their first operator in
    topological order.

    Parameters
    ----------
    streams: number of streams; None for as many as the matchings find. If they find more than
        `streams`, streams are combined, without splitting a stream. The streams are placed one by
        one, the longest first. Each is put onto the new stream with the shortest total length so
        far; ties go to the lowest stream. The length of a stream is the sum of its operators'
        latencies. Without a latency model, it is the number of its operators. Operators that then
        share a stream run in the order of their earliest start, with ties in topological order.

    `stats` holds the numbers of edges of the minimum equivalent graph (`reduced_edges`), edges of
    the matching (`matching`), chains, waits and streams.

    Complexity: O(edges * n / 64) to find the minimum equivalent graph, and O(n^2 / 64) for each
        phase of a matching. There are few phases.
    """
    check_streams(streams)
    started = time.perf_counter()
    found, reduced_edges, matching, chains, waits = native.nimble(graph.native)
    search_us = us_since(started)
    pricing_us = 0.0
    if streams is not None and len(found) > streams:
        started = time.perf_counter()
        op_us = op_latencies(latency, graph.names) if latency is not None else None
        pricing_us = us_since(started)
        started = time.perf_counter()
        found = fold_streams(graph, found, op_us, streams)
        waits = sum(map(len, sync_plan(graph, found)))
        search_us += us_since(started)
    return Schedule(
        "nimble",
        graph.names,
        streams=tuple(tuple(ops) for ops in found),
        stats={
            "search_us": search_us,
            "pricing_us": pricing_us,
            "reduced_edges": reduced_edges,
            "matching": matching,
            "chains": chains,
            "waits": waits,
            "streams": len(found),
        },
    )
