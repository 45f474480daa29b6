"""Tests that plans of waits and memory are safe and have no needless waits.

Also tests that the checker of plans finds faults in damaged plans.
"""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.graphs import latencies, layered, sparse
from tests.stream_programs import check_memory, check_sync
from tvm_interop.errors import PlanError
from tvm_interop.latency import LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.program.planning import Buffer, memory_plan, sync_plan
from tvm_interop.scheduling import Schedule, schedule

OPTIONS = {
    "ios": {"max_group_ops": 2, "max_groups": 4, "max_transitions": 2000},
    "lios": {},
    "greedy": {},
    "sequential": {},
}


def random_graph(seed):
    """A random graph of up to 200 operators. Every tenth graph is large."""
    size = random.Random(seed).randint(1, 200 if seed % 10 == 0 else 40)
    return layered(size, seed) if seed % 2 else sparse(size, seed)


def buffers_of(graph, seed):
    rng = random.Random(seed)
    return [
        Buffer(rng.choice([0, 1, 64, 100, 1000, 4096]), (op,), graph.successors(op))
        for op in range(graph.num_ops)
    ]


def with_barriers(made, seed):
    rng = random.Random(seed)
    stages = tuple(replace(stage, barrier=rng.random() < 0.5) for stage in made.stages)
    return Schedule(made.scheduler, made.op_names, stages=stages)


