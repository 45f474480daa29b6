"""Variants of IOS that merge operators.

Convolutions or matrix products that read the same tensor can become one wider operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..errors import OutOfTimeError
from ..latency.base import LatencyModel, LatencyTable, op_latencies
from ..program.graph import OpGraph
from .divided_search import Parts, search_divided
from .given_blocks import Blocks
from .ios_search import IosOptions, search_ios
from .options import check_streams, required_latency
from .registry import register_scheduler
from .schedules import Schedule
from .stages import Stage
from .whole_operators import WholeOperators


@register_scheduler("ios-both")
def ios_both(
    graph: OpGraph,
    latency: LatencyModel | None,
    max_group_ops: int = 3,
    max_groups: int = 8,
    endings: str = "complete",
    streams: int | None = None,
    max_transitions: int = 8_000_000,
    time_budget_s: float | None = None,
    parts: Parts | None = None,
    blocks: Blocks | None = None,
) -> Schedule:
    """IOS with both strategies: a stage runs its operators side by side, or merged if faster.

    Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys 2021, sections 3 and
    4.2 (IOS-Both). `ios-both` works like `ios`, with one addition. If each group of a stage holds
    one operator, the stage may be able to run as one merged operator (`latency.mergeable`). Such a
    stage has two latencies: the latency of its operators side by side, and the latency of the
    merged operator (`latency.merges`). The search uses the lower one. On a tie, the operators run
    side by side. The latency model is asked for all such stages, because the lower bounds of `ios`
    do not hold for merged operators.

    A merged operator may add the terms of a sum in another order than the operators that it
    replaces. So the outputs of the model are close to the outputs with other schedules, but not
    equal bit by bit. If the latency model has no latencies of merged operators, the result is the
    same as with `ios`.

    By the latencies that `latency` gives, the result is never slower than the result of `ios`, and
    never slower than sequential execution. A single search with merging would not guarantee this
    for large blocks, or if latencies are below their lower bounds. So `ios-both` searches twice,
    first with merging and then without it, and takes the faster schedule. On a tie, it takes the
    schedule with merging. Each search gets half of `time_budget_s`. If the time for measuring
    stages ends during the second search, the schedule of the first search is taken. `stats` holds
    the counts of the search whose schedule was taken, and the times of both searches.

    Parameters
    ----------
    max_group_ops, max_groups, endings, streams, max_transitions, time_budget_s, parts, blocks: as
        in `ios`. A merged stage holds all parts of its operators. The merged operator is itself
        divided into parts, which use all streams.
    """
    model = required_latency(latency, "ios-both")
    may_merge = any(len(ops) > 1 for ops in model.mergeable())
    if time_budget_s is not None and may_merge:
        time_budget_s /= 2
    options = IosOptions(
        max_group_ops, max_groups, endings, streams, max_transitions, time_budget_s=time_budget_s
    )

    def search(merges: bool) -> Schedule:
        return search_divided("ios-both", graph, model, options, blocks, parts, merges)

    found = [search(may_merge)]
    if may_merge:
        # If the time budget is spent, keep the schedule of the first search.
        with suppress(OutOfTimeError):
            found.append(search(False))
    best = min(found, key=_makespan_us)  # On a tie, `min` takes the schedule with merging.
    times = {key: sum(made.stats[key] for made in found) for key in ("search_us", "pricing_us")}
    return replace(best, stats={**best.stats, **times})


@register_scheduler("ios-merge")
def ios_merge(
    graph: OpGraph,
    latency: LatencyModel | None,
    max_groups: int = 8,
    max_transitions: int = 8_000_000,
    time_budget_s: float | None = None,
    streams: int | None = None,
    parts: Parts | None = None,
) -> Schedule:
    """IOS with only operator merge (IOS-Merge): operators run in order, some of them merged.

    `ios-merge` works like `ios-both`, but operators that are not merged run in order on one stream.
    A stage of such operators takes the sum of their latencies alone. So the latency model is asked
    only for single operators and merged operators. Only the parts of a divided operator run side by
    side.

    Parameters
    ----------
    max_groups: largest number of operators to merge into one; 0 for no limit.
    max_transitions, time_budget_s: as in `ios`.
    streams: with `parts`, the number of streams for the parts of an operator; None gives each part
        its own stream. All other operators run on the first stream.
    parts: as in `ios-both`.
    """
    known = required_latency(latency, "ios-merge")
    check_streams(streams)
    options = IosOptions(
        1,
        max_groups,
        "complete",
        1,
        max_transitions,
        bound_tolerance=0,
        bound_slack_us=0,
        time_budget_s=time_budget_s,
    )
    if parts is None:
        in_order = _InOrder(known, graph.names)
        return search_ios("ios-merge", graph, in_order, options, merges=True)
    wholes = WholeOperators(graph, parts)
    op_us = op_latencies(known, graph.names).tolist()
    in_order = _InOrder(wholes.latency(known), wholes.graph.names)
    found = search_ios("ios-merge", wholes.graph, in_order, options, merges=True)
    stages = wholes.divided(list(_in_turn(found.stages)), op_us, streams)
    return replace(found, op_names=graph.names, stages=stages, streams=())


def _makespan_us(made: Schedule) -> float:
    assert made.makespan is not None, "every search sets the makespan of its schedule"
    return made.makespan


def _in_turn(stages: Iterable[Stage]) -> Iterator[Stage]:
    """Split each stage that is not merged, so that each of its groups becomes a stage."""
    for stage in stages:
        if stage.kind == "merge":
            yield stage
        else:
            yield from (Stage((group,), (0,), barrier=stage.barrier) for group in stage.groups)


class _InOrder(LatencyTable):
    """A latency model of one stream: a stage takes the sum of the latencies of its operators.

    The latencies of merged operators come from `model`.
    """

    def __init__(self, model: LatencyModel, names: Sequence[str]) -> None:
        super().__init__(op_latencies(model, names), streams=1, stage_us=model.stage_us)
        self._model = model
        self.is_costly = model.is_costly

    def mergeable(self) -> Sequence[Sequence[int]]:
        return self._model.mergeable()

    def merges(self, sets: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        return self._model.merges(sets)
