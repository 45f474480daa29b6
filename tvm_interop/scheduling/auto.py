"""auto: every scheduler's schedule, the best of them made better, and a measurement to decide."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ScheduleError
from ..graph import OpGraph
from ..latency.base import LatencyModel, op_latencies
from .budget import Budget, BudgetedLatency
from .greedy import greedy
from .ios import ios
from .lios import lios
from .lios_plus import lios_plus
from .local_search import refine_stages, refine_streams
from .nimble import nimble
from .opara import opara
from .options import check_counts, check_streams, required_latency, us_since
from .registry import register_scheduler
from .schedule import Schedule
from .sequential import sequential
from .traits import OperatorTraits

_LOG = logging.getLogger("tvm_interop")

Evaluate = Callable[[Sequence[Schedule]], Sequence[float]]
"""Runs schedules against each other, interleaved: microseconds of each."""

_IOS_SHARE = 0.6
"""Of the time budget; the local search has the rest."""
_MAX_TRANSITIONS = 1_000_000
"""IOS is one of several here: it cuts large blocks sooner than when it is asked for by name."""


@register_scheduler("auto")
def auto(
    graph: OpGraph,
    latency: LatencyModel | None,
    streams: int | None = None,
    time_budget_s: float = 60.0,
    finalists: int = 4,
    max_group_ops: int = 3,
    max_groups: int = 8,
    endings: str = "complete",
    traits: Sequence[OperatorTraits] | None = None,
    evaluate: Evaluate | None = None,
    baseline: Schedule | None = None,
    parts: Sequence[Sequence[int]] | None = None,
) -> Schedule:
    """The best of all schedulers, improved by local search, and never worse than sequential.

    1. The candidates: `sequential`, `greedy`, `lios`, `lios+`, `nimble`, `opara` and `ios`, each
       predicted by `latency` (`Schedule.simulate`). Those that run the same are one.
    2. The best of stages and the best of streams are refined by local search: operators moved
       between streams or stages, stages split and joined. They are candidates too.
    3. The finalists are `sequential`, the best candidate of stages, the best of streams (their
       predictions are of two kinds: a stage's price knows of contention, a stream's does not), and
       the best of the others. `evaluate` runs them against each other, `sequential` twice; the
       fastest wins. Without it the prediction decides.
    4. `sequential` wins where the best is not faster by more than it differs from itself.

    Operators keep their own kernels and so their bits: merging is left to `ios-both`.

    Ties go to the candidate first in the order above, a refined one behind all others. It is the
    same every time for the same prices and measurements as long as the time budget is not used up
    (`stats["budget_used_up"]`).

    Parameters
    ----------
    streams: how many streams there are; None for as many as anyone can use.
    time_budget_s: seconds in which stages may be priced for `ios` (60% of them) and for the local
        search. What is not priced by then counts as run in order. Latencies of single operators,
        the stages of the candidates, and `evaluate` come on top.
    finalists: how many candidates are run against `sequential`, 2 or more.
    max_group_ops, max_groups, endings: of `ios`; `max_groups` of `greedy` too.
    traits: of `opara`.
    evaluate: runs schedules against each other and gives microseconds of each, in order.
    parts: of `ios`.
    baseline: what `sequential` is in place of one stream: a compilation gives the parts of each
        operator side by side, one operator after the other.

    `stats` holds `winner`, `predicted_us` and `measured_us` by candidate, `noise_us`,
    `measuring_us` (what the comparison itself took), `stages_assumed` (not priced for want of
    time), `budget_used_up`.
    """
    model = required_latency(latency, "auto")
    check_streams(streams)
    check_counts(at_least=2, finalists=finalists)
    if not 0 <= time_budget_s < math.inf:
        raise ScheduleError(f"`time_budget_s` is {time_budget_s!r}; it must be seconds, 0 or more")
    started = time.perf_counter()
    op_us = op_latencies(model, graph.names)
    field = _Field(graph, model)
    field.enter(replace(baseline or sequential(graph, model), scheduler="sequential"))
    pricing_us = us_since(started)
    assumed, used_up = 0, False
    if streams != 1:
        field.enter(greedy(graph, model, max_groups, streams))
        field.enter(lios(graph, model, streams))
        field.enter(lios_plus(graph, model, streams))
        field.enter(nimble(graph, model, streams))
        field.enter(opara(graph, model, traits, streams))
        budget = Budget(time_budget_s)
        for_ios = BudgetedLatency(model, op_us, budget.share(_IOS_SHARE))
        field.enter(
            ios(
                graph,
                for_ios,
                max_group_ops,
                max_groups,
                endings,
                streams,
                _MAX_TRANSITIONS,
                parts=parts,
            )
        )
        for_search = BudgetedLatency(model, op_us, budget)
        in_time = _refine_best(field, for_search, op_us, streams or max(graph.num_ops, 1), budget)
        assumed = for_ios.assumed + for_search.assumed
        used_up = assumed > 0 or not in_time
        pricing_us += for_ios.pricing_us + for_search.pricing_us
    search_us = us_since(started) - pricing_us
    started = time.perf_counter()
    verdict = _judge(field, finalists, evaluate)
    winner = field.candidates[verdict.winner]
    _LOG.info("auto: `%s` wins", verdict.winner)
    return replace(
        winner.schedule,
        scheduler="auto",
        makespan=winner.predicted_us,
        stats={
            "search_us": search_us,
            "pricing_us": pricing_us,
            "measuring_us": us_since(started),
            "winner": verdict.winner,
            "predicted_us": {name: c.predicted_us for name, c in field.candidates.items()},
            "measured_us": verdict.measured_us,
            "noise_us": verdict.noise_us,
            "stages_assumed": assumed,
            "budget_used_up": used_up,
        },
    )


@dataclass(frozen=True)
class _Candidate:
    schedule: Schedule
    predicted_us: float


class _Field:
    """The candidates by name, each run of the operators once."""

    def __init__(self, graph: OpGraph, latency: LatencyModel) -> None:
        self.graph = graph
        self.candidates: dict[str, _Candidate] = {}
        self._latency = latency
        self._seen: set[Any] = set()

    def enter(self, schedule: Schedule) -> None:
        """Add a candidate, unless there is one that runs the same."""
        runs = (frozenset(ops for ops in schedule.streams if ops), schedule.launch_order)
        if runs not in self._seen:
            self._seen.add(runs)
            predicted_us = schedule.simulate(self.graph, self._latency)
            self.candidates[schedule.scheduler] = _Candidate(schedule, predicted_us)

    def ranked(self) -> list[str]:
        """All but `sequential`, the best prediction first."""
        others = [name for name in self.candidates if name != "sequential"]
        return sorted(others, key=lambda name: self.candidates[name].predicted_us)

    def best(self, staged: bool) -> str | None:
        """The best prediction of stages, or of streams."""
        alike = (n for n in self.ranked() if self.candidates[n].schedule.is_staged == staged)
        return next(alike, None)


def _refine_best(
    field: _Field,
    latency: LatencyModel,
    op_us: npt.NDArray[np.float64],
    num_streams: int,
    budget: Budget,
) -> bool:
    """Refine the best streams, which costs no pricing, then the best stages; whether in time."""
    graph = field.graph
    for_streams = budget.share(0.5)
    in_time = True
    streamed, staged = field.best(staged=False), field.best(staged=True)
    if streamed is not None:
        found = field.candidates[streamed].schedule
        limit = max(min(num_streams, len(found.streams)), 1)
        streams = refine_streams(graph, found.streams, op_us, limit, for_streams)
        in_time = for_streams.left_s() > 0
        field.enter(Schedule(f"{streamed} refined", graph.names, streams=streams))
    if staged is not None:
        found = field.candidates[staged].schedule
        stages = refine_stages(graph, latency, found.stages, op_us, num_streams, budget)
        field.enter(Schedule(f"{staged} refined", graph.names, stages=stages))
    return in_time and budget.left_s() > 0


@dataclass(frozen=True)
class _Verdict:
    winner: str
    measured_us: dict[str, float]
    noise_us: float


def _judge(field: _Field, finalists: int, evaluate: Evaluate | None) -> _Verdict:
    ranked = field.ranked()
    seeded = [name for name in (field.best(staged=True), field.best(staged=False)) if name]
    chosen = set(
        seeded + [name for name in ranked if name not in seeded][: finalists - len(seeded)]
    )
    # In the order of the candidates, so that ties go to the first.
    finals = [name for name in field.candidates if name in chosen]
    if not finals:
        return _Verdict("sequential", {}, 0.0)
    if evaluate is None:
        first_us = field.candidates["sequential"].predicted_us
        times_us = {name: field.candidates[name].predicted_us for name in finals}
        noise_us = 0.0
    else:
        running = ["sequential", "sequential", *finals]
        measured = [float(us) for us in evaluate([field.candidates[n].schedule for n in running])]
        first_us = min(measured[:2])
        noise_us = abs(measured[0] - measured[1])
        times_us = dict(zip(finals, measured[2:], strict=True))
    best = min(finals, key=times_us.__getitem__)
    winner = best if times_us[best] < first_us - noise_us else "sequential"
    measured_us = {} if evaluate is None else {"sequential": first_us, **times_us}
    return _Verdict(winner, measured_us, noise_us)
