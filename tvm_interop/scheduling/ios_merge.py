"""IOS with operator merge: convolutions of the same tensor become one wider convolution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..latency.base import LatencyModel, LatencyTable, op_latencies
from ..program.graph import OpGraph
from .ios_search import IosOptions, search_ios
from .options import required_latency
from .registry import register_scheduler
from .schedules import Schedule


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
) -> Schedule:
    """IOS with both strategies: each stage side by side or, where that is cheaper, merged.

    Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys 2021, sections 3 and
    4.2 (IOS-Both). As `ios`, and besides: a stage of two or more single operators that can be one
    (`latency.mergeable`) takes the less of what it takes side by side and what the merged operator
    takes (`latency.merges`). Such stages are all priced, whatever the bounds. Ties: side by side.

    The merged operators take their sums in another order: the results are close to those of other
    schedules, not equal bit by bit. A latency model that knows of no merges leaves it `ios`.

    Parameters
    ----------
    max_group_ops, max_groups, endings, streams, max_transitions, time_budget_s: as `ios`.
    """
    options = IosOptions(
        max_group_ops, max_groups, endings, streams, max_transitions, time_budget_s=time_budget_s
    )
    return search_ios("ios-both", graph, latency, options, merges=True)


@register_scheduler("ios-merge")
def ios_merge(
    graph: OpGraph,
    latency: LatencyModel | None,
    max_groups: int = 8,
    max_transitions: int = 8_000_000,
    time_budget_s: float | None = None,
) -> Schedule:
    """IOS with operator merge alone: one operator after the other, some of them merged (IOS-Merge).

    As `ios-both`, but what is not merged runs in order on one stream and takes what its operators
    take alone: only those and the merged ones are priced.

    Parameters
    ----------
    max_groups: the most operators to merge into one; 0 for any number.
    max_transitions, time_budget_s: as `ios`.
    """
    known = required_latency(latency, "ios-merge")
    model = _InOrder(known, graph.names)
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
    return search_ios("ios-merge", graph, model, options, merges=True)


class _InOrder(LatencyTable):
    """Stages as long as their operators together, on one stream; merges as `model` has it."""

    def __init__(self, model: LatencyModel, names: Sequence[str]) -> None:
        super().__init__(op_latencies(model, names), streams=1, stage_us=model.stage_us)
        self._model = model
        self.is_costly = model.is_costly

    def mergeable(self) -> Sequence[Sequence[int]]:
        return self._model.mergeable()

    def merges(self, sets: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        return self._model.merges(sets)
