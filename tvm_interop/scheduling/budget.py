"""Limits the time of a search: a time budget, and a latency model that keeps to the budget."""

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
"""Number of stages in a request to the latency model. The first request holds `_FIRST_CHUNK`
stages. The clock is checked between requests. A request holds several stages, because a model that
measures runs the stages of one request in turns."""
_QUICK_S = 0.1
"""If a request takes less than this many seconds, the next request holds twice as many stages."""


class Budget:
    """A time budget in seconds. Its time starts to run when the object is made."""

    def __init__(self, seconds: float) -> None:
        self._end_s = now_s() + seconds

    def left_s(self) -> float:
        """The seconds that are left; 0 when the budget is spent."""
        return max(self._end_s - now_s(), 0.0)

    def share(self, part: float) -> Budget:
        """Make a budget of the fraction `part`, from 0 to 1, of the time that is left."""
        return Budget(self.left_s() * part)


class BudgetedLatency(LatencyModel):
    """A latency model that passes requests on to `model` until the time budget is spent.

    Stages are passed on in chunks that should fit into the time that is left. Once the budget is
    spent, all further stages are refused. A refused stage gets the latency inf, so that no search
    chooses it. Two kinds of stages are never refused, because their latencies are known from the
    start: a stage of a single operator, and a stage that runs all parts of a divided operator side
    by side.

    Parameters
    ----------
    op_us: (num_ops,) latency of each operator when it runs alone, in microseconds.
    wholes: for each operator, the ids of the parts into which it is divided. When the object is
        made, it asks `model` for the latency of the parts of each divided operator side by side. No
        time limit applies to this.

    Attributes
    ----------
    refused: number of stages for which no latency was given, because the budget was spent.
    pricing_us: microseconds that `model` took to answer.
    """

    may_refuse = True

    def __init__(
        self,
        model: LatencyModel,
        op_us: npt.NDArray[np.float64],
        budget: Budget,
        wholes: Sequence[Sequence[int]] = (),
    ) -> None:
        self.refused = 0
        self.pricing_us = 0.0
        self.is_costly = model.is_costly
        self.stage_us = model.stage_us
        self._model = model
        self._op_us = op_us
        self._budget = budget
        self._stage_s = 0.0
        divided = [list(parts) for parts in wholes if len(parts) > 1]
        whole_us = stage_latencies(model, [[[part] for part in parts] for parts in divided])
        self._whole_us = dict(zip(map(frozenset, divided), whole_us.tolist(), strict=True))

    def op(self, op: int) -> float:
        """Latency of operator `op` when it runs alone, in microseconds, without asking `model`."""
        return float(self._op_us[op])

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """Latency of one stage in microseconds; inf if the stage is refused."""
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Latency of each stage in microseconds, shape (len(stages),); inf for a refused stage.

        The latencies are asked for in the order of `stages`.
        """
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
            prices[i] = self._without_asking(batch[i])
            self.refused += math.isinf(prices[i])
        return prices

    def _without_asking(self, groups: Sequence[Sequence[int]]) -> float:
        """Latency in microseconds of a stage that is never refused; inf for any other stage."""
        ops = [op for group in groups for op in group]
        if len(ops) == 1:
            return float(self._op_us[ops[0]] + self.stage_us)
        if len(ops) > len(groups):
            return math.inf
        return float(self._whole_us.get(frozenset(ops), math.inf))

    def measure_again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        """Make `model` measure stages again within the budget; return how many it measured."""
        again = 0
        for begin in range(0, len(stages), _FIRST_CHUNK):
            if self._budget.left_s() <= 0:
                break
            again += self._model.measure_again(stages[begin : begin + _FIRST_CHUNK])
        return again

    def _affordable(self, chunk: int) -> int:
        """How many stages can probably be measured in the time that is left; at least 1."""
        if not self._stage_s:
            return chunk
        return max(int(min(chunk, self._budget.left_s() / self._stage_s)), 1)
