"""Tests that IOS with lower bounds of latencies finds the same schedule as without bounds."""

import math
import random
from functools import cache

import pytest

from tests.brute_force import cheapest_stages
from tests.graphs import latencies, layered, randwire, sparse
from tvm_interop.errors import LatencyError, ScheduleError
from tvm_interop.latency import LatencyModel, LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import schedule


class Contended(LatencyModel):
    """A latency model in which each stage is slower than its bound, by a random factor.

    If `fastest` is below 1, some stages are faster than their bound.
    """

    def __init__(self, us, seed, fastest=1.0, slowest=2.0):
        self.us = us
        self.seed = seed
        self.fastest = fastest
        self.slowest = slowest
        self.priced = []

    def op(self, op):
        return self.us[op]

    def stage(self, groups):
        self.priced.append(tuple(sorted(tuple(group) for group in groups)))
        longest = max(sum(self.us[op] for op in group) for group in groups)
        if sum(map(len, groups)) == 1:
            return longest
        draw = random.Random(f"{self.seed} {self.priced[-1]}").uniform(self.fastest, self.slowest)
        return longest * draw


def some_graph(seed, least, most):
    n = least + seed % (most - least + 1)
    return (sparse(n, seed, degree=1.5), layered(n, seed, layer=4), randwire(max(n, 10), seed))[
        seed % 3
    ]


def options_of(seed):
    return {"streams": (None, 2)[seed % 2], "max_group_ops": 2 + seed % 3}


@cache
def fully_priced(seed):
    """The schedule that `ios` finds if it asks for the latency of every stage."""
    graph = some_graph(seed, 4, 13)
    model = Contended(latencies(graph.num_ops, seed), seed)
    return schedule(graph, "ios", model, bounds=False, **options_of(seed))


@pytest.mark.parametrize("tolerance", [0.0, 0.05, 0.5])
def test_the_schedule_of_full_pricing(tolerance):
    spared = 0
    for seed in range(160):
        graph = some_graph(seed, 4, 13)
        us = latencies(graph.num_ops, seed)
        options = options_of(seed)
        full = fully_priced(seed)
        model = Contended(us, seed)
        made = schedule(graph, "ios", model, bound_tolerance=tolerance, **options)
        assert made.stats["below_bound"] == 0
        assert made == full
        stats = made.stats
        assert stats["stages_priced"] + stats["stages_spared"] == stats["stages"]
        assert stats["stages"] == full.stats["stages_priced"]
        assert len(model.priced) == stats["stages_priced"]
        spared += stats["stages_spared"]
    assert spared > 1000


def test_the_schedule_of_full_pricing_by_a_table():
    for seed in range(60):
        graph = some_graph(seed, 4, 14)
        us = LatencyTable(latencies(graph.num_ops, seed), streams=2)
        for options in ({}, {"streams": 2}, {"cores": 2}):
            full = schedule(graph, "ios", us, bounds=False, **options)
            assert schedule(graph, "ios", us, **options) == full
            exact = {"bound_tolerance": 0, "bound_slack_us": 0}
            assert schedule(graph, "ios", us, **exact, **options) == full


def test_cores_spare_more():
    graph = randwire(20, 3)
    us = LatencyTable(latencies(20, 3), streams=2)
    loose = schedule(graph, "ios", us)
    tight = schedule(graph, "ios", us, cores=2)
    assert tight == loose
    assert tight.stats["stages_priced"] < loose.stats["stages_priced"]


def test_most_of_a_randwire_block_is_spared():
    graph = randwire(24, 22)
    stats = schedule(graph, "ios", LatencyTable(latencies(24, 22))).stats
    assert stats["stages_priced"] * 3 < stats["stages"]


def test_no_stage_is_priced_twice():
    graph = layered(16, 3)
    model = Contended(latencies(16, 3), 3)
    schedule(graph, "ios", model)
    assert len(model.priced) == len(set(model.priced))


def groups_of(graph, ops):
    """The weakly connected components of a set of operators, each in topological order."""
    order = graph.topological_order()
    left = set(ops)
    groups = []
    while left:
        grown = {min(left)}
        while True:
            touched = {v for u in grown for v in (*graph.predecessors(u), *graph.successors(u))}
            if touched & left <= grown:
                break
            grown |= touched & left
        left -= grown
        groups.append(tuple(op for op in order if op in grown))
    return groups


def cheapest(graph, model, max_group_ops):
    """The least latency of all sequences of stages, found by trying all of them."""

    @cache
    def price(ending):
        groups = groups_of(graph, ending)
        return model.stage(groups) if max(map(len, groups)) <= max_group_ops else math.inf

    return cheapest_stages(graph, price)


