"""Tests IOS over divided operators: an operator is scheduled as a whole, its parts side by side."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from tests.graphs import divided, layered, sparse
from tvm_interop import LatencyTable, OpGraph, schedule
from tvm_interop.errors import OutOfTimeError
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
    """The bounds count the work of all parts.

    So IOS knows that operators gain nothing side by side if their parts fill all streams, and asks
    for the latencies of fewer stages.
    """
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
        # `loose` has the bounds that would hold if each operator ran on one core.
        loose = schedule(graph, "ios", latency=table, **options, cores=1_000_000)
        assert made.stats["stages_priced"] <= loose.stats["stages_priced"]
        spared += loose.stats["stages_priced"] - made.stats["stages_priced"]
    assert spared > 100


class AnyPrices(LatencyTable):
    """A latency model with two streams, in which any stage may be fast or slow.

    Many stages are faster than their lower bounds, which come from their operators. A merged
    operator may be faster or slower than the operators that it replaces.
    """

    def __init__(self, op_us: Sequence[float], sets: Sequence[Sequence[int]], seed: int) -> None:
        super().__init__(op_us, streams=2)
        self.sets = sets
        self.seed = seed

    def _times(self, ops: Sequence[int]) -> float:
        drawn = random.Random(zlib.crc32(repr((self.seed, sorted(ops))).encode()))
        return drawn.uniform(0.4, 1.6)

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        flat = [[op for group in stage for op in group] for stage in stages]
        times = [self._times(ops) if len(ops) > 1 else 1.0 for ops in flat]
        return super().stages(stages) * np.array(times)

    def mergeable(self) -> Sequence[Sequence[int]]:
        return self.sets

    def merges(self, sets: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        return np.array([sum(map(self.op, ops)) * self._times(ops) for ops in sets])


@pytest.mark.parametrize("seed", range(120))
def test_merging_is_never_slower_than_ios_or_sequential_by_its_own_prices(seed: int) -> None:
    """Try graphs with and without divided operators, small and large, with all kinds of
    latencies."""
    rng = random.Random(seed)
    is_large = seed % 3 == 0
    graph = layered(rng.randint(2, 30 if is_large else 12), seed, layer=4)
    ids = range(graph.num_ops)
    sets = [list(ids[begin : begin + 3]) for begin in ids[::3]]
    parts = None
    wholes = [[op] for op in ids]
    if seed % 2:
        graph, wholes = divided(graph, rng)
        parts = wholes
        sets = [[part for op in ops for part in wholes[op]] for ops in sets]
    model = AnyPrices([rng.uniform(1, 9) for _ in range(graph.num_ops)], sets, seed)
    model.is_costly = seed // 2 % 2 == 1
    options = {"parts": parts, "streams": 2, "max_transitions": 300 if is_large else 1_000_000}
    made = {
        name: schedule(graph, name, latency=model, **options)
        for name in ("ios", "ios-both", "ios-merge")
    }
    us = {name: found.makespan or 0.0 for name, found in made.items()}
    in_turn_us = sum(model.stages([[[part] for part in ops] for ops in wholes]).tolist())
    allowed = 1 + 1e-9
    assert us["ios-both"] <= min(us["ios"], in_turn_us) * allowed
    assert us["ios"] <= in_turn_us * allowed
    assert us["ios-merge"] <= in_turn_us * allowed
    if parts is not None:
        for found in made.values():
            assert found.simulate(graph, model) == pytest.approx(found.makespan)


def test_a_schedule_with_merging_stands_if_there_is_no_time_to_search_without() -> None:
    class OutOfTime(AnyPrices):
        searches = 0

        def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
            self.searches += [[*map(tuple, groups)] for groups in stages] == [[(0,)], [(1,)]]
            if self.searches == 2:
                raise OutOfTimeError("the second search begins, and the time is over")
            return super().stages(stages)

    graph = OpGraph.from_edges(2, [])
    late = OutOfTime([4.0, 5.0], [[0, 1]], seed=0)
    made = schedule(graph, "ios-both", latency=late)
    assert late.searches == 2
    in_time = schedule(graph, "ios-both", latency=AnyPrices([4.0, 5.0], [[0, 1]], seed=0))
    assert made == in_time


def test_a_merged_stage_holds_all_parts_of_its_operators() -> None:
    graph = OpGraph.from_edges(["a[1/2]", "a[2/2]", "b", "c[1/2]", "c[2/2]"], [(0, 3), (1, 3)])
    parts = [[0, 1], [2], [3, 4]]

    class Merging(LatencyTable):
        def mergeable(self) -> Sequence[Sequence[int]]:
            return [(0, 1, 2)]

        def merges(self, sets: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
            return np.array([1.0 if set(ops) == {0, 1, 2} else np.inf for ops in sets])

    model = Merging([4, 4, 4, 2, 2], streams=2)
    for name in ("ios-both", "ios-merge"):
        merging, after = schedule(graph, name, latency=model, parts=parts, streams=2).stages
        assert (merging.kind, merging.ops, set(merging.streams)) == ("merge", (0, 1, 2), {0})
        assert (after.groups, after.streams) == (((3,), (4,)), (0, 1))


def test_without_merging_each_operator_has_all_streams_to_itself() -> None:
    """`ios-merge` runs no two operators side by side, but it runs an operator's parts on all
    streams."""
    graph, parts = divided(sparse(10, 3), random.Random(3))
    table = LatencyTable([1.0] * graph.num_ops, streams=2)
    made = schedule(graph, "ios-merge", latency=table, parts=parts, streams=2)
    assert sorted(sorted(stage.ops) for stage in made.stages) == sorted(parts)
    assert all(stage.streams == (0, 1, 0)[: len(stage.ops)] for stage in made.stages)
