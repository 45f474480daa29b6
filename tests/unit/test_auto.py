"""Tests the scheduler `auto`: its choice and its time budget."""

import itertools
import math

import msgspec
import numpy as np
import pytest

import tvm_interop
from tests.graphs import Contended, latencies, layered, randwire, sparse
from tests.nets import chain, inception_like
from tvm_interop.compiler import new_processes
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.errors import ScheduleError
from tvm_interop.latency import LatencyModel, LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import Schedule, Stage, budget, options_of, schedule
from tvm_interop.scheduling.budget import Budget
from tvm_interop.transform import InterOpSchedule

FAMILIES = ("sequential", "greedy", "lios", "lios+", "nimble", "opara", "ios")
GRAPH = layered(30, 4)
US = latencies(30, 4)


class Clock:
    """A clock that advances only when a test advances it."""

    def __init__(self, monkeypatch):
        self.s = 0.0
        monkeypatch.setattr(budget, "now_s", lambda: self.s)


def favouring(name):
    """A device on which the schedule of one scheduler takes half the time of all others."""

    def evaluate(schedules):
        return itertools.repeat([50.0 if made.scheduler == name else 100.0 for made in schedules])

    return evaluate


def test_each_family_wins_where_it_is_the_fastest():
    predicted = schedule(GRAPH, "auto", LatencyTable(US), streams=3).stats["predicted_us"]
    assert set(FAMILIES) < set(predicted)
    refined = [name for name in predicted if name.endswith(" refined")]
    assert len(refined) >= 1
    for name in (*FAMILIES, *refined):
        made = schedule(
            GRAPH, "auto", LatencyTable(US), streams=3, finalists=9, evaluate=favouring(name)
        )
        assert made.scheduler == "auto"
        assert made.stats["winner"] == name
        assert made.makespan == made.stats["predicted_us"][name]


@pytest.mark.parametrize(
    ("slowdown", "kind"), [(10.0, "streams"), (0.0, "any"), (0.3, "any"), (2.0, "any")]
)
def test_the_prediction_decides_where_nothing_is_measured(slowdown, kind):
    made = schedule(GRAPH, "auto", Contended(US, slowdown), streams=3)
    predicted = made.stats["predicted_us"]
    assert made.makespan == predicted[made.stats["winner"]] == min(predicted.values())
    assert made.stats["measured_us"] == {}
    if kind == "streams":  # Stages that contention makes eleven times as slow never win.
        assert not made.is_staged


def test_sequential_wins_where_nothing_helps():
    class OneCore(LatencyModel):
        """A device with one core. Groups take a little longer side by side than one after the
        other."""

        def op(self, op):
            return float(US[op])

        def stage(self, groups):
            return 1.01 * sum(US[op] for group in groups for op in group)

    slower = schedule(
        GRAPH,
        "auto",
        OneCore(),
        streams=2,
        evaluate=lambda made: itertools.repeat([100, 100, *[101] * 9][: len(made)]),
    )
    assert slower.stats["winner"] == "sequential"
    assert slower.streams == schedule(GRAPH, "sequential").streams
    assert schedule(GRAPH, "auto", OneCore(), streams=1).stats["winner"] == "sequential"
    line = OpGraph.from_edges(5, list(itertools.pairwise(range(5))))
    assert schedule(line, "auto", LatencyTable([1] * 5)).stats["winner"] == "sequential"


def never(schedules):
    raise AssertionError(f"{len(schedules)} schedules run")


def test_schedules_run_only_if_they_may_gain():
    def made(latency, graph=GRAPH, **options):
        return schedule(graph, "auto", latency, streams=2, evaluate=never, **options).stats

    # Each stage of two groups takes as long as its operators one after the other, so no stage gains
    # time.
    ladder = OpGraph.from_edges(4, [(0, 2), (1, 3)])
    stats = made(Contended([1.0, 1.0, 1.0, 1.0], 1.0), ladder, baseline=in_pairs(ladder))
    assert (stats["winner"], stats["no_hope"], stats["not_run"]) == ("sequential", True, False)
    assert stats["confirmation"] is None
    assert stats["measured_us"] == stats["chosen_by_us"] == {}
    with pytest.raises(AssertionError, match="schedules run"):
        made(LatencyTable(US))


