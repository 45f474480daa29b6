"""A search that measures must end: a budget of time, and a latency model that keeps to it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..latency.base import LatencyModel, stage_latencies
from ..latency.batch import StageBatch

now_s = time.perf_counter
"""The clock of all budgets, in seconds."""

_FIRST_CHUNK = 8
_CHUNK = 32
"""Stages asked for between two looks at the clock, where there is time: a measuring model
interleaves those of one call."""
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
    """Asks `model` for stages while the budget lasts, then refuses.

    Stages are asked for in chunks, no larger than what is left of the budget should do for. A stage
    that it does not ask for takes inf: nobody knows what it takes, so it is never chosen. Operators
    alone are known, and never refused.

    Parameters
    ----------
    op_us: (num_ops,) microseconds of each operator, known already.

    Attributes
    ----------
    refused: how many stages were not asked for.
    pricing_us: microseconds that `model` took to answer.
    """

    may_refuse = True

    def __init__(self, model: LatencyModel, op_us: npt.NDArray[np.float64], budget: Budget) -> None:
        self.refused = 0
        self.pricing_us = 0.0
        self.is_costly = model.is_costly
        self.stage_us = model.stage_us
        self._model = model
        self._op_us = op_us
        self._budget = budget
        self._stage_s = 0.0

    def op(self, op: int) -> float:
        """Microseconds of operator `op`, known already."""
        return float(self._op_us[op])

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """Microseconds of one stage; inf where it is refused."""
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Microseconds of each stage, shape (len(stages),), asked for in order; inf if refused."""
        batch = StageBatch.from_stages(stages)
        prices = np.empty(len(batch), dtype=np.float64)
        done, chunk = 0, _CHUNK if self._stage_s else _FIRST_CHUNK
        while done < len(batch) and self._budget.left_s() > 0:
            end = min(done + self._affordable(chunk), len(batch))
            started_s = now_s()
            prices[done:end] = stage_latencies(self._model, batch[done:end])
            took_s = now_s() - started_s
            self.pricing_us += took_s * 1e6
            self._stage_s = took_s / (end - done)
            chunk = 2 * chunk if took_s < _QUICK_S else _CHUNK
            done = end
        for i in range(done, len(batch)):
            ops = [op for group in batch[i] for op in group]
            is_known = len(ops) == 1
            prices[i] = self._op_us[ops[0]] + self.stage_us if is_known else math.inf
            self.refused += not is_known
        return prices

    def measure_again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        """As `model` does, as far as there is time; how many stages were measured."""
        again = 0
        for begin in range(0, len(stages), _FIRST_CHUNK):
            if self._budget.left_s() <= 0:
                break
            again += self._model.measure_again(stages[begin : begin + _FIRST_CHUNK])
        return again

    def _affordable(self, chunk: int) -> int:
        """So many stages of a chunk, at least one, as there should be time for."""
        if not self._stage_s:
            return chunk
        return max(int(min(chunk, self._budget.left_s() / self._stage_s)), 1)
