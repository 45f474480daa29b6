"""Tests the lower bound of the time of schedules."""

import numpy as np
import pytest

from tests.graphs import Contended, latencies, layered, randwire, sparse
from tvm_interop.latency import LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import Schedule, Stage, schedule, schedulers
from tvm_interop.scheduling.least_time import least_us


def in_pairs(graph: OpGraph) -> Schedule:
    """Each pair of operators, such as 0 and 1, is a stage: the two parts of one operator."""
    stages = tuple(Stage(((op,), (op + 1,)), (0, 1)) for op in range(0, graph.num_ops, 2))
    return Schedule("sequential", graph.names, stages=stages)


def bound(graph: OpGraph, us: list[float], slowdown: float) -> float:
    table = Contended(us, slowdown)
    return least_us(graph, in_pairs(graph), table, np.array(us), 2)


def joined(*pairs: tuple[int, int]) -> OpGraph:
    """Operators of two parts each. For a pair (a, b), both parts of b read both parts of a."""
    edges = [(2 * a + i, 2 * b + j) for a, b in pairs for i in (0, 1) for j in (0, 1)]
    return OpGraph.from_edges(2 * max(max(pair) for pair in pairs) + 2, edges)


def test_only_its_parts_run_beside_an_operator_of_a_chain() -> None:
    chain = joined((0, 1), (1, 2), (0, 2))  # The last edge skips an operator.
    assert bound(chain, [10.0] * 6, 0.25) == pytest.approx(3 * 12.5)
    # Parts that take more than twice as long side by side as alone should run one after the other.
    assert bound(chain, [10.0] * 6, 1.5) == pytest.approx(3 * 20.0)


def test_operators_of_branches_may_run_beside_those_that_slow_them_down_less() -> None:
    fork = joined((0, 1), (0, 2), (1, 3), (2, 3))
    assert bound(fork, [10.0] * 8, 0.25) == pytest.approx(2 * 12.5 + 4 * 10.0 / 2)
    longest = [10.0, 10.0, 40.0, 1.0, 3.0, 3.0, 10.0, 10.0]
    assert bound(fork, longest, 0.25) == pytest.approx(2 * 12.5 + 40.0)


def test_a_part_that_seems_slower_alone_than_beside_another_one_counts_with_the_lower_time() -> (
    None
):
    fork = joined((0, 1), (0, 2), (1, 3), (2, 3))
    assert bound(fork, [10.0] * 8, -0.25) == pytest.approx(2 * 7.5 + 4 * 7.5 / 2)


def test_parts_that_read_one_part_only_may_run_beside_others() -> None:
    """The parts are images of a batch.

    Each part reads only its own image, so there are two chains.
    """
    images = OpGraph.from_edges(4, [(0, 2), (1, 3)])
    assert bound(images, [10.0] * 4, 0.25) == pytest.approx(20.0)


@pytest.mark.parametrize("graph", [layered(30, 4), randwire(24, 2), sparse(25, 3)])
@pytest.mark.parametrize("streams", [1, 2, 3])
def test_no_schedule_takes_less_time(graph: OpGraph, streams: int) -> None:
    us = latencies(graph.num_ops, 5)
    table = LatencyTable(us)
    in_turn = schedule(graph, "sequential", table)
    least = least_us(graph, in_turn, table, np.array(us), streams)
    assert 0 < least <= sum(us) + 1e-9
    for name in {"greedy", "ios", "lios", "lios+", "nimble", "opara"} & {*schedulers()}:
        made = schedule(graph, name, table, streams=streams)
        assert made.simulate(graph, table) >= least - 1e-6, name


def test_nothing_takes_no_time() -> None:
    empty = OpGraph.from_edges(0, [])
    nothing = Schedule("sequential", (), stages=())
    assert least_us(empty, nothing, LatencyTable([]), np.zeros(0), 2) == 0
