"""Runs any scheduler with few measurements, because the latencies of most stages are predicted.

The module `active.py` also finds schedules with few measurements, but for IOS only. It finds the
stages that decide which schedule of IOS is best. In this module, a scheduler may be any function.
The scheduler is called repeatedly, and the stages that it chooses are measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..errors import InputError, OutOfTimeError
from ..latency.learned import Floats, PredictionError, prediction_error
from ..program.graph import OpGraph
from ..scheduling.schedules import Schedule
from .few_measured import LEAST_SAMPLES, FewMeasured

_ROUND = 8
"""Number of kinds of operators that are measured in a round."""
_UNSURE = 0.05
"""Operators are measured until the relative uncertainty of the unmeasured operators is at most this
number.

This uncertainty is the sum of the unmeasured operators' latencies times their standard deviations,
divided by the sum of all operators' latencies.
"""
_OPTIMISM = 1.0
"""The optimistic prediction for a stage is its expected latency minus this many standard
deviations."""
_PATIENCE = 3
"""The search ends when this many rounds in a row together made the best schedule faster by less
than the fraction `_STABLE`."""
_STABLE = 0.01

Run = Callable[[FewMeasured], Schedule]


@dataclass(frozen=True)
class Limits:
    """The limits of a search by `search_with_few`.

    Attributes
    ----------
    max_measurements: how many stages of several operators may be measured; None for no limit.
        Stages that run the same kernels count once.
    time_budget_s: seconds after which no further round begins; None for no limit.
    """

    max_measurements: int | None = None
    time_budget_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_measurements", "time_budget_s"):
            limit = getattr(self, name)
            if limit is not None and not (isinstance(limit, int | float) and limit >= 0):
                raise InputError(f"`{name}` must be 0 or more, got {limit!r}")


def search_with_few(
    run: Run, graph: OpGraph, few: FewMeasured, limits: Limits | None = None, seed: int = 0
) -> Schedule:
    """Find a schedule with a scheduler and few measurements.

    A scheduler such as `lios+` asks only for the latencies of single operators, and gets
    predictions. The operators whose predictions are the least certain are measured first, eight
    kinds in a round. Operators of one kind run the same kernel. The uncertainty of a kind is the
    sum, over all its operators, of predicted latency times standard deviation. The rounds end when
    the uncertainties of all kinds add up to at most 5% of the sum of all latencies.

    A scheduler such as `multi-gpu` asks for the latencies of stages of several operators, and gets
    optimistic predictions. Each round runs the scheduler and measures the stages of the new
    schedule. The rounds end when all stages of a new schedule are measured already. So a stage
    whose prediction is too optimistic is measured before it becomes part of the result. The first
    rounds have too few measured stages for predictions. They draw the stages to measure at random
    from the stages that the scheduler asked for. The search also ends when three rounds together
    gained less than 1%, or when a limit is reached. The result is the best schedule that has only
    measured stages. If there is no such schedule, the result is a schedule by expected latencies.

    Parameters
    ----------
    run: runs the scheduler on `graph` with a latency model.
    seed: seed of the random draw of the first stages.

    Returns
    -------
    The schedule. Its stages were measured again at the end, because a search prefers stages whose
    first latencies were low by chance. Its `stats` has `stages_measured`, `operators_measured`,
    `operators_in_all` (operators of the same kind count once), `rounds`, and `mape` and `spearman`,
    the error of the last round's predictions.
    """
    return _Search(run, graph, few, limits or Limits(), seed).found()


class _Search:
    def __init__(
        self, run: Run, graph: OpGraph, few: FewMeasured, limits: Limits, seed: int
    ) -> None:
        self._run = run
        self._graph = graph
        self._few = few
        self._left = math.inf if limits.max_measurements is None else limits.max_measurements
        self._budget_s = math.inf if limits.time_budget_s is None else limits.time_budget_s
        self._seed = seed
        self._started = time.perf_counter()
        self._rounds = 0
        self._is_late = False
        self._error: PredictionError | None = None
        self._best: Schedule | None = None
        self._best_us = math.inf
        self._history_us: list[float] = []

    def found(self) -> Schedule:
        few = self._few
        few.optimism = _OPTIMISM
        made = self._run(few)
        if few.is_priced_by_stages and few.operators_measured:
            # The first run of the scheduler used predicted latencies of operators. By now all
            # operators are measured, so run the scheduler again.
            made = self._run(few)
        made = self._by_stages(made) if few.is_priced_by_stages else self._by_operators(made)
        again = 0
        if few.measured and self._has_time():
            again = few.settle(made.concurrent_stages(self._graph))
        return replace(
            made,
            makespan=made.simulate(self._graph, few) if again else made.makespan,
            stats={
                **made.stats,
                "stages_measured": few.measured,
                "operators_measured": few.operators_measured,
                "operators_in_all": len(few.kinds()),
                "stages_measured_again": again,
                "budget_used_up": self._is_late or made.stats.get("budget_used_up", False),
                "rounds": self._rounds,
                "mape": None if self._error is None else self._error.mape,
                "spearman": None if self._error is None else self._error.spearman,
            },
        )

    def _by_operators(self, made: Schedule) -> Schedule:
        """Measure operators until the predictions of all other operators are certain enough.

        Returns the schedule that the scheduler made last.
        """
        if not self._few.was_asked:
            return made
        while (wanted := self._unsure()) and self._has_time():
            before_us, spread = self._few.op_us()
            try:
                self._few.measure_operators(wanted)
            except OutOfTimeError:
                self._is_late = True
                break
            after_us, _ = self._few.op_us()
            if np.isfinite(spread[wanted]).all():
                self._error = prediction_error(before_us[wanted], after_us[wanted])
            self._rounds += 1
            made = self._run(self._few)
        return made

    def _unsure(self) -> list[int]:
        """The operators to measure next, one of each kind.

        The list is empty if the predictions of all unmeasured operators are certain enough.
        """
        us, spread = self._few.op_us()
        kinds = list(self._few.kinds().values())
        if np.isinf(spread).any():
            unknown = [ops[0] for ops in kinds if np.isinf(spread[ops[0]])]
            draw = np.random.default_rng(self._seed)
            return [unknown[i] for i in draw.permutation(len(unknown))[:_ROUND]]
        off_us: Floats = np.array([float((us[ops] * spread[ops]).sum()) for ops in kinds])
        if off_us.sum() <= _UNSURE * us.sum():
            return []
        most = np.argsort(-off_us, kind="stable")[:_ROUND]
        return [kinds[int(i)][0] for i in most if off_us[i] > 0]

    def _by_stages(self, made: Schedule) -> Schedule:
        """Measure the stages that the scheduler chooses, until it chooses only measured stages."""
        while True:
            wanted = self._few.unmeasured(made.concurrent_stages(self._graph))
            if not wanted:
                self._keep(made)
                break
            if not self._may_go_on():
                break
            if self._few.num_samples < LEAST_SAMPLES:
                wanted = self._few.unmeasured([*wanted, *self._drawn(LEAST_SAMPLES)])
            wanted = wanted[: int(min(len(wanted), self._left))]
            try:
                predicted_us, measured_us = self._few.measure(wanted)
            except OutOfTimeError:
                self._is_late = True
                break
            if len(predicted_us):
                self._error = prediction_error(predicted_us, measured_us)
            self._left -= len(wanted)
            self._rounds += 1
            if not self._few.unmeasured(made.concurrent_stages(self._graph)):
                self._keep(made)
            self._history_us.append(self._best_us)
            made = self._run(self._few)
        if self._best is None:
            self._few.optimism = 0.0
            return self._run(self._few)
        return self._best

    def _drawn(self, count: int) -> list[tuple[tuple[int, ...], ...]]:
        """Stages drawn at random from the stages that the scheduler asked for."""
        asked = list(self._few.asked.values())
        draw = np.random.default_rng([self._seed, self._rounds])
        return [asked[int(i)] for i in draw.permutation(len(asked))[:count]]

    def _keep(self, made: Schedule) -> None:
        """Keep a schedule that has only measured stages if it is the best so far."""
        us = made.simulate(self._graph, self._few)
        if us < self._best_us:
            self._best, self._best_us = replace(made, makespan=us), us

    def _may_go_on(self) -> bool:
        if self._left < 1 or not self._has_time():
            return False
        recent = self._history_us[-_PATIENCE - 1 :]
        if len(recent) <= _PATIENCE or math.isinf(recent[0]):
            return True
        return recent[-1] <= (1 - _STABLE) * recent[0]

    def _has_time(self) -> bool:
        self._is_late |= time.perf_counter() - self._started > self._budget_s
        return not self._is_late
