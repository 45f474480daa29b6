"""IOS with operator merge: convolutions, or products, of the same tensor become a wider one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..latency.base import LatencyModel, LatencyTable, op_latencies
from ..program.graph import OpGraph
from .given_blocks import Blocks, search_blocks
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
    blocks: Blocks | None = None,
) -> Schedule:
    """IOS with both strategies: operators of a stage run side by side, or merged if faster.

    Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys 2021, sections 3 and
    4.2 (IOS-Both). `ios-both` works like `ios`, with one addition. A stage of two or more single
    operators may be able to run as one merged operator (`latency.mergeable`). Such a stage has two
    latencies: one for its operators side by side, and one for the merged operator
    (`latency.merges`). The lower one counts. On a tie, the operators run side by side. The model is
    asked for all such stages, because the lower bounds of `ios` do not hold for merged operators.

    A merged operator computes its sums in another order. Its results are close to the results of
    other schedules, but not equal bit by bit. If the latency model knows of no merges, the result
    is the same as with `ios`.

    Parameters
    ----------
    max_group_ops, max_groups, endings, streams, max_transitions, time_budget_s, blocks: as in
        `ios`.
    """
    options = IosOptions(
        max_group_ops, max_groups, endings, streams, max_transitions, time_budget_s=time_budget_s
    )
    return search_blocks("ios-both", graph, latency, options, blocks, merges=True)


@register_scheduler("ios-merge")
def ios_merge(
    graph: OpGraph,
    latency: LatencyModel | None,
    max_groups: int = 8,
    max_transitions: int = 8_000_000,
    time_budget_s: float | None = None,
) -> Schedule:
    """IOS with only operator merge (IOS-Merge): operators run in order, some of them merged.

    `ios-merge` works like `ios-both`, except that operators that are not merged run in order on one
    stream. The latency of a stage of such operators is the sum of the latencies that they have when
    they run alone. So the model is asked only for single operators and merged operators.

    Parameters
    ----------
    max_groups: largest number of operators to merge into one; 0 for no limit.
    max_transitions, time_budget_s: as in `ios`.
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
    """Latencies on one stream: the latency of a stage is the sum of those of its operators.

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
