"""IOS: dynamic programming over stages."""

from __future__ import annotations

import time

import numpy as np
import tvm_ffi

from ..errors import ScheduleError
from ..graph import OpGraph
from ..latency.base import LatencyModel, check_size, op_latencies
from ..latency.batch import StageBatch
from .options import check_counts, check_streams, required_latency, us_since
from .registry import register_scheduler
from .schedule import Schedule, pack_onto_streams, unpack_stages

_ENUMERATE = tvm_ffi.get_global_func("tvm_interop.ios_enumerate")
_STAGES = tvm_ffi.get_global_func("tvm_interop.ios_stages")
_STATS = tvm_ffi.get_global_func("tvm_interop.ios_stats")
_SOLVE = tvm_ffi.get_global_func("tvm_interop.ios_solve")
_PACK_STAGES = tvm_ffi.get_global_func("tvm_interop.pack_stages")


@register_scheduler("ios")
def ios(
    graph: OpGraph,
    latency: LatencyModel | None,
    max_group_ops: int = 3,
    max_groups: int = 8,
    endings: str = "complete",
    streams: int | None = None,
    max_transitions: int = 20_000_000,
) -> Schedule:
    """IOS: the cheapest sequence of stages, by dynamic programming over endings.

    Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys 2021, Algorithm 1;
    concurrent execution only. The graph is searched block by block (`OpGraph.blocks`). All the
    distinct stages are found first and priced in one call of `latency.stages`. Of equally cheap
    endings of a state the first in order of enumeration is taken: groups by first operator in
    topological order, then fewer operators first, then lowest operators; endings lexicographic
    in their groups.

    Parameters
    ----------
    max_group_ops: the paper's r, the most operators in a group; 0 for any number.
    max_groups: the paper's s, the most groups in a stage; 0 for any number.
    endings: `complete` for every ending, its groups being its weakly connected components;
        `paper` for only those whose groups have a single root each, as the authors' code
        enumerates them (and the counts of their Table 1).
    streams: the groups of a stage are packed onto that many streams (weighed by `latency.op`,
        longest first), and it is the packed stage that is priced. None: a stream per group.
    max_transitions: the most (state, ending) pairs kept for a block. A block with more is cut
        into halves along the topological order, again if need be; `stats["parts_cut"]` counts
        the cuts. The schedule is then optimal only between them.

    `stats` counts blocks, parts_cut, states (nonempty), transitions, stages_priced (distinct) and
    schedules (ways through the states of all blocks; inf past the range of a double).

    Complexity: O((n/d + 1)^d (r + 1)^s) for a block of n operators and width d (section 4.3).
    """
    model = required_latency(latency, "ios")
    check_counts(max_group_ops=max_group_ops, max_groups=max_groups)
    check_counts(at_least=1, max_transitions=max_transitions)
    if endings not in ("complete", "paper"):
        raise ScheduleError(f"`endings` is {endings!r}; it must be `complete` or `paper`")
    check_streams(streams)

    started = time.perf_counter()
    paper = endings == "paper"
    search = _ENUMERATE(graph.native, max_group_ops, max_groups, paper, max_transitions)
    flat = _STAGES(search)
    search_us = us_since(started)

    started = time.perf_counter()
    check_size(model, graph.names)
    op_us = None
    if streams is not None:
        op_us = op_latencies(model, graph.names)
        flat = _PACK_STAGES(flat, op_us.tobytes(), streams)
    price_us = np.asarray(model.stages(StageBatch.from_bytes(flat)), dtype=np.float64)
    pricing_us = us_since(started)

    started = time.perf_counter()
    native_stages, makespan = _SOLVE(search, price_us.tobytes())
    stages = unpack_stages(native_stages)
    if streams is not None and op_us is not None:
        stages = pack_onto_streams(stages, op_us.tolist(), streams)
    search_us += us_since(started)
    stats = {"search_us": search_us, "pricing_us": pricing_us, **dict(_STATS(search))}
    return Schedule("ios", graph.names, stages=stages, makespan=makespan, stats=stats)
