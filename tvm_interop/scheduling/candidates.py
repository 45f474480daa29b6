"""The candidates of `auto`: schedules with the makespans that are predicted for them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..latency.base import LatencyModel, LatencyTable, op_latencies
from ..program.graph import OpGraph
from .paired_rounds import LEAST_GAIN
from .schedules import Schedule

_LOG = logging.getLogger("tvm_interop")

STREAMS_SAVE = 0.008
"""Share of its time by which a streamed schedule may be faster than predicted, compared with
`sequential`. In `sequential`, the next operator waits for all parts of a divided operator, and
predictions leave out the cost of these waits.
"""


@dataclass(frozen=True)
class Candidate:
    """A schedule, and the predicted time of one run in microseconds."""

    schedule: Schedule
    predicted_us: float


class Candidates:
    """The candidates by name. No two of them have the same streams and launch order.

    Attributes
    ----------
    graph: the dependencies between the operators.
    candidates: the candidates, keyed by the names of their schedulers, in the order in which they
        were added. `sequential` must be added before any method other than `enter` is called.
    """

    def __init__(self, graph: OpGraph, latency: LatencyModel) -> None:
        self.graph = graph
        self.candidates: dict[str, Candidate] = {}
        self._latency = latency
        self._seen: set[Any] = set()

    def enter(self, schedule: Schedule, in_budget: LatencyModel | None = None) -> None:
        """Add a candidate, unless an earlier one has the same streams and launch order.

        Parameters
        ----------
        in_budget: a latency model with a time budget, which is asked for the latencies of the
            candidate's stages. If it refuses a stage, the candidate is left out. Pass None if the
            latencies are already known, or must be found even after the budget is spent.
        """
        runs = (frozenset(ops for ops in schedule.streams if ops), schedule.launch_order)
        if runs in self._seen:
            return
        if in_budget is not None and schedule.is_staged:
            stages = [tuple(stage.by_stream().values()) for stage in schedule.stages]
            if np.isinf(in_budget.stages(stages)).any():
                _LOG.info(
                    "auto: no time is left to measure `%s`; it is left out", schedule.scheduler
                )
                return
        self._seen.add(runs)
        predicted_us = schedule.simulate(self.graph, self._latency)
        self.candidates[schedule.scheduler] = Candidate(schedule, predicted_us)

    def ranked(self) -> list[str]:
        """The names of all candidates but `sequential`, sorted by predicted makespan."""
        others = [name for name in self.candidates if name != "sequential"]
        return sorted(others, key=lambda name: self.candidates[name].predicted_us)

    def promises_gain(self, name: str) -> bool:
        """Whether a candidate is predicted to be 1% faster than `sequential`, so that it may win.

        The makespan of a streamed schedule is predicted from the latencies of operators that run
        alone. But the parts of a divided operator share caches and memory, and take up to a fifth
        longer when they run side by side. So a streamed schedule must also be faster by a
        prediction from these longer latencies.
        """
        candidate, bar_us = self.candidates[name], self.candidates["sequential"].predicted_us
        bar_us *= 1 - LEAST_GAIN
        if candidate.predicted_us > bar_us:
            return False
        if candidate.schedule.is_staged:
            return True
        side_by_side_us = candidate.schedule.simulate(self.graph, self._side_by_side)
        return side_by_side_us <= bar_us * (1 + STREAMS_SAVE)

    @cached_property
    def _side_by_side(self) -> LatencyModel:
        """A latency model of parts that run beside the other parts of their operator.

        In the schedule `sequential`, a stage holds all parts of one operator. Each part gets the
        latency of this stage, unless the part takes longer when it runs alone.
        """
        op_us = op_latencies(self._latency, self.graph.names)
        in_turn = self.candidates["sequential"].schedule
        if in_turn.is_staged:
            latencies = in_turn.stages_us(self.graph, self._latency)
            ids = in_turn.ids_in(self.graph)
            for stage, us in zip(in_turn.stages, latencies, strict=True):
                groups = stage.by_stream().values()
                if len(groups) > 1 and all(len(ops) == 1 for ops in groups):
                    for (op,) in groups:
                        op_us[ids[op]] = max(op_us[ids[op]], us)
        return LatencyTable(op_us)

    def best(self, staged: bool) -> str | None:
        """The staged or streamed candidate with the best prediction, other than `sequential`."""
        alike = (n for n in self.ranked() if self.candidates[n].schedule.is_staged == staged)
        return next(alike, None)
