"""The scheduler `ios`: it finds the fastest sequence of stages by dynamic programming."""

from __future__ import annotations

from ..latency.base import LatencyModel
from ..program.graph import OpGraph
from .divided_search import Parts, search_divided
from .given_blocks import Blocks
from .ios_search import IosOptions
from .registry import register_scheduler
from .schedules import Schedule


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
    parts: Parts | None = None,
    time_budget_s: float | None = None,
    beam: bool = True,
    blocks: Blocks | None = None,
) -> Schedule:
    """IOS: finds the fastest sequence of stages by dynamic programming.

    Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys 2021, Algorithm 1, with
    concurrent execution only. The paper calls this IOS-Parallel, and `ios-parallel` is another name
    of this scheduler. `ios-merge` and `ios-both` merge operators too.

    A state is a set of operators that are still to be scheduled. An ending of a state is a set of
    its operators that can run as the last stage. The graph is searched block by block
    (`OpGraph.blocks`). The search first finds the distinct stages. Then it calls `latency.stages`
    for the stages that an optimal schedule may need, with as few calls as possible.

    Ties: among equally fast endings of a state, the first in order of enumeration is taken. Endings
    are enumerated in lexicographic order of their groups. Groups are ordered by their first
    operator in topological order, then by their size, then by their operators.

    Parameters
    ----------
    max_group_ops: largest number of operators in a group, r in the paper; 0 for no limit.
    max_groups: largest number of groups in a stage, s in the paper; 0 for no limit.
    endings: `complete` searches every ending, with its weakly connected components as groups.
        `paper` searches only endings whose groups have a single root each. The authors' code
        enumerates these endings, and Table 1 of the paper counts them.
    streams: number of streams onto which the groups of a stage are packed, longest group first by
        `latency.op`. The latency model is asked for the latency of the packed stage. None gives
        each group its own stream.
    max_transitions: largest number of transitions that the search keeps, at 8 bytes each. A
        transition is a state and one of its endings. In all, the search needs a few times as much
        memory as these transitions. The transitions are divided among the blocks. A block that
        needs more than it gets is a large block, and is not searched completely; see "Large
        blocks". After all other blocks have been searched, the large blocks together get a quarter
        of the transitions that are left. With the default number, their search takes one or two
        seconds.
    time_budget_s: seconds after which the search of large blocks ends; the number of its
        transitions is then not limited. If time is short, fewer blocks are searched completely. The
        schedule then depends on the machine. If the budget is None, only `max_transitions` limits
        the search, and the same inputs give the same schedule.
    beam: whether large blocks are searched by beams. False cuts a large block into parts instead,
        between operators that can start early and operators that start late. `stats["parts_cut"]`
        counts the cuts. The schedule is then optimal between the cuts. In all measurements so far,
        beams were better and faster.
    bounds: whether lower bounds of stage latencies are used. If they are used, the latency model is
        not asked for stages that no optimal schedule needs. The bound of a stage is the latency of
        its longest group. The latency of a group is the sum of the latencies that its operators
        have when they run alone. The schedule is the same as without bounds, as long as no latency
        is below its bound. `stats["below_bound"]` counts latencies below their bound, and the log
        reports them. All bounds are then multiplied by the lowest ratio of a latency to its bound,
        and the search goes on. If bounds are not used, one call asks for the latency of every
        stage.
    cores: number of operators that the device can run at once without slowing them down. A stage
        then takes at least the total latency of its operators divided by `cores`. None if a group
        uses more than one core, or if the number of cores is unknown.
    bound_tolerance, bound_slack_us: two amounts by which all lower bounds are reduced from the
        start: a share of the bound, and a number of microseconds. The reason is that the measured
        latency of a stage may be below its bound. For example, an operator of the stage may find
        its input in a cache, or the clock may be noisy. If the bounds were not reduced, the search
        could wrongly leave out such a stage.
    parts: if operators are divided into parts, a list for each operator that holds the ids of its
        parts. The list of an undivided operator holds one id. The search then treats the parts of
        an operator as one operator, which uses all streams. Each group holds one operator, whatever
        `max_group_ops` says, because the operators of a group do not run side by side. None if no
        operator is divided.
    blocks: names of the operators of each block, in the order in which blocks run. A name may be a
        pattern, such as `cell_3/*`. None stands for the blocks that are found in the graph. If
        blocks are given, the search finds no stage with operators of two blocks. So the schedule is
        optimal only within each block (`given_blocks`).

    Borders of blocks. All operators before a border between two blocks run before all operators
    after it. So if a stage crossed a border, its operators would run one after the other. It would
    save only the fixed cost of a stage (`LatencyModel.stage_us`), which is 0 in a plan without
    barriers. So a schedule made block by block is slower than the best schedule by at most this
    cost per border. In return the search is short: its number of states is the sum over the blocks,
    and not the product. If the fixed cost is above 0, short runs of stages across the borders
    (windows) are searched again after the blocks.

    Large blocks. If a block is too large for a complete search, the search keeps the fastest
    sequence of stages that it has found. It begins with one operator per stage, or with the stages
    of `greedy` if they are faster. Then beams, and after them windows, look for faster sequences.

    Beams. A beam search builds many sequences of stages at once, stage by stage, from the start or
    from the end of the block. It compares sequences with the same number of operators. The first
    beam keeps the best one of them, and the next beams keep the best 2, 4, ... sequences. Sequences
    are ranked by their latency so far plus an estimate for the remaining operators. The estimate is
    the longer of two times. The first time is the longest path through the remaining operators. The
    second is their total latency divided by the parallelism of the best sequence known. A sequence
    that cannot become faster than the best sequence known is dropped.

    Windows. A window is a run of neighbouring stages of the best sequence known. For each window,
    the search finds the fastest stages for the operators of the window. It repeats this with other
    borders and with wider windows until no window gets faster.

    If the latency model is costly to ask (`is_costly`), beams (see "Beams") use estimated
    latencies. The latency model is then asked only for the stages that the beams choose. A stage
    that gets no latency, for example because a time budget refused it, is never part of the result.

    `stats` counts blocks, blocks_left (large blocks), parts_cut (cuts of large blocks) and
    stages_priced (stages that the latency model was asked for). For the blocks that were searched
    completely, `stats` counts nonempty states, transitions, distinct stages, stages_spared
    (distinct stages that the latency model was not asked for) and schedules (possible sequences of
    stages; inf past the range of a double). It also holds below_bound, and bound_scale, the factor
    by which the bounds were multiplied, or 0 if bounds were not used. `lower_bound_us` is a lower
    bound of the makespan, if no latency is below its bound. However long a search takes, the
    makespan does not fall below this bound. `optimal` says whether all blocks were searched
    completely and no border has a cost.

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
    return search_divided("ios", graph, latency, options, blocks, parts)
