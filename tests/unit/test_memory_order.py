"""Tests the order of sequential execution that keeps few bytes in use at once."""

import random

import pytest

from tests.graphs import layered, sparse
from tests.nets import Net
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.errors import PlanError
from tvm_interop.program.graph import OpGraph
from tvm_interop.program.planning import Buffer, memory_order
from tvm_interop.scheduling import schedule


def peak_bytes(order, buffers):
    """The largest number of bytes in use at once, counted operator by operator."""
    place = {op: i for i, op in enumerate(order)}
    spans = [
        (
            min(place[op] for op in b.producers),
            max(place[op] for op in (*b.producers, *b.users)),
            b.nbytes,
        )
        for b in buffers
    ]
    return max(
        (
            sum(nbytes for first, last, nbytes in spans if first <= i <= last)
            for i in range(len(order))
        ),
        default=0,
    )


def random_buffers(graph, seed):
    rng = random.Random(seed)
    return [
        Buffer(rng.choice([0, 1, 64, 1000, 4096]), (op,), graph.successors(op))
        for op in range(graph.num_ops)
        for _ in range(rng.choice([1, 1, 2]))
    ]


def test_one_branch_after_the_other():
    """Each branch has a large tensor. Breadth-first order would keep both tensors at once."""
    names = ["in", "a1", "b1", "a2", "b2", "out"]
    edges = [("in", "a1"), ("in", "b1"), ("a1", "a2"), ("b1", "b2"), ("a2", "out"), ("b2", "out")]
    graph = OpGraph.from_edges(names, edges)
    sizes = [1, 100, 100, 1, 1, 1]
    buffers = [Buffer(sizes[op], (op,), graph.successors(op)) for op in range(6)]
    made = schedule(graph, "sequential", order="memory", buffers=buffers)
    assert [names[op] for op in made.streams[0]] == ["in", "a1", "a2", "b1", "b2", "out"]
    assert made.stats["peak_bytes"] == 102
    assert made.stats["topological_peak_bytes"] == 201


def test_never_more_than_in_topological_order():
    saved = 0
    for seed in range(300):
        graph = layered(30, seed) if seed % 2 else sparse(seed % 40, seed)
        buffers = random_buffers(graph, seed)
        found = memory_order(graph, buffers)
        schedule(graph, "sequential", order="memory", buffers=buffers).validate(graph)
        assert found.peak_bytes == peak_bytes(found.order, buffers)
        assert found.topological_peak_bytes == peak_bytes(graph.topological_order(), buffers)
        assert found.peak_bytes <= found.topological_peak_bytes
        saved += found.peak_bytes < found.topological_peak_bytes
    assert saved > 150


def test_a_compilation_knows_its_tensors():
    """Two branches widen and narrow again. The model lists them breadth first."""
    net = Net()
    x = net.input("x", [1, 2, 8, 8])
    wide = [net.conv(x, f"wide{i}", (2, 16), 3) for i in range(2)]
    narrow = [net.conv(w, f"narrow{i}", (16, 2), 3) for i, w in enumerate(wide)]
    net.op("Concat", narrow, "y", axis=1)
    compilation = Compilation(net.model("y"), CompileOptions(latency_db=":memory:"))
    plain = compilation.plan(compilation.schedule("sequential"))
    made = compilation.schedule("sequential", order="memory")
    assert made.stats["peak_bytes"] < made.stats["topological_peak_bytes"]
    assert compilation.plan(made).arena_bytes < plain.arena_bytes


def test_malformed_buffers_are_refused():
    with pytest.raises(PlanError):
        memory_order(OpGraph.from_edges(1, []), [Buffer(-1, (0,))])
    with pytest.raises(PlanError):
        memory_order(OpGraph.from_edges(1, []), [Buffer(1, (0,), (3,))])