def in_pairs(graph):
    """Sequential execution of two divided operators. First the parts 0 and 1 of one operator run
    side by side, then the parts 2 and 3 of the other operator."""
    stages = [Stage(((0,), (1,)), (0, 1)), Stage(((2,), (3,)), (0, 1))]
    return Schedule("sequential", graph.names, stages=tuple(stages))


def test_a_network_that_keeps_all_streams_busy_is_not_searched():
    ladder = OpGraph.from_edges(4, [(0, 2), (1, 3)])

    def found(us, slowdown, evaluate=never):
        model = Contended([us] * 4, slowdown)
        return schedule(
            ladder, "auto", model, streams=2, baseline=in_pairs(ladder), evaluate=evaluate
        ).stats

    busy = found(4000.0, 0.0)
    assert (busy["winner"], busy["no_hope"]) == ("sequential", True)
    assert list(busy["predicted_us"]) == ["sequential"]
    assert len(found(4.0, 0.0)["predicted_us"]) > 1  # The network is short, so searching is quick.
    slowed_down = found(4000.0, 0.2, lambda made: itertools.repeat([100] * len(made)))
    assert len(slowed_down["predicted_us"]) > 1
    # In a chain, only the parts of one operator can run side by side. So no search can find a
    # faster schedule, however much the parts slow each other down.
    ladder = OpGraph.from_edges(4, [(0, 2), (0, 3), (1, 2), (1, 3)])
    assert list(found(4000.0, 0.2)["predicted_us"]) == ["sequential"]


def test_streams_of_parts_count_as_parts_run_side_by_side():
    """Parts take twice as long side by side as alone, so running parts on several streams gains
    nothing."""
    graph = OpGraph.from_edges(4, [(0, 2), (1, 3)])
    table = Contended([1.0, 1.0, 1.0, 1.0], 1.0)
    stats = schedule(
        graph, "auto", table, streams=2, baseline=in_pairs(graph), evaluate=never
    ).stats
    streamed = [us for name, us in stats["predicted_us"].items() if name != "sequential"]
    assert min(streamed) == 2 < stats["predicted_us"]["sequential"] == 4
    assert stats["no_hope"]


def test_a_gain_within_the_noise_is_none():
    def noisy(gain, seed):
        draw = np.random.default_rng(seed)

        def evaluate(made):
            us = np.array([100, 100, *[100 * (1 - gain)] * (len(made) - 2)])
            while True:
                yield us * np.exp(0.03 * draw.standard_normal(len(made)))

        return schedule(
            small, "auto", LatencyTable(us_of_small), streams=2, evaluate=evaluate
        ).stats

    # Each of the 60 calls of `noisy` searches this graph, so the graph is small.
    small, us_of_small = layered(10, 4), latencies(10, 4)
    none, some = ([noisy(gain, seed) for seed in range(30)] for gain in (0.0, 0.05))
    assert sum(stats["winner"] != "sequential" for stats in none) <= 1
    assert sum(stats["winner"] != "sequential" for stats in some) >= 27
    for stats in (*none, *some):
        assert 1 < stats["confirmation"].noise_ratio < 1.1


def test_the_winner_is_confirmed_by_rounds_that_did_not_choose_it():
    """A schedule that was chosen because it was fast by chance is not faster when it is measured
    again."""
    seen = []

    def evaluate(schedules):
        seen.append([made.scheduler for made in schedules])
        lucky_us = 50.0 if len(seen) == 1 else 100.0
        return itertools.repeat([100.0] * (len(schedules) - 1) + [lucky_us])

    made = schedule(GRAPH, "auto", LatencyTable(US), streams=2, finalists=3, evaluate=evaluate)
    assert seen[0][:2] == ["sequential", "sequential"]
    assert len(seen[0]) == 5
    assert seen[1] == ["sequential", "sequential", seen[0][-1]]
    stats = made.stats
    assert stats["winner"] == "sequential"
    assert stats["chosen_by_us"][seen[0][-1]] == 50
    assert stats["measured_us"] == {"sequential": 100, seen[0][-1]: 100}
    assert stats["confirmation"].compared.ratio == 1


