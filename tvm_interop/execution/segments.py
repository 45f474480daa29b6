"""Runs a plan in segments: consecutive ranges of its operators, each run by a separate call.

Running a plan in segments is safe for the following reason. A plan lists its operators in an order
that respects dependencies, the orders of streams and all waits. A segment is a range of that list.
So if one operator must end before another, it is in the same segment or in an earlier segment.
Within a segment, the order on each stream and the waits stay as they are. When the call for a
segment returns, all of its operators have ended. Therefore two operators that must not overlap in a
normal run, because they share memory, do not overlap in a run by segments. The results are equal to
the last bit, because the same kernels read the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from .._native import cpu as _runtime
from ..errors import DeviceError, ExecutionError, InputError
from ..plain_data import is_whole
from ..plan.plan import Plan
from .cpu import Instance
from .instance import PlanInstance


class Segments:
    """An instance on the CPU that can be run segment by segment.

    Other models and other instances of the same model may run between two segments. The tensors
    that later segments read stay in this instance's memory. Only one thread at a time may use a
    `Segments` object.

    Examples
    --------
    >>> segments = Segments(instance, block_cuts(instance.plan))  # doctest: +SKIP
    >>> for segment in range(len(segments)):  # doctest: +SKIP
    ...     segments.run(segment)
    """

    def __init__(self, instance: PlanInstance, cuts: Sequence[int]) -> None:
        """Divide the plan of an instance into segments. The instance can still be run as a whole.

        Parameters
        ----------
        cuts: indices into `plan.operators`, ascending. A cut is the index of the first operator of
            a segment. Segment 0 has no cut, because it begins with operator 0.

        Raises
        ------
        DeviceError
            The instance is not on this machine's CPU.
        InputError
            The cuts are not ascending, or leave a segment without operators.
        """
        if not isinstance(instance, Instance):
            raise DeviceError(
                "only models on the CPU can be run in segments; compile for `llvm`, or run the "
                "model whole"
            )
        count = len(instance.plan.operators)
        bounds = [0, *cuts, count]
        if not all(is_whole(b) for b in bounds) or any(
            begin >= end for begin, end in itertools.pairwise(bounds)
        ):
            raise InputError(
                f"`cuts` is {list(cuts)!r}; give ascending indices of operators, from 1 to "
                f"{count - 1}"
            )
        self.instance = instance
        self.bounds = tuple(bounds)
        self._executors = [
            instance.executor_of(begin, end) for begin, end in itertools.pairwise(bounds)
        ]
        self._next = 0

    def __len__(self) -> int:
        return len(self._executors)

    def run(self, segment: int) -> None:
        """Run one segment, and return when all of its operators have ended.

        Segment 0 begins a new run, even if the last run was not finished.

        Raises
        ------
        ExecutionError
            It is not this segment's turn, or an operator failed (the message names it). After a
            failure, the next run must begin with segment 0.
        """
        if segment not in (0, self._next) or not 0 <= segment < len(self):
            raise ExecutionError(
                f"segment {segment} of {len(self)} cannot run now; it is the turn of segment "
                f"{self._next}, or of segment 0 to begin again"
            )
        self._next = 0
        _runtime.run(self._executors[segment])
        self._next = (segment + 1) % len(self)
        if not self._next:
            self.instance.copy_outputs()


def equal_cuts(plan: Plan, op_us: Sequence[float], count: int) -> tuple[int, ...]:
    """Return the `count - 1` cuts that divide a plan into segments of about equal latency.

    Cuts are only at the ends of blocks (see `OpGraph.blocks`). They make the longest segment as
    short as possible. Among equally good solutions, the one whose first cuts come earliest is
    taken. A plan with fewer than `count` blocks is cut at the end of each block. The time is
    O(blocks^2 count).

    Parameters
    ----------
    op_us: the latency of each operator, in microseconds.
    count: the number of segments.
    """
    ends = [*block_cuts(plan), len(plan.operators)]
    until_us = [0.0, *(sum(op_us[:end]) for end in ends)]
    # best[i] is the best division of the first i blocks into n segments: the latency of its longest
    # segment, in microseconds, and its cuts. n grows by one in each iteration of the loop below.
    best: list[tuple[float, tuple[int, ...]]] = [(us, ()) for us in until_us]
    for _ in range(min(count, len(ends)) - 1):
        best = [
            min(
                (
                    (max(best[j][0], until_us[i] - until_us[j]), (*best[j][1], ends[j - 1]))
                    for j in range(1, i)
                    if len(best[j][1]) == len(best[-1][1])
                ),
                default=(until_us[i], ()),
            )
            for i in range(len(until_us))
        ]
    return best[-1][1]


def block_cuts(plan: Plan) -> tuple[int, ...]:
    """Return the cuts of a plan at the ends of all blocks but the last; see `OpGraph.blocks`.

    In the graph, there is a path from every operator before a cut to every operator after the cut.
    All plans of a model therefore have the same operators before a cut. A cut never separates
    operators that could run concurrently.
    """
    cuts: list[int] = []
    for block in plan.graph().blocks()[:-1]:
        cuts.append((cuts[-1] if cuts else 0) + len(block))
    return tuple(cuts)
