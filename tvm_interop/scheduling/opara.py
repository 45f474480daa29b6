"""The scheduler `opara`: it launches memory-bound and compute-bound operators in turns."""

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
    """Opara: launches a memory-bound and a compute-bound operator in turn, least demand first.

    Chen et al., "Opara: Exploiting Operator Parallelism for Expediting DNN Inference on GPUs",
    2023. The launch order is Algorithm 2. The ready operators launch alternately: first a
    memory-bound operator, then a compute-bound operator. If no operator of one kind is ready, an
    operator of the other kind launches. Within a kind, the operator with the least demand launches
    first. Among operators with equal demand, the one that has been ready for longest launches
    first, as in the paper. Among operators that became ready together, the one with the lowest id
    launches first.

    The demand is the number of threads, the shared memory and the registers of a thread block.
    Section 3.2 of the paper profiles these numbers. When a model is compiled for a GPU, these
    numbers are read from the machine code of its kernels (`machine.gpu_traits`). The paper takes
    from a table of its authors whether an operator is memory-bound. Here the floating-point
    operations per byte decide.

    When the launch order is known, the operators are put onto streams in this order, by Algorithm 1
    and as in the authors' code. An operator goes to the stream of a predecessor if no other reader
    of this predecessor is launched before the operator. If there are several such predecessors, the
    one with the lowest id is taken. If there is none, the operator opens a new stream.

    `Schedule.launch_order` holds the launch order, and plans keep it.

    Parameters
    ----------
    traits: the demand of each operator on the device, by id. If `traits` is None, no operator is
        preferred, and operators launch in the order in which they become ready.
    streams: number of streams; None for as many as the algorithm opens. `compile` for a GPU passes
        None unless its own option `streams` is set. If the algorithm opens more than `streams`,
        streams are combined, without splitting a stream. The streams are placed one by one, the
        longest first. Each is put onto the new stream with the shortest total length so far; ties
        go to the lowest stream. The length of a stream is the sum of its operators' latencies.
        Without a latency model, it is the number of its operators. Operators that then share a
        stream run in launch order.
    flops_per_byte: arithmetic intensity in floating-point operations per byte. An operator of lower
        intensity counts as memory-bound unless its traits say otherwise.

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
