"""Tests the simulator with and without contention."""

import math
import random
from dataclasses import replace

import pytest

from tests.graphs import latencies, layered
from tvm_interop.errors import GraphError, ScheduleError
from tvm_interop.latency import LatencyTable
from tvm_interop.models.synthetic import layered_workload
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import Schedule, Stage, schedule
from tvm_interop.scheduling.simulation import Contention, simulate

PAIR = OpGraph.from_edges(["a", "b"], [])
SIDE_BY_SIDE = Schedule("mine", PAIR.names, streams=((0,), (1,)))


def test_without_contention_it_is_the_makespan():
    for seed in range(30):
        graph = layered(40, seed)
        us = LatencyTable(latencies(40, seed))
        for name in ("sequential", "lios", "nimble", "opara"):
            made = schedule(graph, name, us)
            assert simulate(graph, made, us).makespan_us == made.simulate(graph, us)
        staged = schedule(graph, "ios", us, max_transitions=2000)
        strict = replace(
            staged, stages=tuple(replace(s, barrier=True) for s in staged.stages), streams=()
        )
        assert simulate(graph, strict, us).makespan_us == staged.makespan
        # Without barriers, a stage may begin before the stage before it has ended.
        assert simulate(graph, staged, us).makespan_us <= staged.makespan


def test_the_timeline_is_a_run():
    graph = layered(40, 1)
    us = LatencyTable(latencies(40, 1))
    made = schedule(graph, "lios", us, streams=3)
    run = simulate(graph, made, us)
    rows = {op: (stream, start, end) for op, stream, start, end in run.timeline}
    assert sorted(rows) == list(range(40))
    assert all(rows[u][2] <= rows[v][1] for u, v in graph.edges)
    for stream, ops in enumerate(made.streams):
        assert all(rows[op][0] == stream for op in ops)
    assert [row[2] for row in run.timeline] == sorted(row[2] for row in run.timeline)
    assert max(row[3] for row in run.timeline) == run.makespan_us


@pytest.mark.parametrize(
    ("contention", "ends_a", "ends_b"),
    [
        (Contention(), 4, 6),
        (Contention(cores=2), 4, 6),
        # Two operators share one core. Both run at half speed until a has done its 4 us of work.
        # Then b has 2 us left.
        (Contention(cores=1), 8, 10),
        # a needs two of three cores, and b needs two. While both run, their speed is 3/4.
        (Contention(cores=3, op_cores=[2, 2]), 4 / 0.75, 6 + 4 / 0.75 - 4),
        # a waits for memory for half of its time, and b for all of its time. So together they need
        # 1.5 times the bandwidth. a is slowed down by 1.25, and b by 1.5. a ends at 5, when b has
        # done 5 / 1.5.
        (Contention(bandwidth=1, memory_share=[0.5, 1]), 5, 5 + 6 - 5 / 1.5),
        # A compute-bound and a memory-bound operator share nothing.
        (Contention(cores=1, op_cores=[1, 0], bandwidth=1, memory_share=[0, 1]), 4, 6),
    ],
)
def test_two_operators_that_share(contention, ends_a, ends_b):
    run = simulate(PAIR, SIDE_BY_SIDE, LatencyTable([4, 6]), contention)
    ends = {op: end for op, _, _, end in run.timeline}
    assert (ends[0], ends[1]) == (pytest.approx(ends_a), pytest.approx(ends_b))


def test_one_core_takes_the_sum_whatever_the_schedule():
    for seed in range(20):
        graph = layered(40, seed)
        us = latencies(40, seed)
        made = schedule(graph, "nimble")
        took = simulate(graph, made, LatencyTable(us), Contention(cores=1)).makespan_us
        assert took == pytest.approx(sum(us))


def test_what_rounding_ends_early_has_ended():
    """When `op0` ends, rounding leaves only a tiny rest of `op1`.

    In this case, an earlier simulator lost `op1`, and never ran the operator after it, `op2`.
    """
    graph = OpGraph.from_edges(3, [(1, 2)])
    made = Schedule("mine", graph.names, streams=((0,), (1, 2)))
    us = LatencyTable([17.98230088495575, 17.638888888888886, 5.0])
    shared = Contention(bandwidth=1, memory_share=[0.75, 0.8, 0])
    run = simulate(graph, made, us, shared)
    assert run.makespan_us == pytest.approx(30.4)
    assert all(end > start for _, _, start, end in run.timeline)