def test_who_is_far_behind_takes_no_part_in_further_rounds():
    """Two finalists are equally fast, so these two run in more rounds than the slower finalists."""
    seen = []

    def evaluate(schedules):
        seen.append([made.scheduler for made in schedules])
        draw = np.random.default_rng(len(seen))
        us = [{"lios": 80, "nimble": 80}.get(made.scheduler, 100) for made in schedules]
        us[-1] = 150 if len(seen) == 1 else us[-1]
        rounds = 0
        while True:
            rounds += 1
            assert rounds <= 500
            yield np.array(us) * np.exp(0.05 * draw.standard_normal(len(us)))

    made = schedule(GRAPH, "auto", LatencyTable(US), streams=2, finalists=9, evaluate=evaluate)
    assert seen[0][-1] not in seen[1]
    assert {"lios", "nimble"} <= set(seen[1])
    assert made.stats["winner"] in ("lios", "nimble")
    assert seen[-1] == ["sequential", "sequential", made.stats["winner"]]
    assert list(made.stats["chosen_by_us"]) == seen[0][1:]
    assert made.stats["chosen_by_us"][seen[0][-1]] == pytest.approx(150, rel=0.1)


def test_the_choice_among_equals_ends():
    """Finalists that many noisy rounds cannot distinguish count as equally good."""
    counts = []

    def evaluate(schedules):
        draw = np.random.default_rng(len(counts))
        counts.append(0)
        us = np.array([100, 100, *[90] * (len(schedules) - 2)])
        while True:
            counts[-1] += 1
            yield us * np.exp(0.2 * draw.standard_normal(len(us)))

    schedule(GRAPH, "auto", LatencyTable(US), streams=2, evaluate=evaluate)
    assert sum(counts[:-1]) <= 120
    assert counts[-1] > 120


def test_the_time_of_finalists_that_were_dropped_counts():
    """The choice among finalists may take two seconds.

    A slow finalist takes more than that in the first rounds. It is dropped, but its time counts, so
    the choice ends soon after.
    """
    counts = []

    def evaluate(schedules):
        draw = np.random.default_rng(len(counts))
        counts.append(0)
        us = np.array([20e3, 20e3, *[18e3] * (len(schedules) - 2)])
        us[-1] = 1e6 if len(counts) == 1 else us[-1]
        while True:
            counts[-1] += 1
            yield us * np.exp(0.2 * draw.standard_normal(len(us)))

    schedule(GRAPH, "auto", LatencyTable(US), streams=2, evaluate=evaluate, confirm_choice=False)
    assert counts == [3, 6]


@pytest.mark.parametrize(("us", "confirm_choice", "wins"), [
    (95.0, False, True),
    (95.0, True, False),
    (99.5, False, False),
])  # fmt: skip
def test_a_caller_may_confirm_the_choice(us, confirm_choice, wins):
    """With `confirm_choice`, `auto` measures its winner a second time, and here the second
    measurement shows no gain.

    Without `confirm_choice`, a schedule wins if the first measurement shows a gain of over 1%.
    """
    asked = []

    def evaluate(schedules):
        asked.append(len(schedules))
        others = us if len(asked) == 1 else 100.0
        draw = np.random.default_rng(0)
        while True:
            times_us = np.array([100, 100, *[others] * (len(schedules) - 2)])
            yield times_us * (1 + 0.1 * draw.standard_normal())

    made = schedule(
        GRAPH, "auto", LatencyTable(US), streams=2, evaluate=evaluate, confirm_choice=confirm_choice
    )
    assert (made.stats["winner"] != "sequential") == wins
    assert len(asked) == 1 + confirm_choice
    assert made.stats["confirmation"].compared.ratio == pytest.approx(
        1.0 if confirm_choice else us / 100, abs=0.003
    )


