"""The scheduler `greedy`: each stage runs all operators that are ready."""

from __future__ import annotations

import time

from .._native import passes as native
from ..latency.base import LatencyModel, op_latencies
from ..program.graph import OpGraph
from .options import check_counts, check_streams, us_since
from .registry import register_scheduler
from .schedules import Schedule
from .stages import pack_onto_streams, unpack_stages


@register_scheduler("greedy")
def greedy(
    graph: OpGraph,
    latency: LatencyModel | None,
    max_groups: int = 0,
    streams: int | None = None,
) -> Schedule:
    """Greedy: each stage runs all operators that are ready, until all operators are scheduled.

    Ding et al. compare IOS with this scheduler (MLSys 2021, section 6.1). In the paper, a stage may
    have any number of operators. Each group holds one operator. No latency model is needed.

    Parameters
    ----------
    max_groups: largest number of operators in a stage; 0 for no limit, as in the paper. If more
        operators are ready, the stage takes the operators with the lowest ids.
    streams: number of streams onto which the groups of a stage are packed. The length of a group is
        the latency of its operator, or 1 without a latency model. None gives each group its own
        stream.
    """
    check_counts(max_groups=max_groups)
    check_streams(streams)
    pricing_us = 0.0
    op_us = [1.0] * graph.num_ops
    if latency is not None and streams is not None:
        started = time.perf_counter()
        op_us = op_latencies(latency, graph.names).tolist()
        pricing_us = us_since(started)
    started = time.perf_counter()
    stages = unpack_stages(native.greedy(graph.native, max_groups))
    if streams is not None:
        stages = pack_onto_streams(stages, op_us, streams)
    stats = {"search_us": us_since(started), "pricing_us": pricing_us}
    return Schedule("greedy", graph.names, stages=stages, stats=stats)
