"""IOS: dynamic programming over stages."""

from __future__ import annotations

import time

import tvm_ffi

from ..errors import ScheduleError
from ..graph import OpGraph
from ..latency.base import LatencyModel, check_size
from .ios_pricing import price_all, price_bounded
from .options import check_counts, check_streams, required_latency, us_since
from .registry import register_scheduler
from .schedule import Schedule, pack_onto_streams, unpack_stages

_ENUMERATE = tvm_ffi.get_global_func("tvm_interop.ios_enumerate")
_STATS = tvm_ffi.get_global_func("tvm_interop.ios_stats")
_SOLVE = tvm_ffi.get_global_func("tvm_interop.ios_solve")


@register_scheduler("ios")
def ios(
    graph: OpGraph,
    latency: LatencyModel | None,
    max_group_ops: int = 3,
    max_groups: int = 8,
    endings: str = "complete",
    streams: int | None = None,
    max_transitions: int = 8_000_000,
    bounds: bool = True,
    cores: int | None = None,
    bound_tolerance: float = 0.05,
) -> Schedule:
    """IOS: the cheapest sequence of stages, by dynamic programming over endings.

    Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys 2021, Algorithm 1;
    concurrent execution only. The graph is searched block by block (`OpGraph.blocks`). The
    distinct stages are found first; then those that an optimal schedule may need are priced, in
    few calls of `latency.stages`. Of equally cheap
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
    max_transitions: the most (state, ending) pairs kept, 8 bytes each; all that the search holds
        is a few times that. They are shared out between the blocks. A block with more than its
        share is cut into halves along the topological order, again if need be;
        `stats["parts_cut"]` counts the cuts. The schedule is then optimal only between them.
    bounds: leave a stage unpriced where lower bounds show that no optimal schedule needs it. A
        stage takes at least as long as its longest group, the operators of which are summed as
        they take alone. The schedule is the one that pricing every stage gives, as long as no
        price is below its bound. One that is gets counted in `stats["below_bound"]` and warned
        of; all bounds are then lowered to the worst ratio seen and the search goes on. False
        prices every stage in one call.
    cores: how many operators can truly run at once: a stage then takes at least its operators'
        total over `cores`. None where groups have more than one core each, or nobody knows.
    bound_tolerance: the share by which a price may fall short of its bound (caches are warm
        behind a producer, and clocks are noisy). The bounds are lowered by it from the start.

    `stats` counts blocks, parts_cut, states (nonempty), transitions, stages (distinct),
    stages_priced and stages_spared of them, below_bound, and schedules (ways through the states
    of all blocks; inf past the range of a double).

    Complexity: O((n/d + 1)^d (r + 1)^s) for a block of n operators and width d (section 4.3).
    """
    model = required_latency(latency, "ios")
    check_counts(max_group_ops=max_group_ops, max_groups=max_groups)
    check_counts(at_least=1, max_transitions=max_transitions)
    if endings not in ("complete", "paper"):
        raise ScheduleError(f"`endings` is {endings!r}; it must be `complete` or `paper`")
    check_streams(streams)
    if cores is not None:
        check_counts(at_least=1, cores=cores)
    if not 0 <= bound_tolerance < 1:
        raise ScheduleError(
            f"`bound_tolerance` is {bound_tolerance!r}; it must be a share, from 0 to below 1"
        )

    started = time.perf_counter()
    paper = endings == "paper"
    search = _ENUMERATE(graph.native, max_group_ops, max_groups, paper, max_transitions)
    search_us = us_since(started)

    started = time.perf_counter()
    check_size(model, graph.names)
    if bounds:
        priced = price_bounded(search, graph, model, streams, cores, bound_tolerance)
    else:
        priced = price_all(search, graph, model, streams)
    pricing_us = us_since(started)

    started = time.perf_counter()
    native_stages, makespan = _SOLVE(search, priced.value_us)
    stages = unpack_stages(native_stages)
    if streams is not None and priced.op_us is not None:
        stages = pack_onto_streams(stages, priced.op_us.tolist(), streams)
    search_us += us_since(started)
    stats = {
        "search_us": search_us,
        "pricing_us": pricing_us,
        **dict(_STATS(search)),
        **priced.counts,
    }
    return Schedule("ios", graph.names, stages=stages, makespan=makespan, stats=stats)
