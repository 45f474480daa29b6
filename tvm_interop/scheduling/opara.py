"""Opara: streams along dependencies, launches by resources and interference."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .._native import passes as native
from ..errors import ScheduleError
from ..latency.base import LatencyModel, op_latencies
from ..program.graph import OpGraph
from ..program.traits import OperatorTraits, are_memory_bound, demands
from .folding import fold_streams
from .options import check_numbers, check_streams, us_since
from .registry import register_scheduler
from .schedules import Schedule


@register_scheduler("opara")
def opara(
    graph: OpGraph,
    latency: LatencyModel | None,
    traits: Sequence[OperatorTraits] | None = None,
    streams: int | None = None,
    flops_per_byte: float = 10.0,
) -> Schedule:
    """Opara: operators that leave room for others launch first, memory- beside compute-bound.

    Chen et al., "Opara: Exploiting Operator Parallelism for Expediting DNN Inference on GPUs",
    2023. The launch order is Algorithm 2: of the operators that are ready, alternately a
    memory-bound and a compute-bound one (memory-bound first; of the other kind where one has run
    out), the one of least demand. The streams are Algorithm 1 along that order, as in the
    authors' code: an operator goes on with the stream of the first of its predecessors that
    launched no other successor before, or opens one. Ties: lowest id.

    `Schedule.launch_order` holds the launches, and plans keep them.

    Parameters
    ----------
    traits: what each operator asks of the device, by id. None: all alike, which leaves the
        order to the dependencies and the ids.
    streams: how many streams there are; None for as many as the algorithm opens. With fewer,
        whole streams are laid on top of each other: the one that takes longest (the sum of
        `latency.op`, or operators counted without a latency model) first onto the least loaded,
        ties to the lowest; operators that then share a stream run in launch order.
    flops_per_byte: an operator of lower arithmetic intensity is memory-bound, where its traits
        do not say.

    Complexity: O(n log n + edges).
    """
    check_streams(streams)
    if traits is not None and len(traits) != graph.num_ops:
        raise ScheduleError(
            f"`traits` describes {len(traits)} operators, but the graph has {graph.num_ops}; "
            "give one for each, by id"
        )
    check_numbers(flops_per_byte=flops_per_byte)
    started = time.perf_counter()
    described = [OperatorTraits()] * graph.num_ops if traits is None else traits
    memory_bound = are_memory_bound(described, flops_per_byte)
    found, launch_order = native.opara(
        graph.native, demands(described).tobytes(), memory_bound.tobytes()
    )
    search_us = us_since(started)
    pricing_us = 0.0
    if streams is not None and len(found) > streams:
        started = time.perf_counter()
        op_us = op_latencies(latency, graph.names) if latency is not None else None
        pricing_us = us_since(started)
        started = time.perf_counter()
        found = fold_streams(graph, found, op_us, streams, launch_order)
        search_us += us_since(started)
    return Schedule(
        "opara",
        graph.names,
        streams=tuple(tuple(ops) for ops in found),
        launch_order=tuple(launch_order),
        stats={"search_us": search_us, "pricing_us": pricing_us},
    )
