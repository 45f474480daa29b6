"""The search that all variants of IOS share.

The search finds all stages, asks for their latencies, and then finds the fastest sequence of
stages.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._native import passes as native
from ..errors import ScheduleError
from ..latency.base import LatencyModel, check_size
from ..latency.batch import StageBatch
from ..program.graph import OpGraph
from . import budget
from .ios_blocks import BEAM_SHARE, Allowance, LargeBlock, Limits
from .ios_pricing import Bounds, StagePrices
from .options import check_counts, check_streams, required_latency, us_since
from .schedules import Schedule
from .stages import Stage, pack_onto_streams, unpack_stages

LARGE_SHARE = 0.25
"""Share of the remaining transitions that large blocks may use. A large block is too large for an
exact search. The remaining transitions are those that the exact searches of the other blocks did
not use. The share is below 1, because a transition takes longer in a large block. With four times
this share, schedules of NASNet-A became faster by only 0.2% to 1.5%.
"""
_WIDE_OPS = 500
"""Number of operators in a large block, above which fewer transitions are allowed. A transition
takes time in proportion to the number of operators. So if the largest block has n times this number
of operators, all large blocks together get 1/n of the transitions.
"""
ENUMERATION_SHARE = 0.3
"""Share of a time budget for exact searches. The searches by beams and windows get the rest."""


@dataclass(frozen=True)
class IosOptions:
    """The options of `ios`; the docstring of `ios` explains them.

    Attributes
    ----------
    work_us: (num_ops,) the time that each operator keeps cores busy, in microseconds, summed over
        its cores; None if each operator uses one core.

    Raises
    ------
    ScheduleError: the value of an option is not valid. The message names the option.
    """

    max_group_ops: int
    max_groups: int
    endings: str
    streams: int | None
    max_transitions: int
    bounds: bool = True
    cores: int | None = None
    bound_tolerance: float = 0.05
    bound_slack_us: float = 1.0
    work_us: npt.NDArray[np.float64] | None = None
    time_budget_s: float | None = None
    beam: bool = True

    def __post_init__(self) -> None:
        check_counts(max_group_ops=self.max_group_ops, max_groups=self.max_groups)
        check_counts(at_least=1, max_transitions=self.max_transitions)
        if self.endings not in ("complete", "paper"):
            raise ScheduleError(f"`endings` is {self.endings!r}; it must be `complete` or `paper`")
        check_streams(self.streams)
        if self.cores is not None:
            check_counts(at_least=1, cores=self.cores)
        if not 0 <= self.bound_tolerance < 1:
            raise ScheduleError(
                f"`bound_tolerance` is {self.bound_tolerance!r}; it must be a share, from 0 to "
                "below 1"
            )
        if self.time_budget_s is not None and not 0 <= self.time_budget_s < math.inf:
            raise ScheduleError(
                f"`time_budget_s` is {self.time_budget_s!r}; it must be seconds, 0 or more"
            )
        if not 0 <= self.bound_slack_us < math.inf:
            raise ScheduleError(
                f"`bound_slack_us` is {self.bound_slack_us!r}; it must be microseconds, 0 or more"
            )


def search_ios(
    name: str,
    graph: OpGraph,
    latency: LatencyModel | None,
    options: IosOptions,
    merges: bool = False,
) -> Schedule:
    """Find the fastest sequence of stages of a graph, by IOS.

    The groups of a stage run side by side. With `merges`, they run as one merged operator if this
    is possible and faster.

    Parameters
    ----------
    name: name of the scheduler.
    merges: whether stages may be merged.
    """
    model = required_latency(latency, name)
    started = time.perf_counter()
    end_s = None if options.time_budget_s is None else budget.now_s() + options.time_budget_s
    check_size(model, graph.names)
    bounds = None
    if options.bounds:
        bounds = Bounds(
            options.cores, options.bound_tolerance, options.bound_slack_us, options.work_us
        )
    prices = StagePrices(graph, model, options.streams, bounds, merges)
    search = enumerate_stages(graph, options, prices.alone_us, cuts=not options.beam)
    native_stages, makespan = native.ios_solve(search, prices.values(search))
    stages = [*unpack_stages(native_stages)]
    stats = dict(native.ios_stats(search))
    least_us = float(makespan)
    left_out = [list(ops) for ops in native.ios_left_out(search)]
    if stats["parts_cut"]:
        least_us = sum(least_possible_us(graph, ops, prices, options) for ops in graph.blocks())
    # Free the memory of the exact search, because the search of windows needs much memory too.
    del search
    limits = Limits(options.max_group_ops, options.max_groups, options.endings == "paper")
    blocks = [LargeBlock(graph, ops, prices, limits) for ops in left_out]
    left = options.max_transitions - stats["transitions"]
    most_ops = max([_WIDE_OPS, *map(len, left_out)])
    allowance = Allowance(int(LARGE_SHARE * left * _WIDE_OPS / most_ops), end_s)
    for i, block in enumerate(blocks):
        _improve(block, allowance.share(1 / (len(blocks) - i)))
    for block in blocks:
        makespan += block.cost_us
        least_us += least_possible_us(graph, block.ops, prices, options)
        stages += [Stage(groups, tuple(range(len(groups)))) for groups in block.groups()]
    if blocks:
        stages = in_order(graph, stages)
    borders = stats["blocks"] - 1 if prices.stage_us else 0
    if borders:
        stages, makespan = _across_borders(graph, stages, prices, limits, allowance)
        least_us -= borders * prices.stage_us
    if options.streams is not None and prices.op_us is not None:
        stages = list(pack_onto_streams(stages, prices.op_us.tolist(), options.streams))
    prices.report_bounds()
    stats = {
        "search_us": us_since(started) - prices.asking_us,
        "pricing_us": prices.asking_us,
        **stats,
        "blocks_left": len(blocks),
        "stages_priced": prices.num_asked,
        "stages_spared": max(stats["stages"] - prices.num_asked, 0),
        "below_bound": prices.below_bound,
        "bound_scale": prices.scale,
        "lower_bound_us": min(least_us, makespan),
        "optimal": not (blocks or stats["parts_cut"] or borders),
    }
    return Schedule(
        name,
        graph.names,
        stages=tuple(prices.as_merged(stage) for stage in stages),
        makespan=makespan,
        stats=stats,
    )


def _improve(block: LargeBlock, allowance: Allowance) -> None:
    """Search a large block by beams, then by windows of neighbouring stages."""
    block.run_beams(allowance.share(BEAM_SHARE))
    block.search_windows(allowance)


def _across_borders(
    graph: OpGraph,
    stages: Sequence[Stage],
    prices: StagePrices,
    limits: Limits,
    allowance: Allowance,
) -> tuple[list[Stage], float]:
    """Join stages across the borders of blocks where that is faster.

    At a border between two blocks, all operators before it run before all operators after it. A
    stage across a border is therefore a single group. Such a stage saves the fixed cost of one
    stage, and nothing else. The function returns the stages and their total latency in
    microseconds.
    """
    whole = LargeBlock(graph, graph.topological_order(), prices, limits)
    whole.offer(StageBatch.from_stages([stage.groups for stage in stages]))
    whole.search_windows(allowance)
    return [Stage(groups, tuple(range(len(groups)))) for groups in whole.groups()], whole.cost_us


def least_possible_us(
    graph: OpGraph, ops: Sequence[int], prices: StagePrices, options: IosOptions
) -> float:
    """A lower bound of a block's latency in microseconds.

    The bound is the longer of two times, plus the fixed cost of one stage. The first time is the
    longest path through the block. The second time is the total latency of the operators, divided
    by the largest number of groups or streams that a stage may have. If some latency was below its
    bound, the result is multiplied by `prices.scale`. The bound holds if every stage takes at least
    as long as its longest group.
    """
    alone_us = prices.alone_us
    inside = set(ops)
    path_us: dict[int, float] = {}
    for op in reversed(ops):
        after = (path_us[v] for v in graph.successors(op) if v in inside)
        path_us[op] = float(alone_us[op]) + max(after, default=0.0)
    at_once = min(options.max_groups or len(ops), options.streams or len(ops), len(ops))
    work_us = float(alone_us[list(ops)].sum()) / at_once
    return (max(*path_us.values(), work_us) + prices.stage_us) * (
        prices.scale if prices.below_bound else 1.0
    )


def in_order(graph: OpGraph, stages: Sequence[Stage]) -> list[Stage]:
    """Sort stages into the order of the blocks. The stages of one block are in order already."""
    block_of = {op: b for b, ops in enumerate(graph.blocks()) for op in ops}
    return sorted(stages, key=lambda stage: block_of[stage.groups[0][0]])


def enumerate_stages(
    graph: OpGraph, options: IosOptions, op_us: npt.NDArray[np.float64], cuts: bool
) -> Any:
    """Find all stages in native code. Return the native search object, without latencies.

    Parameters
    ----------
    op_us: (num_ops,) latency of each operator in microseconds. These latencies determine when an
        operator can start. A cut separates operators that can start early from operators that start
        later.
    cuts: whether blocks that are too large are cut. If not, such blocks are left out of the search.
    """
    end_s = None
    if options.time_budget_s is not None:
        end_s = budget.now_s() + ENUMERATION_SHARE * options.time_budget_s
    return native.ios_enumerate(
        graph.native,
        options.max_group_ops,
        options.max_groups,
        options.endings == "paper",
        options.max_transitions,
        cuts,
        op_us.tobytes(),
        Allowance(0, end_s).clock,
    )
