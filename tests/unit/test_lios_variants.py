"""Tests the ablations of LIOS, and compares `lios+` with a simple implementation."""

from itertools import product

import pytest

from tests.graphs import latencies, layered
from tvm_interop.errors import ScheduleError
from tvm_interop.latency import LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import schedule

RANDOM = ("lios-rand1", "lios-rand2", "lios-rand")
INDEPENDENT = OpGraph.from_edges(8, [])
RAND1_OPS = [6, 5, 2, 3, 0, 7, 1, 4]
RAND2_STREAMS = ((6,), (0, 1, 3, 7), (2, 4, 5))
RAND_STREAMS = ((5,), (6, 3, 1, 0, 7), (2, 4))


@pytest.mark.parametrize("name", RANDOM)
def test_a_seed_is_a_schedule(name):
    graph = layered(40, 1)
    us = LatencyTable(latencies(40, 1))
    made = [schedule(graph, name, us, streams=3, seed=seed) for seed in (7, 7, 8)]
    assert made[0] == made[1] != made[2]
    assert made[0].simulate(graph, us) == made[0].makespan


def test_the_draws_are_the_same_everywhere():
    # `std::mt19937_64` and the numbers drawn from it are the same on every platform.
    us = LatencyTable([8, 7, 6, 5, 4, 3, 2, 1])
    made = {name: schedule(INDEPENDENT, name, us, streams=3, seed=5) for name in RANDOM}
    assert [row[0] for row in made["lios-rand1"].timeline] == RAND1_OPS
    assert [row[0] for row in made["lios-rand2"].timeline] == list(range(8))
    assert made["lios-rand2"].streams == RAND2_STREAMS
    assert made["lios-rand"].streams == RAND_STREAMS


def test_each_ablation_keeps_the_other_heuristic():
    us = LatencyTable([8, 7, 6, 5, 4, 3, 2, 1])
    orders, shares = set(), set()
    for seed in range(30):
        rand1 = schedule(INDEPENDENT, "lios-rand1", us, streams=2, seed=seed)
        free = [0.0, 0.0]
        for _, stream, start, finish in rand1.timeline:
            assert (stream, start) == (free.index(min(free)), min(free))
            free[stream] = finish
        orders.add(tuple(row[0] for row in rand1.timeline))
        rand2 = schedule(INDEPENDENT, "lios-rand2", us, streams=2, seed=seed)
        assert [row[0] for row in rand2.timeline] == list(range(8))
        shares.add(rand2.streams)
    assert len(orders) == 30
    assert len(shares) > 20


def test_draws_are_even():
    us = LatencyTable([1.0] * 8)
    firsts = [0] * 8
    for seed in range(800):
        firsts[schedule(INDEPENDENT, "lios-rand", us, seed=seed).timeline[0][0]] += 1
    assert min(firsts) > 60
    assert max(firsts) < 140


def test_lios_plus_is_what_it_says():
    for seed, streams, wait_us in product(range(20), (1, 2, 5), (0, 3, 20)):
        graph = layered(40, seed)
        us = latencies(40, seed)
        path = list(us)
        for op in reversed(graph.topological_order()):
            path[op] += max((path[v] for v in graph.successors(op)), default=0)
        waiting = [op for op in range(40) if not graph.predecessors(op)]
        done: dict[int, float] = {}
        on: dict[int, int] = {}
        free = [0.0] * streams
        rows = []
        while waiting:
            op = max(waiting, key=lambda v: path[v])  # `max` takes the first in a tie.
            ready = max((done[u] for u in graph.predecessors(op)), default=0.0)
            sources = {on[u] for u in graph.predecessors(op)}
            start = [max(f, ready) + wait_us * len(sources - {s}) for s, f in enumerate(free)]
            stream = start.index(min(start))
            rows.append((op, stream, start[stream], start[stream] + us[op]))
            on[op], free[stream], done[op] = stream, rows[-1][3], rows[-1][3]
            waiting.remove(op)
            waiting += [
                v for v in graph.successors(op) if all(u in done for u in graph.predecessors(v))
            ]
        used = sorted(set(on.values()))
        rows = [(op, used.index(stream), start, end) for op, stream, start, end in rows]
        made = schedule(graph, "lios+", LatencyTable(us), streams=streams, wait_us=wait_us)
        assert list(made.timeline) == rows


def test_dear_waits_keep_operators_together():
    graph = OpGraph.from_edges(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    us = LatencyTable([1, 2, 2, 1])
    assert schedule(graph, "lios+", us).num_streams == 2
    assert schedule(graph, "lios+", us, wait_us=10).streams == ((0, 1, 2, 3),)


def test_the_longest_path_comes_before_the_longest_operator():
    # Operator 0 is long, but no operator reads it. Operator 1 starts a chain.
    graph = OpGraph.from_edges(4, [(1, 2), (2, 3)])
    us = LatencyTable([4, 2, 2, 2])
    assert schedule(graph, "lios", us, streams=1).streams == ((0, 1, 2, 3),)
    assert schedule(graph, "lios+", us, streams=1).streams == ((1, 0, 2, 3),)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("lios-rand", {"seed": -1}, "`seed` is -1"),
        ("lios-rand1", {"seed": 0.5}, "`seed` is 0.5"),
        ("lios-rand2", {"streams": 0}, "`streams` is 0"),
        ("lios+", {"wait_us": -1}, "`wait_us` is -1"),
        ("lios+", {"wait_us": float("nan")}, "`wait_us` is nan"),
        ("lios+", {"wait_us": "1"}, "`wait_us` is '1'"),
    ],
)
def test_bad_options_are_named(name, options, says):
    with pytest.raises(ScheduleError, match=says):
        schedule(INDEPENDENT, name, LatencyTable([1] * 8), **options)


@pytest.mark.parametrize("name", [*RANDOM, "lios+"])
def test_latency_is_required(name):
    with pytest.raises(ScheduleError, match="needs a latency model"):
        schedule(INDEPENDENT, name)
