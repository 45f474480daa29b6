"""The scheduler `auto`: it tries all schedulers, improves the best schedules, and measures them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ..latency.base import LatencyModel, op_latencies
from ..program.graph import OpGraph
from ..program.traits import OperatorTraits
from .budget import Budget, BudgetedLatency
from .candidates import STREAMS_SAVE, Candidates
from .greedy import greedy
from .ios import ios
from .least_time import least_us
from .lios import lios
from .lios_plus import lios_plus
from .local_search import refine_stages, refine_streams
from .nimble import nimble
from .opara import opara
from .options import check_counts, check_numbers, check_streams, required_latency, us_since
from .paired_rounds import (
    FEWEST_ROUNDS,
    LEAST_GAIN,
    LEVEL,
    MOST_ROUNDS,
    Confirmation,
    Floats,
    checked_rounds,
    confirm,
    confirmation_of,
    is_cheap,
    may_gain,
    paired_ratio,
    take_rounds,
)
from .registry import MEASURED_AGAIN, register_scheduler
from .schedules import Schedule
from .sequential import sequential

_LOG = logging.getLogger("tvm_interop")

Evaluate = Callable[[Sequence[Schedule]], Iterable[npt.ArrayLike]]
"""A function that runs schedules against each other, round by round. A round holds the time of each
schedule in microseconds, in the order of the schedules."""

_SEARCH_SHARE = 0.65
"""Share of the time budget for the search, if schedules can be run on the device. The runs of
schedules get the rest."""
_SEARCHING_S = 8.0
"""Largest number of seconds for the search, if schedules can be run on the device. A time budget
above the default raises it in proportion. Few networks need so many seconds."""
_LARGE_GAIN = 0.05
"""A network gets the whole search time if a schedule may save at least this share of the time of
sequential execution.

A network for which the possible saving is smaller gets less time for the search.
"""
_LONG_US = 5000.0
"""Time of sequential execution in microseconds, above which the search is shortened or left out if
a schedule can gain little. For faster networks, the full search is quick."""
_IOS_SHARE = 0.6
"""Share of the search time for getting the latencies of the stages that `ios` considers. Local
search gets the rest."""
_CHOOSING_SHARE = 0.6
"""Share of the time for runs that is spent on choosing a schedule.

