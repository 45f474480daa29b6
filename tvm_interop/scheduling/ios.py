"""IOS: dynamic programming over stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..latency.base import LatencyModel, op_latencies
from ..program.graph import OpGraph
from .ios_search import IosOptions, search_ios
from .options import required_latency
from .registry import register_scheduler
from .schedules import Schedule
from .whole_operators import WholeOperators


@register_scheduler("ios-parallel")
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
    bound_slack_us: float = 1.0,
    parts: Sequence[Sequence[int]] | None = None,
    time_budget_s: float | None = None,
    beam: bool = True,
) -> Schedule:
    """IOS: the cheapest sequence of stages, by dynamic programming over endings.

    Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys 2021, Algorithm 1;
    concurrent execution only: what the paper calls IOS-Parallel, and `ios-parallel` is another name
    for it. (`ios-merge` and `ios-both` merge operators too.) The graph is searched block by block
    (`OpGraph.blocks`). The distinct stages are found first; then those that an optimal schedule may
    need are priced, in few calls of `latency.stages`. Of equally cheap endings of a state the first
    in order of enumeration is taken: groups by first operator in topological order, then fewer
    operators first, then lowest operators; endings lexicographic in their groups.

    Parameters
    ----------
    max_group_ops: the paper's r, the most operators in a group; 0 for any number.
    max_groups: the paper's s, the most groups in a stage; 0 for any number.
    endings: `complete` for every ending, its groups being its weakly connected components;
        `paper` for only those whose groups have a single root each, as the authors' code
        enumerates them (and the counts of their Table 1).
    streams: the groups of a stage are packed onto that many streams (weighed by `latency.op`,
        longest first), and it is the packed stage that is priced. None: a stream per group.
    max_transitions: the most (state, ending) pairs looked at; those of one block are kept, 8 bytes
        each, and all that the search holds is a few times that. They are shared out between the
        blocks. A block with more than its share is not searched through: see below. All such blocks
        together get a quarter of what the others leave: as it is, one or two seconds.
    time_budget_s: with a number of seconds, blocks that are too large are searched until then,
        however many transitions that takes, and fewer blocks are searched through where the time
        is short. What is found then depends on the machine. None: `max_transitions` alone decides,
        and the same inputs give the same schedule.
    beam: False cuts a block that is too large into parts instead, between operators that can start
        early and those that start late; `stats["parts_cut"]` counts the cuts. The schedule is then
        optimal between the cuts. Beams are better and faster, by all that was measured.
    bounds: leave a stage unpriced where lower bounds show that no optimal schedule needs it. A
        stage takes at least as long as its longest group, the operators of which are summed as
        they take alone. The schedule is the one that pricing every stage gives, as long as no
        price is below its bound. One that is gets counted in `stats["below_bound"]` and warned
        of; all bounds are then lowered to the worst ratio seen and the search goes on. False
        prices every stage in one call.
    cores: how many operators can truly run at once: a stage then takes at least its operators'
        total over `cores`. None where groups have more than one core each, or nobody knows.
    bound_tolerance, bound_slack_us: the share, and besides the microseconds, by which a price may
        fall short of its bound (caches are warm behind a producer, and clocks are noisy). The
        bounds are lowered by both from the start, so that nothing is lost.
    parts: the operators that are the parts of one, a list of ids each, and the others one by one.
        The search then takes each as a whole, on all streams, and a group is one of them: inside a
        group there is nothing left to run side by side. None where no operator is divided.

    Borders of blocks. All that is before one comes before all behind it, so a stage that crosses it
    is a single group, and takes what its operators take one after the other: it saves what a stage
    costs by itself (`LatencyModel.stage_us`), and nothing where that is 0, as in a plan without
    barriers. Block by block, a schedule is within that cost a border of the best, and the states of
    the blocks are added up and not multiplied. Where the cost is above 0, windows across the
    borders are searched at the end.

    Blocks too large. The search holds the cheapest sequence of stages known, which `greedy`'s are
    at first. Beams look for cheaper ones: they build sequences stage by stage, in both directions,
    and keep the best 1, 2, 4, ... for each number of operators done, by what they cost and what is
    left (the longest path, or the work at the parallelism of the best sequence known). A way that
    cannot be cheaper than that one is left. Then windows of neighbouring stages are searched
    through for the cheapest stages that their operators can make, again with other borders, and
    wider, until none gets better. With a latency model that is costly to ask (`is_costly`) beams
    go by guesses, and only the stages that they choose are priced. A stage without a price, such
    as one that a measuring budget has left out, is never chosen.

    `stats` counts blocks, blocks_left (too large), parts_cut, and of the blocks searched through:
    states (nonempty), transitions, stages (distinct), and schedules (ways through the states of
    all blocks; inf past the range of a double); stages_priced in all, and stages_spared of the
    distinct ones; below_bound, bound_scale (what bounds were lowered to, as a share; 0 without
    bounds). `lower_bound_us` is what no schedule of these stages is below, as far as no stage is
    faster than its operators suggest: where the makespan is above it, the difference is the most
    that more searching may gain. `optimal` says whether all blocks were searched through, and
    no border costs anything.

    Complexity: O((n/d + 1)^d (r + 1)^s) for a block of n operators and width d (section 4.3).
    """
    options = IosOptions(
        max_group_ops,
        max_groups,
        endings,
        streams,
        max_transitions,
        bounds,
        cores,
        bound_tolerance,
        bound_slack_us,
        time_budget_s=time_budget_s,
        beam=beam,
    )
    if parts is None:
        return search_ios("ios", graph, latency, options)
    model = required_latency(latency, "ios")
    wholes = WholeOperators(graph, parts)
    options = replace(options, max_group_ops=1, streams=None)
    op_us = None
    if streams is not None:
        op_us = op_latencies(model, graph.names).tolist()
        # Whatever runs where, a stream takes what its parts take.
        options = replace(options, cores=cores or streams, work_us=wholes.work_us(op_us))
    found = search_ios("ios", wholes.graph, wholes.latency(model), options)
    stages = wholes.divided(found.stages, op_us, streams)
    return replace(found, op_names=graph.names, stages=stages, streams=())
