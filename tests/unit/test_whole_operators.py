"""Tests IOS over divided operators: an operator is scheduled as a whole, its parts side by side."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.graphs import divided, sparse
from tvm_interop import LatencyTable, OpGraph, schedule
from tvm_interop.scheduling.whole_operators import WholeOperators


def test_the_whole_graph_comes_back() -> None:
    graph = OpGraph.from_edges(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    with_parts, parts = divided(graph, random.Random(1))
    wholes = WholeOperators(with_parts, parts)
    assert wholes.graph.num_ops == graph.num_ops
    assert set(wholes.graph.edges) == set(graph.edges)


@pytest.mark.parametrize("seed", range(30))
def test_schedules_of_divided_operators(seed: int) -> None:
    rng = random.Random(seed)
    graph, parts = divided(sparse(rng.randint(2, 12), seed), rng)
    table = LatencyTable([rng.uniform(1, 9) for _ in range(graph.num_ops)], streams=2)
    found = schedule(graph, "ios", latency=table, streams=2, parts=parts)
    found.validate(graph)
    stage_of = {op: i for i, s in enumerate(found.stages) for group in s.groups for op in group}
    for ops in parts:
        assert len({stage_of[op] for op in ops}) == 1
    # The schedule is no worse than one stage for each operator with its parts side by side.
    in_turn = sum(table.stages([[[op] for op in ops] for ops in parts]))
    assert found.makespan is not None
    assert found.makespan <= in_turn + 1e-9
    prices = table.stages([s.groups for s in found.stages])
    assert np.isclose(found.makespan, prices.sum())


def test_the_work_of_all_parts_spares_stages() -> None:
    """Operators that fill all streams gain nothing side by side, and need not be measured."""
    spared = 0
    for seed in range(20):
        rng = random.Random(seed)
        graph, parts = divided(sparse(10, seed), rng)
        us = [rng.uniform(1, 9) for _ in range(graph.num_ops)]
        options = {"streams": 2, "parts": parts, "bound_tolerance": 0.0, "bound_slack_us": 0.0}
        table = LatencyTable(us, streams=2)
        full = schedule(graph, "ios", latency=table, bounds=False, **options)
        made = schedule(graph, "ios", latency=table, **options)
        assert made == full
        # `loose` has the bounds that hold if each operator had one core.
        loose = schedule(graph, "ios", latency=table, **options, cores=1_000_000)
        assert made.stats["stages_priced"] <= loose.stats["stages_priced"]
        spared += loose.stats["stages_priced"] - made.stats["stages_priced"]
    assert spared > 100