The rest is spent on confirming that the chosen schedule is faster than `sequential`.
"""
_MOST_CHOOSING_ROUNDS = 120
"""Largest number of rounds for choosing a finalist. If the times of runs vary by 10%, then 120
rounds tell apart finalists that differ by 3%. Finalists that differ by less count as equally
good."""
_CHOOSING_S, _CONFIRMING_S = 2.0, 12.0
"""Approximate limits in seconds: for the runs that choose a schedule, and for the runs that confirm
it. A time budget above the default raises both in proportion. Within the limits, a large network
runs less often, so on a noisy machine, `auto` overlooks more gains of large networks."""
_LEAST_CHOOSING, _LEAST_CONFIRMING = 6, 24
"""Numbers of rounds for choosing a schedule and for confirming it that are run even if they take
longer than the limits `_CHOOSING_S` and `_CONFIRMING_S`."""
_USUAL_BUDGET_S = 60.0
_ALIKE = 0.02
"""Finalists whose times differ by at most this share count as equally good. No more rounds are
spent on finding the better one."""
_SURE = 0.005
"""Significance level of the test that finalists are equally good. The test is repeated as rounds
are added, and each repetition may err. So the level is stricter than for a single test."""
_MAX_TRANSITIONS = 1_000_000
"""Option `max_transitions` of `ios`. It is lower than the default, because `ios` is only one of
several schedulers here."""


@register_scheduler("auto")
def auto(
    graph: OpGraph,
    latency: LatencyModel | None,
    streams: int | None = None,
    time_budget_s: float = _USUAL_BUDGET_S,
    finalists: int = 4,
    max_group_ops: int = 3,
    max_groups: int = 8,
    endings: str = "complete",
    traits: Sequence[OperatorTraits] | None = None,
    evaluate: Evaluate | None = None,
    baseline: Schedule | None = None,
    parts: Sequence[Sequence[int]] | None = None,
    confirm_choice: bool = True,
) -> Schedule:
    """Choose the best schedule of all schedulers, after local search has improved it.

    1. The candidates are the schedules that these schedulers make: `sequential`, `greedy`, `lios`,
       `lios+`, `nimble`, `opara` and `ios`. `Schedule.simulate` predicts the makespan of each
       candidate from `latency`. If candidates have the same streams and launch order,
       only the first one is kept.

    2. Local search refines the best staged candidate and the best streamed candidate. The search
       moves operators between streams or stages, splits stages and joins stages. The refined
       schedules become candidates too.

    3. The finalists are `sequential`, the best staged candidate, the best streamed candidate, and
       the best of the remaining candidates. Predictions of staged and streamed schedules cannot
       be compared, because only the latency of a stage includes contention between operators.
       `evaluate` runs the finalists against each other, and the fastest one is chosen. Each round
       runs `sequential` twice, which shows how noisy the machine is.
       A finalist runs only if it is predicted to be 1% faster than `sequential`. A streamed
       schedule must be faster by a second prediction too (`Candidates.promises_gain`). In the
       second prediction, each part of a divided operator takes as long as it takes in `baseline`.
       There it runs beside the other parts of its operator. Without `evaluate`, the finalist with
       the shortest predicted makespan wins.

    4. The fastest of several measured schedules is partly the fastest by chance. So `evaluate` runs
       the chosen schedule again, against `sequential` only. The chosen schedule wins if it is
       faster by more than 1% in these new rounds, at a significance level of 5% (`paired_rounds`).
       Otherwise `sequential` wins. If the rounds of step 3 already show no gain, the chosen
       schedule is not run again. If no finalist is predicted to gain 1%, nothing is run at all, and
       `sequential` wins.

    The result of `auto` is never slower than the schedule `sequential`, as far as measurements or
    predictions tell.

    Operators keep their own kernels, so the outputs of the model are the same bit by bit as with
    `sequential`. Unlike `ios-both`, `auto` does not merge operators.

    Among equally good candidates, the one that was made first wins. Refined candidates are made
    last. The same latencies and measurements give the same schedule, as long as the time budget is
    not used up (`stats["budget_used_up"]`).

    Parameters
    ----------
    streams: number of streams; None for as many as a scheduler can use.
    time_budget_s: seconds for all steps. With `evaluate`, 65% of the time is for the search and 35%
        for runs. The search takes at most 8 seconds and the runs about 14 seconds; if the budget is
        larger than 60 seconds, both limits grow in proportion to the budget. For a network of more
        than 5 milliseconds, the search also depends on the possible gain, which follows from a
        lower bound of the time of any schedule (`least_us`). If the possible gain is below 5%, the
        search is shorter. If it is below 1%, there is no search. 60% of the search time is for
        measuring the latencies of stages that `ios` considers. A candidate is dropped if there is
        no time to get the latency of one of its stages. Single operators and the stages of
        `sequential` always get their latencies, even if that takes more time than the budget
        allows. If no time is then left to run schedules, `sequential` wins.
    finalists: number of candidates that run against `sequential`, 2 or more.
    max_group_ops, max_groups, endings: options of `ios`. `greedy` uses `max_groups` too.
    traits: an option of `opara`.
    evaluate: a function that runs the given schedules against each other. It yields round after
        round for as long as `auto` asks for more. A round holds the time of each schedule in
        microseconds, in the order in which the schedules were given.
    parts: an option of `ios`.
    confirm_choice: whether step 4 takes place. Without step 4, the schedule that step 3 chose wins
        if its estimated gain in the rounds of step 3 is above 1%. There is no test of significance
        then. A caller that confirms the choice in another way switches step 4 off.
    baseline: a schedule to use as `sequential`; None stands for a schedule with all operators on
        one stream. `compile` passes a schedule that runs the operators in order. In this schedule,
        the parts of a divided operator run side by side.

    `stats` holds the name of the `winner` and `predicted_us`, the makespan by candidate.
    `chosen_by_us` holds the median time of each finalist in step 3. `measured_us` holds the median
    times of `sequential` and of the chosen schedule in step 4. `confirmation` compares these two
    schedules in the rounds of step 4. If step 4 had no rounds, `measured_us` and `confirmation`
    come from step 3. If nothing ran, `measured_us` is empty and `confirmation` is None.
    `measuring_us` is the time of all rounds. `stages_refused` is the number of stages that got no
    latency for lack of time. `budget_used_up` says whether time ran out. `not_run` says whether no
    time was left to run schedules. `no_hope` is True if no schedule ran because none is predicted
    to gain 1%.
    """
    model = required_latency(latency, "auto")
    check_streams(streams)
    check_counts(at_least=2, finalists=finalists)
    check_numbers(time_budget_s=time_budget_s)
    started = time.perf_counter()
    budget = Budget(time_budget_s)
    op_us = op_latencies(model, graph.names)
    entered = Candidates(graph, model)
    entered.enter(replace(baseline or sequential(graph, model), scheduler="sequential"))
    pricing_us = us_since(started)
    refused, used_up = 0, False
    worth = 1.0 if evaluate is None else _worth(entered, model, op_us, streams)
    if streams != 1 and worth > 0:
        searching = _time_to_search(budget, time_budget_s, evaluate is not None, worth)
        for_stages = BudgetedLatency(model, op_us, searching)
        entered.enter(greedy(graph, model, max_groups, streams), for_stages)
        entered.enter(lios(graph, model, streams), for_stages)
        entered.enter(lios_plus(graph, model, streams), for_stages)
        entered.enter(nimble(graph, model, streams), for_stages)
        entered.enter(opara(graph, model, traits, streams), for_stages)
        for_ios = BudgetedLatency(model, op_us, searching.share(_IOS_SHARE), parts or ())
        found = ios(
            graph,
            for_ios,
            max_group_ops,
            max_groups,
            endings,
            streams,
            _MAX_TRANSITIONS,
            parts=parts,
        )
        entered.enter(found)  # All latencies of this schedule are known, so no budget is passed.
        most = streams or max(graph.num_ops, 1)
        in_time = _refine_best(entered, for_stages, op_us, most, searching)
        refused = for_ios.refused + for_stages.refused
        used_up = refused > 0 or not in_time
        pricing_us += for_ios.pricing_us + for_stages.pricing_us
    search_us = us_since(started) - pricing_us
    started = time.perf_counter()
    if worth > 0:
        verdict = _judge(entered, finalists, evaluate, budget, time_budget_s, confirm_choice)
    else:
        _LOG.info("auto: a lower bound of the time shows that no schedule can be 1% faster")
        verdict = _Verdict("sequential", no_hope=True)
    measuring_us = us_since(started)
    predicted_us = {name: c.predicted_us for name, c in entered.candidates.items()}
    winner = entered.candidates[verdict.winner].schedule
    _LOG.info("auto: `%s` wins", verdict.winner)
    again = 0
    if verdict.winner != "sequential":
        again = winner.measure_again(graph, BudgetedLatency(model, op_us, budget))
    return replace(
        winner,
        scheduler="auto",
        makespan=winner.simulate(graph, model) if again else predicted_us[verdict.winner],
        stats={
            "search_us": search_us,
            "pricing_us": pricing_us,
            "measuring_us": measuring_us,
            MEASURED_AGAIN: again,
            "winner": verdict.winner,
            "predicted_us": predicted_us,
            "chosen_by_us": verdict.chosen_by_us,
            "measured_us": verdict.measured_us,
            "confirmation": verdict.confirmation,
            "stages_refused": refused,
            "budget_used_up": used_up or verdict.not_run,
            "not_run": verdict.not_run,
            "no_hope": verdict.no_hope,
        },
    )


def _worth(entered: Candidates, model: LatencyModel, op_us: Floats, streams: int | None) -> float:
    """The share of the usual search time to spend, from 0 to 1; 0 if no schedule can gain 1%.

    The returned share grows with the largest possible gain over `sequential`. This gain is computed
    from `least_us`, a lower bound of every schedule's time.
    """
    in_turn = entered.candidates["sequential"]
    in_turn_us = in_turn.predicted_us
    if in_turn_us < _LONG_US:
        return 1.0
    bound_us = least_us(entered.graph, in_turn.schedule, model, op_us, streams or len(op_us))
    most_gain = 1 - bound_us / in_turn_us + STREAMS_SAVE
    return 0.0 if most_gain < LEAST_GAIN else min(float(most_gain) / _LARGE_GAIN, 1.0)


def _time_to_search(budget: Budget, time_budget_s: float, runs: bool, worth: float) -> Budget:
    """The budget for the search, a share of the time budget.

    Parameters
    ----------
    runs: whether schedules are run afterwards.
    worth: share of the usual search time to spend (`_worth`).
    """
    if not runs:
        return budget.share(1.0)
    most_s = max(1.0, time_budget_s / _USUAL_BUDGET_S) * _SEARCHING_S * worth
    return Budget(min(budget.left_s() * _SEARCH_SHARE, most_s))


def _refine_best(
    entered: Candidates,
    in_budget: LatencyModel,
    op_us: npt.NDArray[np.float64],
    num_streams: int,
    budget: Budget,
) -> bool:
    """Refine the best streamed candidate, then the best staged candidate.

    The streamed candidate comes first, because refining it needs no new latencies. The function
    returns whether the time budget was long enough.
    """
    graph = entered.graph
    for_streams = budget.share(0.5)
    in_time = True
    streamed, staged = entered.best(staged=False), entered.best(staged=True)
    if streamed is not None:
        found = entered.candidates[streamed].schedule
        limit = max(min(num_streams, len(found.streams)), 1)
        streams = refine_streams(graph, found.streams, op_us, limit, for_streams)
        in_time = for_streams.left_s() > 0
        entered.enter(Schedule(f"{streamed} refined", graph.names, streams=streams))
    if staged is not None:
        found = entered.candidates[staged].schedule
        stages, in_all = refine_stages(graph, in_budget, found.stages, op_us, num_streams, budget)
        in_time = in_time and in_all
        # `enter` gets no budget, because the latencies of all refined stages are known.
        entered.enter(Schedule(f"{staged} refined", graph.names, stages=stages))
    return in_time and budget.left_s() > 0


@dataclass(frozen=True)
class _Verdict:
    winner: str
    chosen: str = ""
    chosen_by_us: dict[str, float] = field(default_factory=dict)
    confirmation: Confirmation | None = None
    not_run: bool = False
    no_hope: bool = False

    @property
    def measured_us(self) -> dict[str, float]:
        if self.confirmation is None:
            return {}
        return {
            "sequential": self.confirmation.sequential_us,
            self.chosen: self.confirmation.scheduled_us,
        }


def _judge(
    entered: Candidates,
    finalists: int,
    evaluate: Evaluate | None,
    budget: Budget,
    time_budget_s: float,
    confirm_choice: bool,
) -> _Verdict:
    finals = _finalists(entered, finalists)
    if not finals:
        return _Verdict("sequential")
    if evaluate is None:
        # On a tie, the first candidate wins: `finals` keeps the order of the candidates.
        best = min(["sequential", *finals], key=lambda name: entered.candidates[name].predicted_us)
        return _Verdict(best)
    finals = [name for name in finals if entered.promises_gain(name)]
    if not finals:
        _LOG.info("auto: no schedule is predicted to be 1% faster than sequential execution")
        return _Verdict("sequential", no_hope=True)
    if _least_s(entered, finals) > budget.left_s():
        _LOG.warning(
            "auto: no time is left to run %d schedules against sequential execution, so it takes "
            "sequential execution; give a larger `time_budget_s`, or `time_budget` of `compile`",
            len(finals),
        )
        return _Verdict("sequential", not_run=True)
    schedules = {name: entered.candidates[name].schedule for name in ["sequential", *finals]}
    more = max(1.0, time_budget_s / _USUAL_BUDGET_S)
    chosen, chosen_by_us, so_far = _choose(
        schedules, evaluate, budget.share(_CHOOSING_SHARE), more * _CHOOSING_S
    )
    confirmation = confirmation_of(so_far)
    if not confirm_choice:
        wins = may_gain(so_far, 2) and confirmation.compared.seems_faster
        return _Verdict(chosen if wins else "sequential", chosen, chosen_by_us, confirmation)
    if may_gain(so_far, 2) or confirmation.compared.is_faster:
        running = [schedules["sequential"], schedules["sequential"], schedules[chosen]]
        rounds = checked_rounds(evaluate(running), len(running))
        # Take the time of a round from the rounds so far. The sum of operator latencies would not
        # do, because a run of a whole network may take far longer.
        round_s = float(np.median(so_far.sum(axis=1))) * 1e-6
        most = _rounds_within(more * _CONFIRMING_S, round_s, _LEAST_CONFIRMING)
        confirmation = confirm(rounds, budget, most=most, ends_early=True)
    return _Verdict(
        winner=chosen if confirmation.compared.is_faster else "sequential",
        chosen=chosen,
        chosen_by_us=chosen_by_us,
        confirmation=confirmation,
    )


def _choose(
    schedules: dict[str, Schedule], evaluate: Evaluate, budget: Budget, limit_s: float
) -> tuple[str, dict[str, float], Floats]:
    """Run the finalists against each other for about `limit_s` seconds, and choose the fastest.

    A finalist is left out of further rounds in two cases. First, a test at a significance level of
    5% shows that it is slower than the fastest finalist so far. Second, it is too slow to gain
    anything over `sequential`.

    The function returns three things: the name of the fastest finalist; the median times of
    `sequential` and all finalists; and an array of shape (rounds, 3). The first two columns of the
    array hold the times of two runs of `sequential`. The third column holds the times of the
    fastest finalist. All times are in microseconds.
    """

    def is_over(so_far: Floats) -> bool:
        return len(so_far) >= _LEAST_CHOOSING and so_far.sum() + dropped_us >= limit_s * 1e6

    baseline = schedules["sequential"]
    left = [name for name in schedules if name != "sequential"]
    medians_us: dict[str, float] = {}
    dropped_us = 0.0  # Time that the runs of dropped finalists took.
    taken: Floats | None = None
    while True:
        running = [baseline, baseline, *(schedules[name] for name in left)]
        taken = take_rounds(
            checked_rounds(evaluate(running), len(running)),
            budget,
            pair=(0, 1),
            most=_MOST_CHOOSING_ROUNDS,
            earlier=taken,
            ends=lambda so_far: (
                is_over(so_far) or _is_settled(so_far) or not all(_in_the_race(so_far))
            ),
        )
        medians = np.median(taken, axis=0).tolist()
        medians_us |= dict(zip(["sequential", *left], medians[1:], strict=True))
        staying = _in_the_race(taken)
        if all(staying) or is_over(taken) or _is_settled(taken) or budget.left_s() <= 0:
            break
        left = [name for name, stays in zip(left, staying, strict=True) if stays]
        of_all_us = taken.sum()
        taken = taken[:, [True, True, *staying]]
        dropped_us += float(of_all_us - taken.sum())
        if len(left) == 1 or len(taken) >= _MOST_CHOOSING_ROUNDS:
            break
    _, sequential_us, *of_finals = taken.T
    ratios = [paired_ratio(times_us, sequential_us).ratio for times_us in of_finals]
    in_order = {name: medians_us[name] for name in schedules}
    fastest = int(np.argmin(ratios))
    return left[fastest], in_order, taken[:, [0, 1, 2 + fastest]]


def _rounds_within(limit_s: float, round_s: float, at_least: int) -> int:
    """The number of rounds that fit into `limit_s` if each takes `round_s`; at least `at_least`."""
    return max(at_least, int(min(limit_s / max(round_s, 1e-9), MOST_ROUNDS)))


def _in_the_race(so_far: Floats) -> list[bool]:
    """For each finalist, whether it may still be the fastest finalist and beat `sequential`.

    The result is always True for the best finalist so far. `_is_settled` describes the parameter
    `so_far`.
    """
    sequential_us, _, *of_finals = so_far.T
    compared = [paired_ratio(times_us, sequential_us) for times_us in of_finals]
    best = int(np.argmin([found.ratio for found in compared]))
    behind = [paired_ratio(times_us, of_finals[best]).interval[0] > 1 for times_us in of_finals]
    return [i == best or (may_gain(so_far, 2 + i) and not behind[i]) for i in range(len(of_finals))]


def _is_settled(so_far: Floats) -> bool:
    """Whether the choice of a finalist needs no more rounds.

    No more rounds are needed in two cases. In the first case, all finalists are too slow to gain
    anything over `sequential` (`may_gain`). In the second case, the best finalist is at most 2%
    slower than each of the others, tested at the significance level `_SURE`. If the rounds so far
    have taken long (see `is_cheap`), the level is `LEVEL`.

    Parameters
    ----------
    so_far: (rounds, 2 + finalists) microseconds. The first two columns are two runs of
        `sequential`.
    """
    sequential_us, _, *of_finals = so_far.T
    if not any(may_gain(so_far, 2 + i) for i in range(len(of_finals))):
        return True
    ratios = [paired_ratio(times_us, sequential_us).ratio for times_us in of_finals]
    best = int(np.argmin(ratios))
    level = _SURE if is_cheap(so_far) else LEVEL
    behind = (paired_ratio(of_finals[best], other_us, level) for other_us in of_finals)
    return all(found.interval[1] <= 1 + _ALIKE for found in behind)


def _least_s(entered: Candidates, finals: Sequence[str]) -> float:
    """Estimated seconds for the fewest rounds that can choose a schedule and confirm it."""
    runs = FEWEST_ROUNDS * (2 + len(finals)) + FEWEST_ROUNDS * 3
    return runs * entered.candidates["sequential"].predicted_us * 1e-6


def _finalists(entered: Candidates, count: int) -> list[str]:
    """The names of the candidates to run against `sequential`, in the order of the candidates."""
    seeded = [name for name in (entered.best(staged=True), entered.best(staged=False)) if name]
    others = [name for name in entered.ranked() if name not in seeded]
    chosen = {*seeded, *others[: count - len(seeded)]}
    return [name for name in entered.candidates if name in chosen]
