"""Runs a native list scheduler, for LIOS and its variants."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..latency.base import LatencyModel, op_latencies
from ..program.graph import OpGraph
from .options import check_streams, required_latency, us_since
from .schedules import Schedule


def list_schedule(
    name: str,
    native: Callable[..., Any],
    graph: OpGraph,
    latency: LatencyModel | None,
    streams: int | None,
    *options: int | float,
) -> Schedule:
    """Run one of the native list schedulers as the scheduler called `name`.

    Parameters
    ----------
    native: the native scheduler. It takes the graph, the latencies of its operators, the number of
        streams and `options`.
    streams: number of streams; None for the graph's width.
    """
    model = required_latency(latency, name)
    check_streams(streams)
    started = time.perf_counter()
    op_us = op_latencies(model, graph.names)
    pricing_us = us_since(started)
    started = time.perf_counter()
    num_streams = max(graph.width, 1) if streams is None else streams
    native_streams, where, when_us, makespan = native(
        graph.native, op_us.tobytes(), num_streams, *options
    )
    ops_and_streams = np.frombuffer(where, dtype=np.int64).reshape(-1, 2).tolist()
    times = np.frombuffer(when_us, dtype=np.float64).reshape(-1, 2).tolist()
    timeline = tuple(
        (op, stream, start, finish)
        for (op, stream), (start, finish) in zip(ops_and_streams, times, strict=True)
    )
    return Schedule(
        name,
        graph.names,
        streams=tuple(tuple(ops) for ops in native_streams),
        makespan=makespan,
        timeline=timeline,
        stats={"search_us": us_since(started), "pricing_us": pricing_us},
    )
