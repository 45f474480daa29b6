"""Tests the running example of the LIOS paper: Fig. 3 and Table III.

In step 6, the paper's table prints (v6, p2, 8, 13), so operator v6 would finish at 13. The table's
column EFT (earliest finish time) says 23, which we expect.
"""

import pytest

from tvm_interop.latency import LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import schedule

LATENCY_US = [3, 5, 5, 5, 8, 15, 10, 7, 13, 2]
EDGES = [(1, 2), (1, 3), (1, 4), (1, 5), (5, 8), (2, 6), (3, 6), (4, 7)]
EDGES += [(6, 9), (7, 9), (8, 9), (9, 10)]

# Operator, stream, start and finish, in the order of the steps in the table.
TABLE_III = [
    ("v1", "p1", 0, 3),
    ("v5", "p1", 3, 11),
    ("v8", "p1", 11, 18),
    ("v2", "p2", 3, 8),
    ("v3", "p3", 3, 8),
    ("v6", "p2", 8, 23),
    ("v4", "p3", 8, 13),
    ("v7", "p3", 13, 23),
    ("v9", "p1", 23, 36),
    ("v10", "p1", 36, 38),
]


@pytest.fixture
def graph():
    names = [f"v{i}" for i in range(1, 11)]
    return OpGraph.from_edges(names, [(f"v{u}", f"v{v}") for u, v in EDGES])


def test_table_iii(graph):
    result = schedule(graph, "lios", LatencyTable(LATENCY_US), streams=3)
    rows = [
        (graph.names[op], f"p{stream + 1}", start, finish)
        for op, stream, start, finish in result.timeline
    ]
    assert rows == TABLE_III
    assert result.makespan == 38
    assert result.simulate(graph, LatencyTable(LATENCY_US)) == 38


def test_sequential_takes_73(graph):
    assert schedule(graph, "sequential", LatencyTable(LATENCY_US)).makespan == 73


def test_streams_default_to_the_width(graph):
    assert graph.width == 4
    result = schedule(graph, "lios", LatencyTable(LATENCY_US))
    assert result.num_streams == 4
