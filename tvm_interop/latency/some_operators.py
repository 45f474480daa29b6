"""The latencies of some of a model's operators, for a search that schedules only these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .base import LatencyModel, LatencyOver


class LatencyOfSome(LatencyOver):
    """Gives the latencies of some operators of another latency model, renumbered from 0.

    Parameters
    ----------
    base: the model that knows all operators.
    ops: ids of the operators in `base`, in the new order.
    """

    def __init__(self, base: LatencyModel, ops: Sequence[int]) -> None:
        super().__init__(base)
        self._ops = ops
        self._place = {op: place for place, op in enumerate(ops)}

    def op(self, op: int) -> float:
        """The latency that `base` gives for an operator, in microseconds."""
        return self._base.op(self._ops[op])

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """The latency that `base` gives for a stage, in microseconds."""
        return self._base.stage(self._old(groups))

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Microseconds of each stage, shape (len(stages),)."""
        return self._base.stages([self._old(groups) for groups in stages])

    def measure_again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        """Make `base` measure stages again, and return how many it measured."""
        return self._base.measure_again([self._old(groups) for groups in stages])

    def transfer(self, u: int, v: int) -> float:
        """The latency that `base` gives for a copy to another GPU, in microseconds."""
        return self._base.transfer(self._ops[u], self._ops[v])

    def mergeable(self) -> Sequence[Sequence[int]]:
        """Sets of this model's operators that might be merged, by the operators' new ids."""
        sets = ([op for op in ops if op in self._place] for ops in self._base.mergeable())
        return [[self._place[op] for op in ops] for ops in sets if len(ops) > 1]

    def merges(self, sets: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        """Microseconds of each set as one merged operator; inf where it cannot be merged."""
        return self._base.merges(self._old(sets))

    def _old(self, groups: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[self._ops[op] for op in group] for group in groups]
