"""Tests IOS on blocks that are too large for an exact search."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.graphs import latencies, layered, randwire, sparse
from tvm_interop.latency import LatencyModel, LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import Schedule, budget, schedule
from tvm_interop.scheduling.budget import Budget, BudgetedLatency
from tvm_interop.scheduling.ios_blocks import Allowance, LargeBlock, Limits
from tvm_interop.scheduling.ios_pricing import Bounds, StagePrices

FEW = 300
"""A number of transitions that is too small for any graph of these tests."""


class Shared(LatencyModel):
    """A latency model in which groups slow each other down.

    The slowdown differs from stage to stage.
    """

    def __init__(self, us, costly=False):
        self.us = us
        self.is_costly = costly
        self.asked = set()

    def op(self, op):
        return self.us[op]

    def stage(self, groups):
        key = tuple(sorted(tuple(group) for group in groups))
        self.asked.add(frozenset(op for group in key for op in group))
        longest = max(sum(self.us[op] for op in group) for group in groups)
        slower = random.Random(f"{key}").uniform(0.05, 0.5)
        return longest * (1 + slower * (len(groups) - 1))


def towers(count, height):
    """Independent chains, numbered one after the other."""
    ends = range(count * height)
    return OpGraph.from_edges(
        count * height, [(i, i + 1) for i in ends if (i + 1) % height and i + 1 < count * height]
    )


def some_graph(seed):
    make = (
        lambda: layered(60, seed, layer=9),
        lambda: sparse(40, seed, degree=1.5),
        lambda: towers(5, 9),
        lambda: randwire(40, seed),
    )
    return make[seed % 4]()


def stages_of(made: Schedule) -> list[frozenset[int]]:
    return [frozenset(op for group in stage.groups for op in group) for stage in made.stages]


@pytest.mark.parametrize("make_model", [LatencyTable, Shared])
def test_never_dearer_than_greedy(make_model):
    left, better = 0, 0
    for seed in range(16):
        graph = some_graph(seed)
        model = make_model(latencies(graph.num_ops, seed))
        options = {
            "max_transitions": FEW * (1 + seed % 5),
            "endings": ("complete", "paper")[seed % 2],
            "streams": (None, 3)[seed // 2 % 2],
        }
        greedy = schedule(graph, "greedy", model, max_groups=8, streams=options["streams"])
        made = schedule(graph, "ios", model, **options)
        left += made.stats["blocks_left"]
        assert made.makespan <= greedy.makespan * (1 + 1e-9)
        assert made.makespan == pytest.approx(made.simulate(graph, model))
        assert made == schedule(graph, "ios", model, **options)
        better += made.makespan < 0.98 * greedy.makespan
    assert left >= 12
    assert better >= 12


@pytest.mark.parametrize(
    ("r", "s", "endings"), [(3, 8, "complete"), (2, 3, "paper"), (0, 0, "complete")]
)
def test_stages_keep_to_the_limits(r, s, endings):
    for seed in range(4):
        graph = some_graph(seed)
        us = LatencyTable(latencies(graph.num_ops, seed))
        made = schedule(
            graph, "ios", us, max_group_ops=r, max_groups=s, endings=endings, max_transitions=FEW
        )
        assert made.stats["blocks_left"]
        for stage in made.stages:
            assert len(stage.groups) <= (s or graph.num_ops)
            for group in stage.groups:
                assert len(group) <= (r or graph.num_ops)
                roots = [op for op in group if not {*graph.predecessors(op)} & {*group}]
                assert endings == "complete" or len(roots) == 1


def test_the_lower_bound_is_one():
    for seed in range(12):
        graph = some_graph(seed) if seed % 2 else sparse(12, seed, degree=1.5)
        us = LatencyTable(latencies(graph.num_ops, seed))
        some = schedule(graph, "ios", us, max_transitions=FEW)
        more = schedule(graph, "ios", us, max_transitions=200_000)
        assert some.stats["lower_bound_us"] <= more.makespan * (1 + 1e-9)
        assert more.makespan <= some.makespan * (1 + 1e-9)
        assert some.stats["optimal"] == (some.stats["blocks_left"] == 0)
        if more.stats["optimal"]:
            assert more.stats["lower_bound_us"] == more.makespan


def test_chains_side_by_side_however_they_are_numbered():
    """The graph has two independent chains, of operators 0 to 59 and 60 to 119. A search that cut
    the graph by operator number would run one chain after the other, which takes twice as long."""
    graph = towers(2, 60)
    us = LatencyTable([10.0] * 120)
    assert schedule(graph, "ios", us, max_transitions=2000).makespan == 600
    cut = schedule(graph, "ios", us, max_transitions=2000, beam=False)
    assert cut.stats["parts_cut"] > 0
    assert cut.makespan <= 700


def test_windows_make_beams_better(monkeypatch):
    graph = layered(80, 5, layer=6)
    model = Shared(latencies(80, 5))
    both = schedule(graph, "ios", model, max_transitions=60_000, max_group_ops=2)
    monkeypatch.setattr(LargeBlock, "search_windows", lambda *_: None)
    beams = schedule(graph, "ios", model, max_transitions=60_000, max_group_ops=2)
    assert both.stats["blocks_left"]
    assert both.makespan < beams.makespan


def test_windows_grow_until_they_fit_or_nothing_is_left():
    """The search improves windows of neighbouring stages. The stages of this graph are so wide that
    the first windows hold only one stage, so the search must make the windows larger."""
    graph = layered(60, 3, layer=12)
    us = LatencyTable(latencies(60, 3))
    made = schedule(graph, "ios", us, max_transitions=400_000)
    assert made.stats["blocks_left"] == 1

    def windows(block, transitions):
        block.search_windows(Allowance(transitions, None))
        return block.transitions

    limits = Limits(3, 8, single_root=False)
    prices = StagePrices(graph, us, None, Bounds(None, 0.05, 1.0), merges=False)
    block = LargeBlock(graph, graph.topological_order(), prices, limits)
    before_us = block.cost_us
    assert windows(block, 1_500_000) > 100_000
    assert block.cost_us < before_us


def test_shares_of_an_allowance_are_spent_once():
    whole = Allowance(100, None)
    half = whole.share(0.5)
    half.spend(40)
    assert half.transitions_left == 10
    assert whole.transitions_left == 60
    assert whole.share(1).transitions_left == 60


def test_the_clock_of_a_budget_can_be_replaced(monkeypatch):
    """The whole search reads time from `budget.now_s`, in native code too."""
    ticks = iter(range(10**9))
    monkeypatch.setattr(budget, "now_s", lambda: next(ticks) * 0.01)
    graph = layered(80, 1, layer=10)
    us = LatencyTable(latencies(80, 1))
    first = schedule(graph, "ios", us, time_budget_s=1)
    ticks = iter(range(10**9))
    assert schedule(graph, "ios", us, time_budget_s=1) == first
    used = next(ticks)
    assert 50 <= used < 200
    assert first.stats["blocks_left"]


def test_a_costly_model_is_asked_for_few_stages():
    graph = layered(60, 1, layer=9)
    us = latencies(60, 1)
    cheap, costly = Shared(us), Shared(us, costly=True)
    options = {"max_transitions": 20_000, "streams": 3}
    schedule(graph, "ios", cheap, **options)
    made = schedule(graph, "ios", costly, **options)
    assert made.stats["blocks_left"] == 1
    assert made.stats["stages_priced"] <= len(costly.asked) + 60
    assert 2 * len(costly.asked) < len(cheap.asked)
    assert made.makespan <= schedule(graph, "greedy", costly, max_groups=8, streams=3).makespan


@pytest.mark.parametrize("transitions", [FEW, 1_000_000])
@pytest.mark.parametrize("costly", [False, True])
def test_a_stage_that_nobody_priced_is_never_chosen(monkeypatch, transitions, costly):
    """With any budget, the latency model was asked for each chosen stage of several operators."""
    concurrent = 0
    for asks in (0, 1, 2, 5, 20, 100):
        for seed in range(3):
            graph = layered(24, seed, layer=5)
            us = latencies(24, seed)
            model = Shared(us, costly)
            calls = iter(range(asks))

            class Counted(Budget):
                def left_s(self, calls=calls):
                    return 0.0 if next(calls, None) is None else 1.0

            monkeypatch.setattr(budget, "_CHUNK", 4)
            limited = BudgetedLatency(model, np.array(us), Counted(1))
            made = schedule(graph, "ios", limited, max_transitions=transitions)
            several = [ops for ops in stages_of(made) if len(ops) > 1]
            assert set(several) <= model.asked
            assert made.makespan <= sum(us) * (1 + 1e-9)
            concurrent += len(several)
    assert concurrent > 0


def test_no_time_is_enough_for_a_schedule():
    graph = layered(60, 2, layer=9)
    us = LatencyTable(latencies(60, 2))
    made = schedule(graph, "ios", us, time_budget_s=0)
    assert not made.stats["optimal"]
    assert made.makespan <= schedule(graph, "greedy", us, max_groups=8).makespan
