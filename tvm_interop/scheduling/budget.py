"""A search that measures must end: a budget of time, and a latency model that keeps to it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..latency.base import LatencyModel
from ..latency.batch import StageBatch

now_s = time.perf_counter
"""The clock of all budgets, in seconds."""

_CHUNK = 32
"""Stages asked for between two looks at the clock, at first: a measuring model interleaves those
of one call."""
_QUICK_S = 0.1
"""A chunk answered faster than this is followed by one of twice the size."""


class Budget:
    """Some seconds from now on."""

    def __init__(self, seconds: float) -> None:
        self._end_s = now_s() + seconds

    def left_s(self) -> float:
        """The seconds that are left; 0 when it is spent."""
        return max(self._end_s - now_s(), 0.0)

    def share(self, part: float) -> Budget:
        """A budget of `part` of what is left."""
        return Budget(self.left_s() * part)


class BudgetedLatency(LatencyModel):
    """Asks `model` for stages while the budget lasts, then assumes the worst.

    A stage that it does not ask for is priced as if its operators ran one after the other: a
    search that goes by that will not rely on it where it knows something better.

    Parameters
    ----------
    op_us: (num_ops,) microseconds of each operator, known already.

    Attributes
    ----------
    assumed: how many stages were not asked for.
    pricing_us: microseconds that `model` took to answer.
    """

    def __init__(self, model: LatencyModel, op_us: npt.NDArray[np.float64], budget: Budget) -> None:
        self.assumed = 0
        self.pricing_us = 0.0
        self._model = model
        self._op_us = op_us
        self._budget = budget

    def op(self, op: int) -> float:
        """Microseconds of operator `op`, known already."""
        return float(self._op_us[op])

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """Microseconds of one stage, asked for or assumed."""
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Microseconds of each stage, shape (len(stages),), asked for in order."""
        batch = StageBatch.from_stages(stages)
        prices = np.empty(len(batch), dtype=np.float64)
        done, chunk = 0, _CHUNK
        while done < len(batch) and self._budget.left_s() > 0:
            end = min(done + chunk, len(batch))
            started_s = now_s()
            prices[done:end] = self._model.stages(batch[done:end])
            took_s = now_s() - started_s
            self.pricing_us += took_s * 1e6
            if took_s < _QUICK_S:
                chunk *= 2
            done = end
        for i in range(done, len(batch)):
            prices[i] = sum(self._op_us[op] for group in batch[i] for op in group)
        self.assumed += len(batch) - done
        return prices