def test_under_contention_every_operator_runs_its_time():
    rng = random.Random(0)
    for seed in range(1500):
        graph = layered(rng.randint(1, 8), seed)
        times = [rng.choice([1, 2.5, 17.638888888888886, rng.random()]) for _ in graph.names]
        made = schedule(graph, "lios", LatencyTable(times), streams=3)
        shares = [rng.choice([0, 0.25, 0.75, 0.8, 1]) for _ in graph.names]
        shared = Contention(rng.choice([1, 2, math.inf]), rng.choice([0.9, 1, 3]), None, shares)
        run = simulate(graph, made, LatencyTable(times), shared)
        ends = {op: end for op, _, _, end in run.timeline}
        for op, _, start, end in run.timeline:
            assert end - start >= times[op] * (1 - 1e-9)
            assert all(ends[source] <= start for source in graph.predecessors(op))
        assert len(ends) == graph.num_ops


@pytest.mark.parametrize("small", [{"bandwidth": 1e-320}, {"cores": 5e-324}])
def test_a_slow_down_that_no_number_can_hold_is_refused(small):
    """The device has almost no bandwidth, or almost no core. The simulator once ran forever on such
    devices."""
    shared = Contention(**small, memory_share=[0, 1])
    with pytest.raises(ScheduleError, match="longer than a number can hold"):
        simulate(PAIR, SIDE_BY_SIDE, LatencyTable([4, 6]), shared)


def test_more_of_the_device_is_never_slower_for_independent_operators():
    graph = OpGraph.from_edges(12, [])
    us = LatencyTable(latencies(12, 1))
    made = schedule(graph, "lios", us, streams=6)
    took = [simulate(graph, made, us, Contention(cores=c)).makespan_us for c in (1, 2, 3, 6, 7)]
    assert took == sorted(took, reverse=True)
    assert took[0] > took[-2] == took[-1]


def test_waits_cost_their_stream():
    graph = OpGraph.from_edges(3, [(0, 2), (1, 2)])
    made = Schedule("mine", graph.names, streams=((0, 2), (1,)))
    us = LatencyTable([4, 6, 1])
    assert simulate(graph, made, us, Contention(wait_us=3)).makespan_us == 6 + 3 + 1
    apart = Schedule("mine", graph.names, streams=((0,), (1,), (2,)))
    assert simulate(graph, apart, us, Contention(wait_us=3)).makespan_us == 6 + 6 + 1


def test_operators_that_take_no_time_end():
    graph = OpGraph.from_edges(3, [(0, 1), (1, 2)])
    made = Schedule("mine", graph.names, streams=((0, 2), (1,)))
    assert simulate(graph, made, LatencyTable([0, 0, 0])).makespan_us == 0
    run = simulate(graph, made, LatencyTable([0, 0, 2]), Contention(wait_us=1))
    assert run.makespan_us == 4


def test_ids_are_the_graphs():
    graph = OpGraph.from_edges(["b", "a"], [("a", "b")])
    made = Schedule("mine", ("a", "b"), streams=((0, 1),))
    run = simulate(graph, made, LatencyTable([5, 1]))
    assert run.timeline == ((1, 0, 0, 1), (0, 0, 1, 6))


@pytest.mark.parametrize(
    ("contention", "says"),
    [
        ({"cores": 0}, "`cores` is 0"),
        ({"bandwidth": math.nan}, "`bandwidth` is nan"),
        ({"wait_us": -1}, "`wait_us` is -1"),
        ({"op_cores": [1]}, r"`op_cores` has shape \(1,\)"),
        ({"memory_share": [0, 2]}, "`memory_share` of operator `b` is 2"),
    ],
)
def test_bad_contention_is_named(contention, says):
    with pytest.raises(ScheduleError, match=says):
        simulate(PAIR, SIDE_BY_SIDE, LatencyTable([1, 1]), Contention(**contention))


def test_a_merged_stage_is_refused():
    made = Schedule("mine", PAIR.names, stages=(Stage(((0,), (1,)), (0, 1), "merge"),))
    with pytest.raises(ScheduleError, match="merged stage"):
        simulate(PAIR, made, LatencyTable([1, 1]))


def test_the_synthetic_workload_of_hios():
    graph, us = layered_workload()
    assert (graph.num_ops, graph.num_edges, len(us)) == (200, 400, 200)
    assert min(us) >= 100
    assert max(us) <= 4000
    assert len(set(graph.edges)) == 400
    depth = [0] * 200
    for op in graph.topological_order():
        depth[op] = max((depth[u] + 1 for u in graph.predecessors(op)), default=0)
    assert max(depth) == 13
    again, us_again = layered_workload()
    assert (again.edges, us_again) == (graph.edges, us)
    assert layered_workload(seed=1)[0].edges != graph.edges


def test_a_workload_that_cannot_be_is_refused():
    with pytest.raises(GraphError, match="2 operators cannot fill 3 layers"):
        layered_workload(2, 3)
    with pytest.raises(GraphError, match="do not fit"):
        layered_workload(4, 2, 100)