@pytest.mark.parametrize(
    ("rounds", "says"),
    [
        ([], "no round"),
        ([1.0, 2.0], "as round 1"),
        ([[1.0] * 9], "as round 1"),
        (itertools.repeat([float("nan")] * 5), "as round 1"),
        (["fast"], "not a list"),
    ],
)
def test_rounds_of_no_use(rounds, says):
    with pytest.raises(ScheduleError, match=f"`evaluate` gave .*{says}"):
        schedule(
            GRAPH, "auto", LatencyTable(US), streams=2, finalists=3, evaluate=lambda made: rounds
        )


def test_the_same_question_gets_the_same_answer():
    for seed in range(10):
        graph = randwire(16, seed)
        us = latencies(16, seed)
        first, second = (schedule(graph, "auto", Contended(us, 0.2), streams=2) for _ in range(2))
        assert first == second
        assert first.stats["winner"] == second.stats["winner"]
        assert not first.stats["budget_used_up"]


def test_no_worse_than_any_scheduler_by_the_same_prices():
    for seed in range(12):
        graph = (layered(14, seed), sparse(14, seed))[seed % 2]
        us = Contended(latencies(14, seed), 0.1)
        best = schedule(graph, "auto", us, streams=2).makespan
        for name in FAMILIES:
            options = {"streams": 2} if "streams" in options_of(name) else {}
            assert best <= schedule(graph, name, us, **options).makespan


def test_the_budget_stops_pricing(monkeypatch):
    """Each request for the latency of a stage takes one second of the clock.

    The test counts the requests for latencies.
    """
    clock = Clock(monkeypatch)

    class Slow(Contended):
        def stages(self, stages):
            clock.s += len(stages)
            return super().stages(stages)

    graph = randwire(20, 3)
    us = latencies(20, 3)
    asked = {}
    for seconds in (0, 100, 200, 10_000):
        model, clock.s = Slow(us, 0.2), 0.0
        made = schedule(graph, "auto", model, streams=2, time_budget_s=seconds)
        asked[seconds] = model.asked
        assert made.stats["budget_used_up"] == (seconds < 10_000)
        made.validate(graph)
        assert clock.s <= max(seconds + 2, graph.num_ops)
    assert asked[0] < asked[100] < asked[200] < asked[10_000]


@pytest.mark.parametrize("seconds", [0, 3, 30])
def test_divided_operators_are_priced_whatever_the_budget(monkeypatch, seconds):
    """Stages with the parts of a divided operator are measured even when no time is left, because
    `ios` finds no schedule without their latencies."""
    clock = Clock(monkeypatch)

    class Slow(Contended):
        def stages(self, stages):
            clock.s += 1
            return super().stages(stages)

    graph = OpGraph.from_edges(5, [(0, 1), (0, 2), (1, 3), (2, 3), (0, 4), (4, 3)])
    parts = [[0], [1, 2], [3], [4]]
    model = Slow([10.0, 20.0, 20.0, 10.0, 30.0], 0.1)
    made = schedule(graph, "auto", model, streams=2, time_budget_s=seconds, parts=parts)
    made.validate(graph)
    assert math.isfinite(made.makespan)
    assert made.stats["budget_used_up"] == (seconds < 30)
    assert not made.stats["not_run"]


def test_running_schedules_is_part_of_the_budget(monkeypatch):
    """On the clock of the budget, a run of a schedule takes a tenth of a second, and everything
    else takes no time."""
    clock = Clock(monkeypatch)

    def evaluate(schedules):
        while True:
            clock.s += 0.1 * len(schedules)
            yield [1.0 + 0.3 * draw.random() for _ in schedules]

    for seconds in (3, 6, 30):
        clock.s, draw = 0.0, np.random.default_rng(0)
        schedule(
            GRAPH, "auto", LatencyTable(US), streams=2, evaluate=evaluate, time_budget_s=seconds
        )
        assert 0.5 * seconds < clock.s < seconds + 2 * 0.6


