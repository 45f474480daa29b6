"""Compares Nimble with all assignments to streams that keep the parallelism of the graph."""

from itertools import pairwise

import pytest

from tests.graphs import latencies, layered, randwire, sparse
from tests.stream_programs import check_sync
from tvm_interop.errors import ScheduleError
from tvm_interop.latency import LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.program.planning import sync_plan
from tvm_interop.scheduling import schedule


def reduced_edges(graph):
    ops = range(graph.num_ops)
    return {
        (u, v)
        for u, v in graph.edges
        if not any(graph.reaches(u, w) and graph.reaches(w, v) for w in ops)
    }


def fewest_waits_and_streams(graph):
    """Find the least number of waits, and the least number of streams with so few waits.

    All assignments of operators to streams are tried in which a path of the graph connects any two
    operators of a stream. An edge of the transitive reduction then needs a wait, unless its ends
    are neighbours on a stream.
    """
    edges = reduced_edges(graph)
    best = (len(edges) + 1, 0)

    def deal(rest, streams, spared):
        nonlocal best
        if not rest:
            best = min(best, (len(edges) - spared, len(streams)))
            return
        op = rest[0]
        for i, last in enumerate(streams):
            if graph.reaches(last, op):
                deal(
                    rest[1:], (*streams[:i], op, *streams[i + 1 :]), spared + ((last, op) in edges)
                )
        deal(rest[1:], (*streams, op), spared)

    deal(graph.topological_order(), (), 0)
    return best


def test_no_assignment_is_better():
    wide = 0
    for seed in range(300):
        graph = sparse(2 + seed % 7, seed, degree=0.5 + seed % 4)
        made = schedule(graph, "nimble")
        waits, streams = fewest_waits_and_streams(graph)
        assert (made.stats["waits"], made.stats["streams"]) == (waits, streams)
        assert made.num_streams == streams == graph.width
        wide += graph.width > 2
    assert wide > 50


@pytest.mark.parametrize("seed", range(12))
def test_the_streams_order_nothing_that_was_independent(seed):
    graph = (layered(80, seed), sparse(60, seed), randwire(40, seed))[seed % 3]
    made = schedule(graph, "nimble")
    for ops in made.streams:
        assert all(graph.reaches(u, v) for u, v in pairwise(ops))
    edges = reduced_edges(graph)
    waits = sync_plan(graph, made.streams)
    assert {(u, v) for v, sources in enumerate(waits) for u in sources} <= edges
    stats = made.stats
    assert stats["reduced_edges"] == len(edges)
    assert stats["waits"] == sum(map(len, waits)) == len(edges) - stats["matching"]
    assert stats["chains"] == graph.num_ops - stats["matching"]


def test_waits_come_before_streams():
    # With a maximum matching of the transitive closure, the number of streams would be the width of
    # the graph. But there would be more waits than with `nimble`.
    for seed in range(40):
        graph = layered(150, seed, layer=8)
        made = schedule(graph, "nimble")
        assert graph.width <= made.num_streams <= made.stats["chains"]


def test_an_edge_twice_and_a_shortcut_cost_nothing():
    graph = OpGraph.from_edges(3, [(0, 1), (0, 1), (1, 2), (0, 2)])
    made = schedule(graph, "nimble")
    assert made.streams == ((0, 1, 2),)
    assert (made.stats["reduced_edges"], made.stats["waits"]) == (2, 0)


def test_chains_share_a_stream_where_they_follow_each_other():
    # Two diamonds follow each other. The graph has three chains: one through both diamonds, and one
    # beside it in each diamond. The two short chains can share the second stream.
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6)]
    made = schedule(OpGraph.from_edges(7, edges), "nimble")
    assert (made.stats["chains"], made.stats["waits"]) == (3, 4)
    assert sorted(map(len, made.streams)) == [2, 5]


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_folded_onto_fewer_streams(streams):
    for seed in range(20):
        graph = layered(50, seed)
        us = LatencyTable(latencies(50, seed))
        made = schedule(graph, "nimble", us, streams=streams)
        assert made.num_streams == streams
        waits = sync_plan(graph, made.streams)
        check_sync(graph, made.streams, waits)
        assert made.stats["waits"] == sum(map(len, waits))
    assert schedule(graph, "nimble", streams=streams).num_streams == streams


def test_folding_puts_the_longest_stream_on_the_emptiest():
    graph = OpGraph.from_edges(4, [])
    made = schedule(graph, "nimble", LatencyTable([3, 3, 4, 5]), streams=2)
    assert made.streams == ((1, 3), (0, 2))
    assert made.makespan == 8


def test_more_streams_than_found_stay_unused():
    graph = layered(30, 4)
    assert schedule(graph, "nimble", streams=30) == schedule(graph, "nimble")


def test_bad_streams_are_named():
    with pytest.raises(ScheduleError, match="`streams` is 0"):
        schedule(layered(5, 1), "nimble", streams=0)


def test_nothing_to_schedule():
    assert schedule(OpGraph.from_edges(0, []), "nimble").streams == ()