@pytest.mark.parametrize(("fastest", "bounds"), [(0.0, False), (1.0, True)])
def test_optimal_over_all_staged_schedules(fastest, bounds):
    tested = 0
    for seed in range(60):
        graph = sparse(4 + seed % 6, seed, degree=1.2)
        if len(graph.blocks()) > 1:
            continue
        us = latencies(graph.num_ops, seed)
        for r in (3, 9):
            model = Contended(us, seed, fastest=fastest)
            made = schedule(graph, "ios", model, max_group_ops=r, max_groups=0, bounds=bounds)
            assert made.makespan == pytest.approx(cheapest(graph, model, r), rel=1e-12)
        tested += 1
    assert tested > 20


def test_a_price_below_its_bound_is_reported(caplog):
    caplog.set_level("INFO", logger="tvm_interop")
    graph = randwire(12, 1)
    us = latencies(12, 1)
    # Every stage of several operators takes half of its bound.
    model = Contended(us, 1, fastest=0.5, slowest=0.5)
    made = schedule(graph, "ios", model)
    assert "were faster than their lower bounds" in caplog.text
    assert "lowered to 48%" in caplog.text
    assert made.stats["below_bound"] > 0
    assert made.stats["bound_scale"] == pytest.approx(0.95 / 2)
    full = schedule(graph, "ios", Contended(us, 1, 0.5, 0.5), bounds=False)
    assert full.stats["below_bound"] == 0
    # After `ios` has lowered the bounds, no stage is faster than its bound. So the schedule is the
    # same as without bounds.
    assert made == full


def test_prices_that_vanish_leave_nothing_to_spare(caplog):
    caplog.set_level("INFO", logger="tvm_interop")
    graph = randwire(10, 2)
    us = latencies(10, 2)
    made = schedule(graph, "ios", Contended(us, 2, 0.0, 0.0))
    assert "lowered to 0%" in caplog.text
    assert made.stats["stages_spared"] == 0
    assert made == schedule(graph, "ios", Contended(us, 2, 0.0, 0.0), bounds=False)


def test_a_price_within_the_tolerance_is_none(caplog):
    caplog.set_level("INFO", logger="tvm_interop")
    graph = randwire(10, 2)
    us = [1000 * u for u in latencies(10, 2)]
    model = Contended(us, 2, fastest=0.96, slowest=0.97)
    assert schedule(graph, "ios", model).stats["below_bound"] == 0
    assert not caplog.text
    schedule(graph, "ios", model, bound_tolerance=0.01)
    assert "lowered to 9" in caplog.text


def test_a_price_within_the_slack_is_none(caplog):
    """A stage does not count as faster than its bound if it is half a microsecond faster.

    Half a microsecond is within the noise of a clock, even if the stage is short.
    """
    caplog.set_level("INFO", logger="tvm_interop")
    graph = randwire(10, 2)

    class Early(Contended):
        def stage(self, groups):
            return super().stage(groups) - (0.5 if sum(map(len, groups)) > 1 else 0)

    us = [u / 8 for u in latencies(10, 2)]
    options = {"bound_tolerance": 0.0}
    made = schedule(graph, "ios", Early(us, 2, 1.0, 1.0), **options)
    assert made.stats["below_bound"] == 0
    assert not caplog.text
    assert made == schedule(graph, "ios", Early(us, 2, 1.0, 1.0), bounds=False)
    tight = schedule(graph, "ios", Early(us, 2, 1.0, 1.0), bound_slack_us=0.4, **options)
    assert tight.stats["below_bound"] > 0
    assert caplog.text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cores": 0}, "`cores` is 0"),
        ({"bound_tolerance": 1}, "`bound_tolerance` is 1"),
        ({"bound_tolerance": -0.1}, "`bound_tolerance` is -0.1"),
        ({"bound_slack_us": -1}, "`bound_slack_us` is -1"),
    ],
)
def test_bad_options_are_named(options, says):
    with pytest.raises(ScheduleError, match=says):
        schedule(OpGraph.from_edges(2, []), "ios", LatencyTable([1, 1]), **options)


def test_bad_prices_are_named():
    class Broken(LatencyTable):
        def stage(self, groups):
            return math.nan if len(groups) > 1 else 1.0

    with pytest.raises(LatencyError, match="stage of `op0`, `op1` takes nan"):
        schedule(OpGraph.from_edges(2, []), "ios", Broken([1, 1]))