def test_where_no_time_is_left_sequential_wins(caplog):
    def evaluate(schedules):
        raise AssertionError("there is no time for this")

    second = LatencyTable([1e6] * len(US))
    made = schedule(GRAPH, "auto", second, streams=2, evaluate=evaluate, time_budget_s=60)
    assert made.stats["winner"] == "sequential"
    assert made.stats["not_run"]
    assert made.stats["budget_used_up"]
    assert "`time_budget_s`" in caplog.text


def test_what_is_not_priced_is_refused(monkeypatch):
    clock = Clock(monkeypatch)
    model = Contended(US, 0.0)
    limited = budget.BudgetedLatency(model, np.array(US, float), Budget(1.0))
    assert limited.stage([(0,), (1,)]) == max(US[:2])
    clock.s = 1.0
    assert limited.stages([[(0,), (1,)], [(2, 3)], [(4,)]]).tolist() == [math.inf, math.inf, US[4]]
    assert limited.refused == 2
    assert model.asked == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"time_budget_s": -1}, "`time_budget_s` is -1"),
        ({"finalists": 1}, "`finalists` is 1"),
        ({"streams": 0}, "`streams` is 0"),
        ({"endings": "all"}, "`endings` is 'all'"),
    ],
)
def test_bad_options_are_named(options, says):
    with pytest.raises(ScheduleError, match=says):
        schedule(GRAPH, "auto", LatencyTable(US), **options)
    with pytest.raises(ScheduleError, match="`auto` needs a latency model"):
        schedule(GRAPH, "auto")


def test_it_is_what_models_are_compiled_with():
    artifact = tvm_interop.compile(inception_like(), streams=2, latency_db=":memory:")
    assert artifact.manifest.scheduler == "auto"
    assert InterOpSchedule().scheduler == "auto"


@pytest.mark.parametrize("confirms", [False, True])
def test_one_measurement_decides_and_checks(monkeypatch, confirms):
    """`compile` does not repeat a measurement of `auto`.

    If the speed check runs in new processes, `auto` does not confirm its choice. Otherwise `auto`
    confirms its choice by a measurement, which is also the speed check. If the caller gives
    `evaluate`, `compile` measures for the speed check itself.
    """
    asked = []

    def measure(self, schedules):
        asked.append(len(schedules))
        return itertools.repeat([100.0, 104.0, *[90.0] * 9][: len(schedules)])

    def compiled(**options):
        asked.clear()
        return tvm_interop.compile(
            inception_like(), streams=2, providers=["tvm"], latency_db=":memory:", **options
        )

    monkeypatch.setattr(Compilation, "measure", measure)
    monkeypatch.setattr(new_processes, "confirm_in_new_processes", lambda _, made, checked: checked)
    if confirms:
        monkeypatch.setattr(new_processes, "_LARGEST_BYTES", 0)
    by_auto = compiled().manifest.speed_check
    assert asked[0] > 3
    if confirms:
        # `auto` confirms its finalist against sequential execution, which runs twice.
        assert asked[1] == 3
    assert len(asked) == 1 + confirms
    assert by_auto.shipped == "scheduled"
    assert (by_auto.sequential_us, by_auto.scheduled_us) == (100.0, 90.0)
    assert (by_auto.ratio, by_auto.noise_ratio) == pytest.approx((0.9, 1.04))
    assert by_auto.interval == pytest.approx((0.9, 0.9))
    by_check = compiled(
        evaluate=lambda made: itertools.repeat([2.0, 2.0, *[1.0] * len(made[2:])])
    ).manifest.speed_check
    assert asked == [3]
    assert by_check == msgspec.structs.replace(by_auto, rounds=by_check.rounds)
    assert compiled(scheduler="greedy").manifest.speed_check == by_check
    assert asked == [3]
    assert compiled(keep_slower=True).manifest.speed_check is None


def test_a_compilation_measures_the_finalists():
    options = CompileOptions(streams=2, latency_db=":memory:")
    made = Compilation(inception_like(), options).schedule("auto", time_budget_s=5)
    assert made.stats["winner"] in made.stats["measured_us"]
    assert "sequential" in made.stats["measured_us"]
    assert all(us > 0 for us in made.stats["measured_us"].values())
    made = Compilation(chain(), options).schedule("auto")
    assert made.num_streams == 1
