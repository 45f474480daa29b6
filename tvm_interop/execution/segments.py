"""Runs a plan in segments: one range of its operators after the other, each when it is asked for.

Why that is safe. The operators of a plan are listed in an order that respects dependencies, the
orders of streams and all waits, and each segment is a range of that list. Whatever had to end
before an operator is in its own segment, where the order within its stream and the waits are as
they were, or in an earlier one, all streams of which have ended when the call returns. So every
order that `check_plan` relied on is still there, and more: nothing that shared memory one after
the other can meet in it now. Results are the same to the last bit, because the same kernels read
the same bytes.
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

    Between segments others may run, and so may other instances of the model; the tensors that
    later segments read stay in this instance's memory. One thread at a time may use it.

    Examples
    --------
    >>> segments = Segments(instance, block_cuts(instance.plan))  # doctest: +SKIP
    >>> for segment in range(len(segments)):  # doctest: +SKIP
    ...     segments.run(segment)
    """

    def __init__(self, instance: PlanInstance, cuts: Sequence[int]) -> None:
        """Divide the plan of an instance, which can still be run whole.

        Parameters
        ----------
        cuts: where segments end and the next begin: indices into `plan.operators`, ascending.

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
        """Run one segment; return when all of its streams have ended.

        Segment 0 begins a run, also where the last one was not finished.

        Raises
        ------
        ExecutionError
            It is not its turn; an operator failed (named), and the run must begin anew.
        """
        if segment not in (0, self._next) or not 0 <= segment < len(self):
            raise ExecutionError(
                f"segment {segment} of {len(self)} cannot run now; it is the turn of segment "
                f"{self._next}, or of segment 0 to begin again"
            )
        self._next = 0
        _runtime.run(self._executors[segment])
        self._next = (segment + 1) % len(self)


def equal_cuts(plan: Plan, op_us: Sequence[float], count: int) -> tuple[int, ...]:
    """The `count` - 1 ends of blocks that divide a plan into segments of about equal time.

    The longest segment is as short as it can be; ties: the first ones are short. A plan of fewer
    blocks is cut at the end of each. O(blocks^2 count).

    Parameters
    ----------
    op_us: what each operator takes.
    """
    ends = [*block_cuts(plan), len(plan.operators)]
    until_us = [0.0, *(sum(op_us[:end]) for end in ends)]
    # By segments so far: of the first i blocks, the longest segment, and where the last begins.
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
    """Where the blocks of a plan end, see `OpGraph.blocks`.

    Every operator before such a cut reaches every one after it, so all plans of a model list them
    in that order, and none loses operators that would run side by side.
    """
    cuts: list[int] = []
    for block in plan.graph().blocks()[:-1]:
        cuts.append((cuts[-1] if cuts else 0) + len(block))
    return tuple(cuts)