@pytest.mark.parametrize("name", sorted(OPTIONS))
@pytest.mark.parametrize("hundred", range(10))
def test_whatever_is_scheduled_can_be_run_safely(name, hundred):
    for seed in range(100 * hundred, 100 * hundred + 100):
        graph = random_graph(seed)
        us = LatencyTable(latencies(graph.num_ops, seed))
        streams = {} if name == "sequential" or seed % 3 else {"streams": 1 + seed % 5}
        made = schedule(graph, name, us, **OPTIONS[name], **streams)
        made.validate(graph)
        if made.is_staged and seed % 4 == 0:
            made = with_barriers(made, seed)
        extra = made.ordering_edges()
        waits = sync_plan(graph, made.streams, extra)
        check_sync(graph, made.streams, waits, extra)
        buffers = buffers_of(graph, seed)
        plan = memory_plan(graph, made.streams, waits, buffers)
        check_memory(graph, made.streams, waits, buffers, plan)
        assert plan.arena_bytes <= sum(-(-buffer.nbytes // 64) * 64 for buffer in buffers)


def test_barriers_order_whole_stages():
    for seed in range(40):
        graph = random_graph(seed)
        made = with_barriers(schedule(graph, "greedy", max_groups=3), seed)
        waits = sync_plan(graph, made.streams, made.ordering_edges())
        before: list[int] = []
        for stage in made.stages:
            ops = [op for group in stage.groups for op in group]
            if stage.barrier:
                check_sync(graph, made.streams, waits, [(u, v) for u in before for v in ops])
            before += ops


def reduction(graph, streams):
    """The edges between streams that no other path replaces, found by a plain implementation."""
    stream_of = {op: s for s, ops in enumerate(streams) for op in ops}
    edges = set(graph.edges) | {pair for ops in streams for pair in pairwise(ops)}
    joined = OpGraph.from_edges(graph.num_ops, sorted(edges))
    return {
        (u, v)
        for u, v in edges
        if stream_of[u] != stream_of[v]
        and not any(w != v and joined.reaches(w, v) for w in joined.successors(u))
    }


@pytest.mark.parametrize("name", ["ios", "lios", "greedy"])
def test_there_are_no_more_waits_than_needed(name):
    seen = 0
    for seed in range(60):
        graph = random_graph(seed)
        us = LatencyTable(latencies(graph.num_ops, seed))
        made = schedule(graph, name, us, **OPTIONS[name], streams=2 + seed % 3)
        waits = sync_plan(graph, made.streams)
        planned = {(u, v) for v, sources in enumerate(waits) for u in sources}
        assert planned == reduction(graph, made.streams)
        seen += len(planned)
    assert seen > 500


def test_any_dropped_wait_is_caught():
    dropped = 0
    for seed in range(1, 60):
        graph = random_graph(seed)
        made = schedule(graph, "lios", LatencyTable(latencies(graph.num_ops, seed)), streams=3)
        waits = sync_plan(graph, made.streams)
        for op, sources in enumerate(waits):
            for source in sources:
                damaged = list(waits)
                damaged[op] = tuple(u for u in sources if u != source)
                with pytest.raises(PlanError) as caught:
                    check_sync(graph, made.streams, damaged)
                assert "nothing orders the two" in str(caught.value)
                dropped += 1
    assert dropped > 500


def test_the_message_names_both_operators():
    graph = OpGraph.from_edges(["conv", "relu"], [("conv", "relu")])
    check_sync(graph, [[0], [1]], [(), (0,)])
    with pytest.raises(PlanError, match="let `relu` wait for `conv`"):
        check_sync(graph, [[0], [1]], [(), ()])


def test_a_circle_of_waits_is_a_deadlock():
    graph = OpGraph.from_edges(["a", "b", "c", "d"], [("a", "d"), ("c", "b")])
    with pytest.raises(PlanError, match="deadlock: `b` -> `a` -> `d` -> `c` -> `b`"):
        check_sync(graph, [[1, 0], [3, 2]], [(), (2,), (), (0,)])
    with pytest.raises(PlanError, match="deadlock"):
        sync_plan(graph, [[1, 0], [3, 2]])


@pytest.mark.parametrize(
    ("streams", "says"),
    [
        ([[0], [2]], "`b` is on no stream"),
        ([[0, 1], [2, 0]], "`a` is on the streams twice"),
        ([[0, 1, 2, 3]], "names operator 3"),
    ],
)
def test_streams_that_are_none(streams, says):
    graph = OpGraph.from_edges(["a", "b", "c"], [])
    with pytest.raises(PlanError, match=says):
        sync_plan(graph, streams)


def test_waits_of_the_wrong_shape():
    graph = OpGraph.from_edges(2, [])
    with pytest.raises(PlanError, match="waits for 1 operators"):
        memory_plan(graph, [[0, 1]], [()], [])
    with pytest.raises(PlanError, match="a wait names operator 5"):
        memory_plan(graph, [[0, 1]], [(), (5,)], [])


def in_use_at_once(graph, streams, waits, buffers):
    """The pairs of buffers that may not share bytes, found by a plain implementation."""
    edges = [(u, v) for v, sources in enumerate(waits) for u in sources]
    edges += [pair for ops in streams for pair in pairwise(ops)]
    order = OpGraph.from_edges(graph.num_ops, edges)

    def done_before(first, second):
        touching = (*first.producers, *first.users)
        return all(order.reaches(op, p) for op in touching for p in second.producers)

    return [
        (i, j)
        for i, a in enumerate(buffers)
        for j, b in enumerate(buffers[:i])
        if a.nbytes and b.nbytes and not done_before(a, b) and not done_before(b, a)
    ]


def caught_when_moved(graph, streams, waits, buffers, plan):
    """Check that the checker notices if a buffer moves onto another buffer in use.

    Returns the number of pairs of buffers that were tried.
    """
    pairs = in_use_at_once(graph, streams, waits, buffers)
    for i, j in pairs:
        offsets = list(plan.offsets)
        offsets[i] = offsets[j]
        damaged = replace(plan, offsets=tuple(offsets), arena_bytes=10**9)
        with pytest.raises(PlanError, match="arena"):
            check_memory(graph, streams, waits, buffers, damaged)
    return len(pairs)


def test_a_buffer_moved_onto_one_in_use_is_caught():
    moved = shared = 0
    for seed in range(40):
        graph = layered(25, seed)
        made = schedule(graph, "lios", LatencyTable(latencies(25, seed)), streams=3)
        waits = sync_plan(graph, made.streams)
        buffers = buffers_of(graph, seed)
        plan = memory_plan(graph, made.streams, waits, buffers)
        shared += plan.arena_bytes < sum(buffer.nbytes for buffer in buffers)
        moved += caught_when_moved(graph, made.streams, waits, buffers, plan)
    assert moved > 1000
    assert shared > 30


def written_in_parts(graph, seed):
    """Random buffers with up to four producers. An operator may produce several buffers.

    The users of a buffer are up to three operators that come after all of its producers.
    """
    rng = random.Random(seed)
    buffers = []
    for _ in range(30):
        producers = tuple(sorted(rng.sample(range(graph.num_ops), rng.randint(1, 4))))
        after = [op for op in range(graph.num_ops) if all(graph.reaches(p, op) for p in producers)]
        if after:
            buffers.append(Buffer(rng.choice([64, 100, 1000]), producers, tuple(after[:3])))
    return buffers


def test_buffers_written_in_parts():
    """In a plan, two buffers that are in use at once share no bytes.

    The checker refuses a plan in which two such buffers share bytes.
    """
    moved = shared = 0
    for seed in range(40):
        graph = layered(25, seed)
        made = schedule(graph, "lios", LatencyTable(latencies(25, seed)), streams=3)
        waits = sync_plan(graph, made.streams)
        buffers = written_in_parts(graph, seed)
        plan = memory_plan(graph, made.streams, waits, buffers)
        check_memory(graph, made.streams, waits, buffers, plan)
        ends = [begin + buffer.nbytes for begin, buffer in zip(plan.offsets, buffers, strict=True)]
        for i, j in in_use_at_once(graph, made.streams, waits, buffers):
            assert ends[i] <= plan.offsets[j] or ends[j] <= plan.offsets[i]
        moved += caught_when_moved(graph, made.streams, waits, buffers, plan)
        shared += plan.arena_bytes < sum(-(-buffer.nbytes // 64) * 64 for buffer in buffers)
    assert moved > 500
    assert shared > 5
    with pytest.raises(PlanError, match="buffer 0 is written by no operator"):
        memory_plan(graph, made.streams, waits, [Buffer(64, ())])


def test_the_message_names_both_producers():
    graph = OpGraph.from_edges(["conv", "relu"], [("conv", "relu")])
    buffers = [Buffer(64, (0,), (1,)), Buffer(64, (1,))]
    plan = memory_plan(graph, [[0, 1]], [(), ()], buffers)
    assert plan.offsets == (0, 64)
    with pytest.raises(PlanError, match="`relu` writes bytes 0 to 64 of `arena` and also touches"):
        check_memory(graph, [[0, 1]], [(), ()], buffers, replace(plan, offsets=(0, 0)))


def test_alignment_and_empty_buffers():
    graph = OpGraph.from_edges(3, [])
    buffers = [Buffer(10, (0,)), Buffer(0, (1,)), Buffer(20, (2,))]
    plan = memory_plan(graph, [[0], [1], [2]], [()] * 3, buffers, alignment=256)
    assert plan.offsets == (256, 0, 0)
    assert plan.arena_bytes == 266
    assert memory_plan(graph, [[0, 1, 2]], [()] * 3, []).arena_bytes == 0
    with pytest.raises(PlanError, match="alignment is 0"):
        memory_plan(graph, [[0, 1, 2]], [()] * 3, buffers, alignment=0)
    with pytest.raises(PlanError, match="`op2`, has -1 bytes"):
        memory_plan(graph, [[0, 1, 2]], [()] * 3, [Buffer(-1, (2,))])
    with pytest.raises(PlanError, match="names operator 9"):
        memory_plan(graph, [[0, 1, 2]], [()] * 3, [Buffer(1, (2,), (9,))])
