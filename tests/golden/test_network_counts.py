"""Tests the numbers of operators and of stages in the papers' networks against Table IV of LIOS
and Table 2 of IOS, and numbers that are computed from these.

The greedy stages and Nimble's figures are computed from the papers' own graphs. Nimble's figures
are: the fewest edges that keep the order, the largest matching of these edges, the number of
syncs (edges - matching) and the number of chains (operators - matching).
"""

from __future__ import annotations

import pytest

from tvm_interop import OpGraph, models, operator_graph, schedule
from tvm_interop.models.randwire import GRAPH_SEED, wiring

# For each network: the number of schedule units (operators of the schedule), of edges, and the
# width of the graph.
COUNTS = {
    "squeezenet": (50, 65, 3),
    "inception_v3": (119, 153, 6),
    "nasnet_a": (374, 576, 16),
    "randwire": (120, 260, 8),
    "resnet50": (87, 102, 2),
    "googlenet": (80, 106, 4),
    "bert_base": (139, 197, 4),
    "t5_encoder": (94, 135, 4),
    "wide_deep": (75, 74, 34),
    "dlrm": (62, 63, 27),
    "task_heads": (51, 65, 16),
    "mixture_of_experts": (38, 40, 12),
}


def test_every_network_is_counted() -> None:
    assert sorted(COUNTS) == sorted(models.list())


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    graph = operator_graph(name)
    assert (graph.num_ops, graph.num_edges, graph.width) == COUNTS[name]


@pytest.mark.parametrize(("name", "stages"), [("squeezenet", 38), ("inception_v3", 61)])
def test_greedy_stages(name: str, stages: int) -> None:
    assert len(schedule(operator_graph(name), "greedy", None, max_groups=8).stages) == stages


@pytest.mark.parametrize(
    ("name", "edges", "matched", "chains", "syncs"),
    [("squeezenet", 61, 37, 13, 24), ("inception_v3", 153, 83, 36, 70)],
)
def test_nimble(name: str, edges: int, matched: int, chains: int, syncs: int) -> None:
    graph = operator_graph(name)
    least = [
        [
            v
            for v in graph.successors(u)
            if not any(graph.reaches(w, v) for w in graph.successors(u))
        ]
        for u in range(graph.num_ops)
    ]
    assert sum(map(len, least)) == edges
    matching = _matching(least)
    assert matching == matched
    assert (graph.num_ops - matching, edges - matching) == (chains, syncs)


@pytest.mark.parametrize(("name", "ops", "width"), [("squeezenet", 6, 3), ("inception_v3", 11, 6)])
def test_blocks_of_the_paper(name: str, ops: int, width: int) -> None:
    """The graph's width and the number of operators of one block are as in Table 1 of IOS."""
    graph = operator_graph(name)
    assert graph.width == width
    assert ops in {len(block) for block in graph.blocks()}


def test_random_graphs_are_those_of_the_paper_in_kind() -> None:
    graphs = wiring(GRAPH_SEED)
    assert [len(edges) for edges in graphs] == [32, 64, 64, 64]
    widths = [OpGraph.from_edges(n, e).width for n, e in zip((16, 32, 32, 32), graphs, strict=True)]
    assert max(widths) == 8
    assert wiring(GRAPH_SEED) == graphs
    assert wiring(GRAPH_SEED + 1) != graphs


def _matching(successors: list[list[int]]) -> int:
    """The size of the largest set of edges without a common source or target (Kuhn's algorithm)."""
    source_of: dict[int, int] = {}

    def augment(u: int, seen: set[int]) -> bool:
        for v in successors[u]:
            if v not in seen:
                seen.add(v)
                if v not in source_of or augment(source_of[v], seen):
                    source_of[v] = u
                    return True
        return False

    return sum(augment(u, set()) for u in range(len(successors)))
