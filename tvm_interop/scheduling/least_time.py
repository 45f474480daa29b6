"""Finds a time that no schedule can beat, from the latencies of operators and of their parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from ..latency.base import LatencyModel
from ..program.graph import OpGraph
from .schedules import Schedule


def least_us(
    graph: OpGraph,
    in_turn: Schedule,
    latency: LatencyModel,
    op_us: npt.NDArray[np.float64],
    streams: int,
) -> float:
    """The time that every schedule takes at least, in microseconds.

    An operator may be ordered before or after every other operator, by direct or indirect
    dependencies. No other operator can run beside such an operator; only its own parts can run side
    by side. Such an operator takes as long as in the schedule `in_turn`, where its parts run side
    by side. If the sum of its parts' latencies is less, it takes this sum.

    Some operators cannot run side by side with any other operator: by the dependencies, each other
    operator runs before or after them. They divide all remaining operators into sections, which run
    one after the other. A section takes at least as long as its longest path. It also takes at
    least the total latency of its operators divided by the number of streams. In a section, a part
    may run beside parts of other operators, which may slow it down less than the parts of its own
    operator do. So each part counts with its latency alone. Other parts never make a part faster.
    If a measurement seems to show that they do, the lower latency counts.

    Complexity: O(n m / w) for n operators, m dependencies and machine words of w bits.

    Parameters
    ----------
    in_turn: a schedule that runs the operators one after the other. Each of its stages holds the
        parts of one operator. If it has no stages, no operator is divided into parts.
    latency: a model that knows the latencies of the stages of `in_turn`.
    op_us: (num_ops,) latency of each operator when it runs alone, in microseconds.
    """
    before, after = _related(graph)
    exclusive, bound_us = 0, 0.0
    lowest_us = op_us.copy()
    for ops, us in _wholes(graph, in_turn, latency, op_us):
        lowest_us[ops] = np.minimum(lowest_us[ops], us)
        own = sum(1 << op for op in ops)
        others = ((1 << graph.num_ops) - 1) & ~own
        if all((before[op] | after[op]) & others == others for op in ops):
            exclusive |= own
            bound_us += min(us, float(sum(op_us[op] for op in ops)))
    rest = [op for op in graph.topological_order() if not exclusive >> op & 1]
    section_of = {op: (before[op] & exclusive).bit_count() for op in rest}
    # `sorted` keeps the topological order within a section.
    for _, section in groupby(sorted(rest, key=section_of.__getitem__), section_of.__getitem__):
        bound_us += _section_us(graph, list(section), lowest_us, streams)
    return bound_us


def _related(graph: OpGraph) -> tuple[list[int], list[int]]:
    """For each operator, two sets of bits: the operators before it, and the operators after it."""
    before, after = [0] * graph.num_ops, [0] * graph.num_ops
    order = graph.topological_order()
    for op in order:
        for source in graph.predecessors(op):
            before[op] |= before[source] | 1 << source
    for op in reversed(order):
        for reader in graph.successors(op):
            after[op] |= after[reader] | 1 << reader
    return before, after


def _wholes(
    graph: OpGraph,
    in_turn: Schedule,
    latency: LatencyModel,
    op_us: npt.NDArray[np.float64],
) -> list[tuple[list[int], float]]:
    """The parts of each operator, and the latency of these parts in `in_turn`.

    If each group of a stage in `in_turn` holds one operator, and there are several groups, these
    are the parts of one operator. In any other stage, each operator counts as undivided.
    """
    found: dict[int, tuple[list[int], float]] = {
        op: ([op], float(us)) for op, us in enumerate(op_us)
    }
    if in_turn.is_staged:
        stages = in_turn.concurrent_stages(graph)
        for groups, us in zip(stages, in_turn.stages_us(graph, latency), strict=True):
            if len(groups) > 1 and all(len(group) == 1 for group in groups):
                parts = [op for (op,) in groups]
                found |= dict.fromkeys(parts, (parts, us))
    return [found[op] for op in found if found[op][0][0] == op]


def _section_us(
    graph: OpGraph, section: Sequence[int], op_us: npt.NDArray[np.float64], streams: int
) -> float:
    """A lower bound of the time of `section`, whose operators are in topological order."""
    ends_us: dict[int, float] = {}
    for op in section:
        start_us = max((ends_us.get(source, 0.0) for source in graph.predecessors(op)), default=0.0)
        ends_us[op] = start_us + float(op_us[op])
    return max(*ends_us.values(), float(sum(op_us[op] for op in section)) / streams)
