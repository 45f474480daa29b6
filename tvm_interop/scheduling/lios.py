"""LIOS: list scheduling by latency."""

from __future__ import annotations

import time

import numpy as np
import tvm_ffi

from ..graph import OpGraph
from ..latency.base import LatencyModel, op_latencies
from .options import check_streams, required_latency, us_since
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

    Complexity: O(n log n + edges + n * streams).
    """
    model = required_latency(latency, "lios")
    check_streams(streams)
    started = time.perf_counter()
    op_us = op_latencies(model, graph.names)
    pricing_us = us_since(started)
    started = time.perf_counter()
    num_streams = max(graph.width, 1) if streams is None else streams
    native_streams, where, when_us, makespan = _LIOS(graph.native, op_us.tobytes(), num_streams)
    ops_and_streams = np.frombuffer(where, dtype=np.int64).reshape(-1, 2).tolist()
    times = np.frombuffer(when_us, dtype=np.float64).reshape(-1, 2).tolist()
    timeline = tuple(
        (op, stream, start, finish)
        for (op, stream), (start, finish) in zip(ops_and_streams, times, strict=True)
    )
    return Schedule(
        "lios",
        graph.names,
        streams=tuple(tuple(ops) for ops in native_streams),
        makespan=makespan,
        timeline=timeline,
        stats={"search_us": us_since(started), "pricing_us": pricing_us},
    )
