"""Tests schedulers over several GPUs on many graphs.

The schedules are valid, their makespans are right, and `multi-gpu` is at least as good as each
scheduler that it combines.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import pytest

from tests.fake_cuda.random_program import random_program
from tests.gpu_evaluator import fifo_makespan_of, makespan_of, shortest
from tests.graphs import latencies, layered, randwire, sparse
from tvm_interop import LatencyTable, OpGraph
from tvm_interop.errors import LatencyError
from tvm_interop.latency import Link
from tvm_interop.latency.contended import ContendedLatency
from tvm_interop.plan.check import check_plan
from tvm_interop.plan.make import make_plan
from tvm_interop.scheduling import Schedule, schedule

PARTS = ("heft", "hios-lp", "hios-mr")
UNHURRIED_S = 3600.0
"""A time budget in seconds that no test uses up, even on a slow machine."""
ONE_GPU = ("sequential", "greedy", "ios", "lios", "lios+", "nimble", "opara")


def drawn(seed: int, most: int = 24) -> OpGraph:
    size = random.Random(seed).randint(1, most)
    kinds = (layered, sparse, randwire if size > 9 else layered)
    return kinds[seed % 3](size, seed)


def table(graph: OpGraph, seed: int, copies: float = 1.0, streams: int | None = 2) -> LatencyTable:
    """Latencies and transfers of whole microseconds, so that ties happen and sums are exact."""
    rng = random.Random(seed)
    transfers = {edge: float(round(copies * rng.randint(0, 20))) for edge in set(graph.edges)}
    return LatencyTable(latencies(graph.num_ops, seed), streams, transfers)


def contended(graph: OpGraph, seed: int, copies: float) -> ContendedLatency:
    """A device on which operators slow each other down."""
    rng = random.Random(seed)
    op_us = latencies(graph.num_ops, seed)
    return ContendedLatency(
        op_us,
        cores=4,
        bandwidth=1.5,
        op_cores=[rng.randint(1, 4) for _ in op_us],
        memory_share=[rng.random() for _ in op_us],
        transfers={edge: copies * rng.randint(0, 20) for edge in set(graph.edges)},
    )


@pytest.mark.parametrize("name", PARTS)
def test_schedules_are_valid_and_priced_right(name: str) -> None:
    for seed in range(900):
        graph = drawn(seed)
        latency = table(graph, seed, copies=(0.2, 1.0, 4.0)[seed % 3])
        gpus = 1 + seed % 5
        made = schedule(graph, name, latency, gpus=gpus, window=1 + seed % 3)
        assert len(made.gpu_stages) <= gpus
        assert made.makespan == makespan_of(graph, made.gpu_stages, latency)
        assert made.simulate(graph, latency) == made.makespan
        if len(set(made.devices)) < 2:
            continue
        order = [op for s in made.launch_order_of_stages(graph) for op in made.stages[s].ops]
        fifo_us = fifo_makespan_of(graph, made.gpu_stages, latency, order)
        assert made.simulate(graph, latency, links="fifo") == fifo_us


def test_annealed_schedules_are_valid_and_priced_right() -> None:
    for seed in range(30):
        graph = drawn(seed)
        latency = table(graph, seed)
        made = schedule(graph, "multi-gpu", latency, gpus=2 + seed % 3, window=2 + seed % 2)
        made.validate(graph)
        assert made.makespan == pytest.approx(made.simulate(graph, latency), abs=1e-9)
        if made.is_staged and made.devices:
            assert made.makespan == makespan_of(graph, made.gpu_stages, latency)


@pytest.mark.parametrize("name", [*PARTS, "multi-gpu"])
def test_plans_of_them_are_safe(name: str) -> None:
    for seed in range(8 if name == "multi-gpu" else 40):
        program = random_program(seed, num_ops=20)
        graph = program.graph()
        latency = LatencyTable(latencies(graph.num_ops, seed), 2, Link(32.0, 1.0).transfers(graph))
        made = schedule(graph, name, latency, gpus=2 + seed % 3)
        check_plan(make_plan(program, made, device="cuda:0"))


@pytest.mark.parametrize("name", [*PARTS, "multi-gpu"])
def test_no_schedule_is_shorter_than_the_shortest(name: str) -> None:
    """Schedules are compared with all mappings of up to 10 operators to 2 GPUs."""
    reached = 0
    for seed in range(40):
        graph, latency, floor = small(seed)
        made = schedule(graph, name, latency, gpus=2, intra="none")
        assert made.makespan is not None
        assert made.makespan >= floor
        reached += made.makespan == floor
    assert reached >= (30 if name == "multi-gpu" else 5)


@functools.cache
def small(seed: int) -> tuple[OpGraph, LatencyTable, float]:
    """Return a graph, its latencies, and the least makespan of all mappings of its operators to two
    GPUs."""
    graph = drawn(seed, most=8) if seed < 30 else sparse(9 + seed % 2, seed, degree=3.0)
    latency = table(graph, seed)
    return graph, latency, shortest(graph, 2, latency)


@pytest.mark.parametrize("name", [*PARTS, "multi-gpu"])
def test_nor_with_windows(name: str) -> None:
    reached = 0
    for seed in range(20):
        graph = drawn(seed, most=6)
        latency = table(graph, seed)
        made = schedule(graph, name, latency, gpus=2, window=2)
        assert made.makespan is not None
        floor = shortest(graph, 2, latency, window=2)
        # A schedule for one GPU may have streams, or groups of several operators.
        if made.is_staged and made.devices:
            assert made.makespan >= floor
        reached += made.makespan == floor
    assert reached >= 5


def reached_by(graph: OpGraph, latency: LatencyTable | ContendedLatency, gpus: int) -> float:
    """The least makespan of the schedules that `multi-gpu` chooses from.

    These are the schedules of its parts for several GPUs and for one GPU, and of other schedulers
    for one GPU.
    """
    makespans = [schedule(graph, part, latency, gpus=gpus).makespan for part in PARTS]
    makespans += [schedule(graph, part, latency, gpus=1).makespan for part in PARTS]
    # The makespan of streams does not include contention.
    alone = ONE_GPU if isinstance(latency, LatencyTable) else ONE_GPU[:3]
    makespans += [schedule(graph, name, latency).makespan for name in alone]
    return min(makespan for makespan in makespans if makespan is not None)


@pytest.mark.parametrize(
    ("gpus", "copies"),
    # On one GPU, nothing is copied.
    [(1, 1.0), (2, 0.3), (2, 5.0), (3, 0.0), (3, 1.0), (8, 1.0)],
)
def test_never_worse_than_its_parts_or_one_gpu(gpus: int, copies: float) -> None:
    for seed in (0, 4, 5):  # Each seed draws another kind of graph.
        graph = drawn(seed)
        for latency in (table(graph, seed, copies, streams=None), contended(graph, seed, copies)):
            made = schedule(graph, "multi-gpu", latency, gpus=gpus, time_budget_s=UNHURRIED_S)
            assert made.makespan is not None
            assert made.makespan <= reached_by(graph, latency, gpus) * (1 + 1e-9)


def test_copies_that_take_forever_leave_one_gpu() -> None:
    graph = layered(30, 1)
    latency = LatencyTable(latencies(30, 1), 2, transfers=dict.fromkeys(graph.edges, 1e6))
    made = schedule(graph, "multi-gpu", latency, gpus=4)
    assert made.makespan is not None
    assert made.makespan < 1e6


def test_annealing_is_what_makes_it_shorter() -> None:
    graph = layered(120, 3, layer=12)
    latency = contended(graph, 3, copies=1.0)
    made = schedule(graph, "multi-gpu", latency, gpus=4)
    predicted = made.stats["predicted_us"]
    parts = min(predicted[name] for name in PARTS)
    assert made.stats["winner"].endswith("refined")
    assert made.makespan == min(predicted.values())
    assert made.makespan < 0.99 * parts


def test_the_same_every_time() -> None:
    graph = layered(40, 5)
    latency = contended(graph, 5, copies=1.0)
    first, second = (
        schedule(graph, "multi-gpu", latency, gpus=3, time_budget_s=UNHURRIED_S) for _ in range(2)
    )
    assert first == second
    assert not first.stats["budget_used_up"]


def test_a_budget_of_nothing_still_gives_a_schedule() -> None:
    graph = layered(40, 5)
    latency = contended(graph, 5, copies=1.0)
    made = schedule(graph, "multi-gpu", latency, gpus=3, time_budget_s=0)
    made.validate(graph)
    assert made.stats["budget_used_up"]
    assert made.stats["trials"] == 0


def test_one_gpu_takes_the_sum() -> None:
    graph = layered(30, 2)
    latency = table(graph, 2)
    for name in (*PARTS, "multi-gpu"):
        made = schedule(graph, name, latency, gpus=1, intra="none")
        assert made.makespan == sum(latencies(30, 2))


def test_free_copies_and_many_gpus_leave_the_longest_path() -> None:
    for seed in range(50):
        graph = drawn(seed)
        latency = LatencyTable(latencies(graph.num_ops, seed))
        made = schedule(graph, "heft", latency, gpus=graph.num_ops, intra="none")
        end: dict[int, float] = {}
        for op in graph.topological_order():
            ready = max((end[u] for u in graph.predecessors(op)), default=0.0)
            end[op] = ready + latency.op(op)
        assert made.makespan == max(end.values())


def permuted(made: Schedule, order: Sequence[int]) -> Schedule:
    stages = made.gpu_stages
    stages = (*stages, *((),) * (len(order) - len(stages)))
    return Schedule.from_gpu_stages("by hand", made.op_names, [stages[i] for i in order])


@pytest.mark.parametrize("links", ["delay", "fifo"])
def test_the_names_of_gpus_change_nothing(links: str) -> None:
    graph = layered(40, 7)
    latency = table(graph, 7)
    made = schedule(graph, "heft", latency, gpus=4)
    expected = permuted(made, [0, 1, 2, 3]).simulate(graph, latency)
    for order in ([3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1]):
        other = permuted(made, order)
        other.validate(graph)
        assert other.simulate(graph, latency) == expected


def test_a_chain_stays_on_its_gpu() -> None:
    chain = OpGraph.from_edges(6, [(i, i + 1) for i in range(5)])
    latency = LatencyTable([3.0] * 6, transfers=dict.fromkeys(chain.edges, 1.0))
    for name in (*PARTS, "multi-gpu"):
        made = schedule(chain, name, latency, gpus=3)
        assert len(set(made.devices)) <= 1
        assert made.makespan == 18


def test_an_empty_graph() -> None:
    for name in (*PARTS, "multi-gpu"):
        made = schedule(OpGraph.from_edges(0, []), name, LatencyTable([]), gpus=2)
        assert made.makespan == 0


def test_windows_never_make_it_longer() -> None:
    for seed in range(100):
        graph = drawn(seed)
        latency = contended(graph, seed, copies=1.0)
        for name in PARTS:
            with_windows = schedule(graph, name, latency, gpus=2, window=3)
            without = schedule(graph, name, latency, gpus=2, intra="none")
            assert with_windows.makespan is not None
            assert without.makespan is not None
            assert with_windows.makespan <= without.makespan


def test_prices_of_no_use_are_named() -> None:
    graph = OpGraph.from_edges(["a", "b"], [])

    class Broken(LatencyTable):
        def stage(self, groups: Sequence[Sequence[int]]) -> float:
            return float("nan") if len(groups) > 1 else 1.0

    with pytest.raises(LatencyError, match="`a`, `b`"):
        schedule(graph, "heft", Broken([1.0, 1.0]), gpus=1)
