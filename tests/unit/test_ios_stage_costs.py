"""Tests IOS with costs for stages and waits, and with stages that cross the borders of blocks."""

from __future__ import annotations

import math

import pytest

from tests.brute_force import cheapest_stages
from tests.graphs import latencies, sparse
from tvm_interop.errors import LatencyError
from tvm_interop.latency import LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import schedule


def test_what_a_table_adds():
    stages = [[[0]], [[0], [1]], [[0, 1], [2]]]
    table = LatencyTable([1, 2, 3], stage_us=5, wait_us=0.5)
    assert table.stages(stages).tolist() == [6, 8, 9]
    assert table.op(0) == 1
    # On a single stream, no operator has to wait.
    packed = LatencyTable([1, 2, 3], streams=1, stage_us=5, wait_us=0.5)
    assert packed.stages(stages).tolist() == [6, 8, 11]


@pytest.mark.parametrize("name", ["stage_us", "wait_us"])
@pytest.mark.parametrize("us", [-1, math.inf, math.nan, "1"])
def test_costs_of_no_use(name, us):
    with pytest.raises(LatencyError, match=f"`{name}` is"):
        LatencyTable([1, 2], **{name: us})


def groups_of(graph, ops):
    """The weakly connected components of some operators, each in topological order."""
    order = graph.topological_order()
    groups, left = [], set(ops)
    while left:
        group, grown = set(), {min(left)}
        while grown != group:
            group = grown
            touched = {v for u in group for v in (*graph.predecessors(u), *graph.successors(u))}
            grown = group | (touched & left)
        groups.append([op for op in order if op in group])
        left -= group
    return groups


def cheapest(graph, model, max_group_ops=3):
    """The least latency of all sequences of stages of the whole graph, with or without blocks."""

    def price(ending):
        groups = groups_of(graph, ending)
        return model.stage(groups) if max(map(len, groups)) <= max_group_ops else math.inf

    return cheapest_stages(graph, price)


def crosses(graph, stage):
    block_of = {op: b for b, ops in enumerate(graph.blocks()) for op in ops}
    return len({block_of[op] for group in stage.groups for op in group}) > 1


@pytest.mark.parametrize("max_transitions", [60, 8_000_000])
def test_stages_cross_the_borders_of_blocks_where_that_pays(max_transitions):
    several, crossing, cut = 0, 0, 0
    for seed in range(40):
        graph = sparse(4 + seed % 5, seed, degree=1.4)
        model = LatencyTable(
            latencies(graph.num_ops, seed), stage_us=3.0 * (seed % 3), wait_us=0.5 * (seed % 2)
        )
        made = schedule(graph, "ios", model, max_groups=0, max_transitions=max_transitions)
        least = cheapest(graph, model)
        assert made.makespan == pytest.approx(made.simulate(graph, model))
        assert made.stats["lower_bound_us"] <= least * (1 + 1e-9)
        if max_transitions > 1000:
            assert made.makespan == pytest.approx(least)
        several += len(graph.blocks()) > 1
        over = [stage for stage in made.stages if crosses(graph, stage)]
        assert all(len(stage.groups) == 1 for stage in over)
        assert not over or model.stage_us
        crossing += bool(over)
        cut += made.stats["blocks_left"] > 0
    assert several >= 10
    assert crossing >= 5
    assert (cut > 0) == (max_transitions < 1000)


def test_without_a_cost_borders_are_left_alone():
    """If a stage costs nothing, a chain takes as long in one stage as in several, so `ios` does not
    join stages across the borders of blocks."""
    chain = OpGraph.from_edges(4, [(0, 1), (1, 2), (2, 3)])
    free = schedule(chain, "ios", LatencyTable([1] * 4))
    assert free.stats["optimal"]
    assert len(free.stages) == 4
    dear = schedule(chain, "ios", LatencyTable([1] * 4, stage_us=10))
    assert [len(stage.groups[0]) for stage in dear.stages] in ([3, 1], [2, 2], [1, 3])
    assert dear.makespan == 24
    assert dear.stats["lower_bound_us"] <= 24
