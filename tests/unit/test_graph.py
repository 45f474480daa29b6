"""Tests the operator graph in Python."""

import pytest

from tests.graphs import layered
from tvm_interop.errors import GraphError, TVMInteropError
from tvm_interop.program.graph import OpGraph

DIAMOND = OpGraph.from_edges(
    ["stem", "left", "right", "cat", "head"],
    [("stem", "left"), ("stem", "right"), ("left", "cat"), ("right", "cat"), ("cat", "head")],
)


def test_reads_names_and_ids_alike():
    by_id = OpGraph.from_edges(DIAMOND.names, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)])
    assert by_id.edges == DIAMOND.edges
    assert OpGraph.from_edges(2, [(1, 0)]).names == ("op0", "op1")


def test_answers_about_neighbours_and_paths():
    assert DIAMOND.successors(0) == (1, 2)
    assert DIAMOND.predecessors(3) == (1, 2)
    assert DIAMOND.reaches(0, 4)
    assert not DIAMOND.reaches(1, 2)
    assert not DIAMOND.reaches(0, 0)
    assert DIAMOND.width == 2
    assert DIAMOND.blocks() == ((0,), (1, 2, 3), (4,))


def test_keeps_ids_and_repeated_edges():
    graph = OpGraph.from_edges(3, [(2, 0), (2, 0), (0, 1)])
    assert graph.num_edges == 3
    assert graph.successors(2) == (0,)
    assert graph.topological_order() == (2, 0, 1)


def test_the_empty_graph():
    graph = OpGraph.from_edges(0, [])
    assert (graph.num_ops, graph.width, graph.blocks()) == (0, 0, ())


def test_blocks_partition_the_graph_in_order():
    for seed in range(30):
        graph = layered(60, seed)
        ops = [op for block in graph.blocks() for op in block]
        assert sorted(ops) == list(range(60))
        place = {op: i for i, op in enumerate(ops)}
        assert all(place[u] < place[v] for u, v in graph.edges)


@pytest.mark.parametrize(
    ("n_or_names", "edges", "says"),
    [
        (["a", "b", "c"], [(0, 1), (1, 2), (2, 0)], "`a` -> `b` -> `c` -> `a`"),
        (["a", "b"], [("a", "z")], "`z`"),
        (["a", "b"], [(0, 2)], "operator 2"),
        (["a", "b"], [(-1, 0)], "operator -1"),
        (["a", "b"], [(2**40, 0)], "operator"),
        (["a", "a"], [], "both named `a`"),
        (["a", ""], [], "empty name"),
        (["a", 3], [], "not a string"),
        (["a"], [(0, 0)], "`a` has an edge to itself"),
        (["a", "b"], [(0, 1, 2)], "not a pair"),
        (["a", "b"], [(0, 1.5)], "1.5"),
        (["a", "b"], [(0, True)], "True"),
    ],
)
def test_refuses_what_is_no_graph(n_or_names, edges, says):
    with pytest.raises(GraphError) as caught:
        OpGraph.from_edges(n_or_names, edges)
    assert says in str(caught.value)
    assert isinstance(caught.value, TVMInteropError)


@pytest.mark.parametrize("op", [-1, 5])
def test_refuses_an_operator_that_is_none(op):
    with pytest.raises(GraphError, match=f"no operator {op}"):
        DIAMOND.successors(op)
    with pytest.raises(GraphError, match=f"no operator {op}"):
        DIAMOND.reaches(0, op)
