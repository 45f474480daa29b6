"""Tests the local search by which `auto` refines schedules."""

import itertools

import numpy as np

from tests.graphs import Contended, latencies, layered, randwire, sparse
from tvm_interop.latency import LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import Schedule, Stage, budget
from tvm_interop.scheduling.budget import Budget
from tvm_interop.scheduling.local_search import refine_stages, refine_streams


def total(model, stages):
    return sum(model.stage(list(stage.by_stream().values())) for stage in stages)


def refined(graph, model, us, stages, streams=2):
    found, in_time = refine_stages(graph, model, stages, np.array(us, float), streams, Budget(60))
    assert in_time
    Schedule("refined", graph.names, stages=found).validate(graph)
    assert max(max(stage.streams) for stage in found) < streams
    return found


def one_by_one(graph):
    return tuple(Stage(((op,),), (0,)) for op in graph.topological_order())


def test_neighbouring_stages_are_joined():
    graph = OpGraph.from_edges(2, [])
    found = refined(graph, LatencyTable([3, 3]), [3, 3], one_by_one(graph))
    assert [stage.groups for stage in found] == [((0,), (1,))]


def test_a_stage_is_split():
    graph = OpGraph.from_edges(2, [])
    together = (Stage(((0,), (1,)), (0, 1)),)
    found = refined(graph, Contended([3, 3], 5.0), [3, 3], together)
    assert total(Contended([3, 3], 5.0), found) == 6


def test_an_operator_moves_between_streams():
    graph = OpGraph.from_edges(4, [])
    us = [1, 1, 1, 3]
    crowded = (Stage(((0, 1, 3), (2,)), (0, 1)),)
    found = refined(graph, LatencyTable(us), us, crowded)
    assert [sorted(map(sorted, stage.groups)) for stage in found] == [[[0, 1, 2], [3]]]


def test_an_operator_moves_between_stages():
    """The stages are a and b, then c and d. Both long operators, b and d, should share a stage."""
    graph = OpGraph.from_edges(["a", "b", "c", "d"], [("a", "c"), ("a", "d")])
    us = [1, 9, 1, 9]
    stages = (Stage(((0,), (1,)), (0, 1)), Stage(((2,), (3,)), (0, 1)))
    found = refined(graph, LatencyTable(us), us, stages)
    assert total(LatencyTable(us), found) == 11


def test_local_search_improves_bad_stages():
    gained = 0
    for seed in range(60):
        graph = (layered(16, seed), sparse(16, seed), randwire(16, seed))[seed % 3]
        us = latencies(16, seed)
        model = Contended(us, 0.1)
        bad = one_by_one(graph)
        found = refined(graph, model, us, bad, streams=3)
        assert total(model, found) <= total(model, bad)
        gained += total(model, found) < 0.9 * total(model, bad)
    assert gained > 40


def test_local_search_improves_bad_streams():
    gained = 0
    for seed in range(60):
        graph = (layered(16, seed), sparse(16, seed), randwire(16, seed))[seed % 3]
        us = latencies(16, seed)
        order = graph.topological_order()
        bad = Schedule("bad", graph.names, streams=[order[:8], order[8:]])
        streams = refine_streams(graph, bad.streams, np.array(us, float), 2, Budget(60))
        found = Schedule("refined", graph.names, streams=streams)
        before, after = (made.simulate(graph, LatencyTable(us)) for made in (bad, found))
        assert after <= before
        gained += after < before
    assert gained > 40


def test_wide_stages_keep_to_the_time(monkeypatch):
    """A stage of hundreds of operators has too many changes to look at all of them in time."""
    seconds = itertools.count()
    monkeypatch.setattr(budget, "now_s", lambda: next(seconds))
    graph = OpGraph.from_edges(200, [])
    us = np.where(np.arange(200) % 20 == 0, 100.0, 1.0)  # Stream 0 takes far longer than others.
    wide = (Stage(tuple((op,) for op in range(200)), tuple(op % 20 for op in range(200))),)
    found, in_time = refine_stages(graph, LatencyTable(us), wide, us, 20, Budget(1000))
    assert next(seconds) < 1100
    assert not in_time
    Schedule("refined", graph.names, stages=found).validate(graph)
    assert total(LatencyTable(us), found) < total(LatencyTable(us), wide)
