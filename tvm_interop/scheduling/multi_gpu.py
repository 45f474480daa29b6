"""The scheduler `multi-gpu`: the best schedule over one or more GPUs, improved by annealing."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from .._native import passes as native
from ..errors import ScheduleError
from ..latency.base import LatencyModel
from ..program.graph import OpGraph
from .budget import Budget, BudgetedLatency
from .gpu_simulation import simulate_gpus
from .greedy import greedy
from .heft import heft
from .hios_lp import hios_lp
from .hios_mr import hios_mr
from .ios import ios
from .lios import lios
from .lios_plus import lios_plus
from .nimble import nimble
from .on_gpus import (
    GpuPrices,
    GpuStages,
    check_gpu_options,
    gpu_schedule,
    windows_of,
    with_windows,
)
from .opara import opara
from .options import check_counts, check_streams, us_since
from .registry import register_scheduler
from .schedules import Schedule
from .sequential import sequential

_STARTS = 2
"""Annealing refines this many of the best schedules over several GPUs."""
_ROUNDS = 2
"""Number of rounds of refinement for each schedule. Before each round, the latency model is asked
for latencies of more windows of the current schedule.
"""
_TRIALS_AN_OP = 600
"""A round tries this many changes for each operator of the graph."""
_NEIGHBOURS = 12
"""Each operator is paired with this many operators that start next after it. The latency model is
asked for the latency of each pair side by side.
"""
_PRICING_SHARE = 0.5
"""Share of a round's time for asking the latency model for the latencies of windows. Annealing gets
the rest.
"""
_IOS_SHARE = 0.25
"""Share of the time budget for asking the latency model for the latencies of stages of `ios`.
Annealing gets the rest.
"""
_MAX_TRANSITIONS = 1_000_000
"""Option `max_transitions` of `ios`. It is lower than the default, because `ios` is only one of
several schedulers here. If the resulting schedule is not optimal but nearly as fast as the best
schedule, `ios` runs again with the default; see `_CLOSE`.
"""
_CLOSE = 1.25
"""`ios` runs again with more transitions if its makespan is below this multiple of the best
makespan.
"""


@register_scheduler("multi-gpu")
def multi_gpu(
    graph: OpGraph,
    latency: LatencyModel | None,
    gpus: int = 2,
    window: int = 2,
    intra: str = "windows",
    time_budget_s: float = 30.0,
    streams: int | None = None,
    seed: int = 0,
) -> Schedule:
    """Find the best schedule over at most `gpus` GPUs within the time budget.

    1. `hios-lp`, `hios-mr`, `heft` and HEFT with look-ahead (Bittencourt et al., 2010) make
       schedules over all GPUs. As in `hios-lp`, neighbouring operators on a GPU are merged into
       stages, called windows, whose operators start together.
    2. `sequential`, `hios-lp`, `greedy` and `ios` make schedules for one GPU. `lios`, `lios+`,
       `nimble` and `opara` make schedules for one GPU too. A schedule of these last four schedulers
       is used only if, by the latency model, its operators do not slow each other down when they
       run side by side. With `intra="none"`, only `sequential` and `hios-lp` run in this step.
    3. Simulated annealing refines the best two schedules of step 1. A change may move an operator
       to another GPU, to another place in the order, into a window or out of a window. It may also
       exchange the GPUs of two stages. Or two GPUs exchange all their stages from some place in the
       order to the end.
    4. The schedule with the shortest predicted makespan wins (`Schedule.simulate`). Among equally
       fast schedules, a schedule for one GPU wins. If several are left, the schedule that was made
       first wins.

    Equal latencies and an equal seed give the same schedule, unless the time budget was used up
    (`stats["budget_used_up"]`).

    Parameters
    ----------
    gpus, window, intra: as in `hios-lp`.
    time_budget_s: seconds for annealing, and for the latencies that annealing and `ios` ask for.
        Annealing puts operators side by side only if the latency model gave the latency of their
        stage within this time. The latencies for the schedules of step 1 take extra time.
    streams: number of streams in the schedules of step 2; None for no limit.
    seed: seed of the random changes.

    `stats` holds `winner`, `predicted_us` (makespan in microseconds, by name of the schedule),
    `trials` (number of changes tried) and `budget_used_up`.
    """
    check_gpu_options(gpus, window, intra)
    check_streams(streams)
    check_counts(seed=seed)
    if not 0 <= time_budget_s < math.inf:
        raise ScheduleError(f"`time_budget_s` is {time_budget_s!r}; it must be seconds, 0 or more")
    started = time.perf_counter()
    prices = GpuPrices.required(graph, latency, "multi-gpu")
    candidates = _on_gpus(prices, gpus, window, intra)
    budget = Budget(time_budget_s * (1 - _IOS_SHARE))
    starts = sorted(candidates, key=lambda c: c.makespan)[:_STARTS]
    search = _Search(prices, gpus, window if intra == "windows" else 1, seed)
    for i, start in enumerate(starts if gpus > 1 else ()):
        candidates.append(search.refined(start, budget.share(1 / (len(starts) - i))))
    best_us = min(candidate.makespan for candidate in candidates)
    for_ios = Budget(time_budget_s * _IOS_SHARE)
    on_one, refused = _on_one_gpu(prices, window, intra, streams, best_us, for_ios)
    candidates = [*on_one, *candidates]
    winner = min(candidates, key=lambda c: c.makespan)
    return replace(
        winner.schedule,
        scheduler="multi-gpu",
        makespan=winner.makespan,
        stats={
            "search_us": us_since(started) - prices.pricing_us,
            "pricing_us": prices.pricing_us,
            "winner": winner.schedule.scheduler,
            "predicted_us": {c.schedule.scheduler: c.makespan for c in candidates},
            "trials": search.trials,
            "budget_used_up": search.cut_short or refused > 0,
        },
    )


@dataclass(frozen=True)
class _Candidate:
    """A schedule and its makespan in microseconds."""

    schedule: Schedule
    makespan: float


def _on_gpus(prices: GpuPrices, gpus: int, window: int, intra: str) -> list[_Candidate]:
    graph, latency = prices.graph, prices.latency
    found = [
        scheduler(graph, latency, gpus, window, intra) for scheduler in (hios_lp, hios_mr, heft)
    ]
    started = time.perf_counter()
    ahead = native.heft(*prices.costs(gpus), gpus, True)
    stages, makespan = with_windows(prices, ahead, window, intra, opened="by start")
    found.append(gpu_schedule("heft looking ahead", prices, stages, makespan, started))
    return [_Candidate(schedule, schedule.makespan or 0.0) for schedule in found]


def _on_one_gpu(
    prices: GpuPrices,
    window: int,
    intra: str,
    streams: int | None,
    best_us: float,
    budget: Budget,
) -> tuple[list[_Candidate], int]:
    """The schedules for one GPU, and the number of stages that got no latency within the budget."""
    graph, latency = prices.graph, prices.latency
    asked = BudgetedLatency(latency, prices.op_us, budget)
    made = [sequential(graph, latency), hios_lp(graph, latency, 1, window, intra)]
    made[1] = replace(made[1], scheduler="windows on one GPU")
    if intra == "windows":
        made.append(greedy(graph, latency, streams=streams))
        made.append(ios(graph, asked, streams=streams, max_transitions=_MAX_TRANSITIONS))
        found = made[-1].simulate(graph, latency)
        if not made[-1].stats["optimal"] and found < _CLOSE * best_us:
            made.append(replace(ios(graph, asked, streams=streams), scheduler="ios, uncut"))
    candidates = [_Candidate(schedule, schedule.simulate(graph, latency)) for schedule in made]
    best_us = min(best_us, *(candidate.makespan for candidate in candidates))
    if intra == "windows":
        for scheduler in (lios, lios_plus, nimble, opara):
            schedule = scheduler(graph, latency, streams=streams)
            makespan = schedule.simulate(graph, latency)
            # The predicted makespan leaves out contention between operators. So it is right only if
            # operators that run at the same time do not slow each other down.
            if makespan < best_us and _run_freely(prices, schedule):
                candidates.append(_Candidate(schedule, makespan))
                best_us = makespan
    return candidates, asked.refused


def _run_freely(prices: GpuPrices, schedule: Schedule) -> bool:
    """Whether operators that run at the same time in a schedule do not slow each other down."""
    graph = prices.graph
    along = [pair for ops in schedule.streams for pair in pairwise(ops)]
    ordered = OpGraph.from_edges(graph.names, [*graph.edges, *along])
    start_us = [0.0] * graph.num_ops
    end_us = [0.0] * graph.num_ops
    for op in ordered.topological_order():
        start_us[op] = max((end_us[u] for u in ordered.predecessors(op)), default=0.0)
        end_us[op] = start_us[op] + float(prices.op_us[op])
    together = {
        tuple(u for u, begun in enumerate(start_us) if begun <= start < end_us[u])
        for start in start_us
    }
    sets = [ops for ops in sorted(together) if len(ops) > 1]
    if not sets:
        return True
    stages_us = prices.latency.stages([[(op,) for op in ops] for ops in sets])
    longest = [max(float(prices.op_us[op]) for op in ops) for ops in sets]
    return bool(np.all(np.asarray(stages_us) <= np.asarray(longest) * (1 + 1e-9)))


class _Search:
    """Refines schedules over several GPUs by simulated annealing.

    Attributes
    ----------
    trials: number of changes that were tried.
    cut_short: whether the time budget ended the search.
    """

    def __init__(self, prices: GpuPrices, gpus: int, window: int, seed: int) -> None:
        self.trials = 0
        self.cut_short = False
        self._prices = prices
        self._gpus = gpus
        self._window = window
        self._seed = seed

    def refined(self, start: _Candidate, budget: Budget) -> _Candidate:
        """The best schedule that annealing finds from `start`, with the makespan."""
        graph = self._prices.graph
        stages: GpuStages = [list(gpu) for gpu in start.schedule.gpu_stages]
        stages = [*stages, *([] for _ in range(self._gpus - len(stages)))]
        makespan, started = start.makespan, time.perf_counter()
        self._prices.ask(ops for gpu in stages for ops in gpu)
        for turn in range(_ROUNDS):
            self._price_windows(stages, budget.share(_PRICING_SHARE / (_ROUNDS - turn)))
            stages, makespan, trials, cut_short = native.refine_on_gpus(
                *self._prices.costs(self._gpus),
                [[list(ops) for ops in gpu] for gpu in stages],
                self._window,
                *self._prices.native(),
                _TRIALS_AN_OP * graph.num_ops,
                budget.left_s() / (_ROUNDS - turn),
                self._seed + turn,
            )
            self.trials += int(trials)
            self.cut_short |= bool(cut_short)
        name = f"{start.schedule.scheduler}, refined"
        refined = gpu_schedule(name, self._prices, stages, float(makespan), started)
        return _Candidate(refined, float(makespan))

    def _price_windows(self, stages: GpuStages, budget: Budget) -> None:
        """Ask for the latencies of windows, and of pairs of operators with close start times."""
        if self._window < 2:
            return
        orders = [[op for stage in gpu for op in stage] for gpu in stages]
        contiguous = windows_of(self._prices, orders, self._window)
        wanted = [[op for group in stage for op in group] for stage in contiguous]
        wanted += self._neighbours(stages)
        self.cut_short |= self._prices.ask(wanted, budget) > 0

    def _neighbours(self, stages: GpuStages) -> list[list[int]]:
        """Pairs of independent operators whose start times are near each other."""
        graph = self._prices.graph
        schedule = Schedule.from_gpu_stages("", graph.names, stages)
        times = simulate_gpus(graph, schedule, self._prices.latency)
        order = [op for op, *_ in sorted(times.timeline, key=lambda row: row[2])]
        return [
            [op, other]
            for i, op in enumerate(order)
            for other in order[i + 1 : i + 1 + _NEIGHBOURS]
            if not graph.reaches(op, other)
        ]
