"""Tests the simulated device on which schedulers are compared, and the verdicts on schedulers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks import search_time, stages_priced
from benchmarks.paper_device import TWO_CORES, V100, PaperNetwork, paper_network
from benchmarks.schedulers import judge
from tests.graphs import latencies
from tvm_interop import OpGraph, operator_graph
from tvm_interop.latency import LatencyModel, LatencyTable, StageBatch
from tvm_interop.latency.contended import ContendedLatency
from tvm_interop.latency.described import DeviceDescription
from tvm_interop.models.describe import describe
from tvm_interop.scheduling import Schedule
from tvm_interop.scheduling.simulation import Contention, simulate


def drawn_device(num_ops: int, seed: int) -> ContendedLatency:
    rng = random.Random(seed)
    return ContendedLatency(
        latencies(num_ops, seed),
        cores=4,
        bandwidth=1.5,
        op_cores=[rng.randint(1, 4) for _ in range(num_ops)],
        memory_share=[rng.random() for _ in range(num_ops)],
    )


def drawn_stage(num_ops: int, rng: random.Random) -> list[list[int]]:
    ops = rng.sample(range(num_ops), rng.randint(1, num_ops))
    groups: list[list[int]] = [[] for _ in range(rng.randint(1, 5))]
    for op in ops:
        rng.choice(groups).append(op)
    return [group for group in groups if group]


def simulated_us(device: ContendedLatency, groups: list[list[int]]) -> float:
    """The latency of a stage alone, by the event-driven simulator."""
    ops = [op for group in groups for op in group]
    number = {op: i for i, op in enumerate(ops)}
    streams = tuple(tuple(number[op] for op in group) for group in groups)
    edges = [pair for group in streams for pair in pairwise(group)]
    graph = OpGraph.from_edges(len(ops), edges)
    contention = Contention(
        device.cores,
        device.bandwidth,
        [device.op_cores[op] for op in ops],
        [device.memory_share[op] for op in ops],
    )
    alone = LatencyTable([device.op(op) for op in ops])
    made = Schedule("a stage", graph.names, streams=streams)
    return simulate(graph, made, alone, contention).makespan_us


def test_many_stages_are_priced_as_the_simulator_prices_each() -> None:
    rng = random.Random(0)
    device = drawn_device(12, 1)
    stages = [drawn_stage(12, rng) for _ in range(200)]
    expected = [simulated_us(device, groups) for groups in stages]
    assert device.stages(StageBatch.from_stages(stages)) == pytest.approx(expected)
    assert device.stage(stages[7]) == pytest.approx(expected[7])
    # In most stages, contention makes a difference.
    alone = LatencyTable(device.op_us).stages(stages)
    assert np.mean(np.array(expected) > alone * 1.01) > 0.5


def test_no_stages_cost_nothing() -> None:
    assert len(drawn_device(3, 0).stages([])) == 0


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    device = drawn_device(9, 2)
    stages = [drawn_stage(9, rng) for _ in range(50)]
    at_once = device.stages(stages)
    monkeypatch.setattr("tvm_interop.latency.contended._CHUNK", 7)
    assert device.stages(stages).tolist() == at_once.tolist()


@pytest.mark.parametrize("sheet", [V100, TWO_CORES])
def test_a_network_on_paper_is_the_network(sheet: DeviceDescription) -> None:
    found = paper_network("squeezenet", sheet)
    assert (found.graph.num_ops, found.graph.num_edges) == (50, 65)
    assert found.graph.edges == operator_graph("squeezenet").edges
    flops = sum(traits.flops for traits in found.traits)
    assert flops == pytest.approx(describe("squeezenet").gflops * 1e9)
    assert len(found.latency.op_us) == 50


def test_bounds_spare_stages_and_keep_the_schedule() -> None:
    rows = [stages_priced.count("squeezenet", device) for device in stages_priced.DEVICES]
    assert {row.full for row in rows} == {158}
    assert all(row.bounded < row.full for row in rows)
    assert all(row.optimum_us < row.sequential_us for row in rows)
    assert "| squeezenet | 50 |" in stages_priced.table(rows)


def test_two_searches_that_disagree_are_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two searches disagree because the second search gets the latencies of another device."""
    subjects = [paper_network("squeezenet", sheet) for sheet in (V100, TWO_CORES)]

    class Changing(ContendedLatency):
        def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
            device = subjects[0].latency if len(subjects) > 1 else subjects[-1].latency
            del subjects[:-1]
            return device.stages(stages)

    def changing(network: str) -> tuple[PaperNetwork, LatencyModel]:
        subject = paper_network(network)
        device = subject.latency
        return subject, Changing(
            device.op_us, device.cores, device.bandwidth, device.op_cores, device.memory_share
        )

    monkeypatch.setitem(stages_priced.DEVICES, "changing", (changing, {}))
    with pytest.raises(RuntimeError, match="squeezenet on changing"):
        stages_priced.count("squeezenet", "changing")


def rounds_of(auto: float, seed: int) -> dict[str, npt.NDArray[np.float64]]:
    """60 rounds of `auto` and of equal contestants, with some noise in each run.

    Parameters
    ----------
    auto: the time of `auto`, relative to the other contestants.
    """
    rng = np.random.default_rng(seed)
    names = ["ours, sequential", "ours, sequential (again)", *(f"ours, {i}" for i in range(10))]
    means = {**dict.fromkeys(names, 1.0), "ours, auto": auto}
    return {name: mean * rng.lognormal(0, 0.03, 60) for name, mean in means.items()}


def test_auto_is_judged_by_rounds_that_did_not_choose_the_best() -> None:
    """The fastest of several equal contestants looks too fast in the rounds that chose it."""
    verdicts = [judge(rounds_of(1.0, seed)) for seed in range(60)]
    assert sum(verdict.is_slower for verdict in verdicts) <= 4
    assert np.mean([verdict.ratio for verdict in verdicts]) == pytest.approx(1, abs=0.003)
    assert max(verdict.noise for verdict in verdicts) < 1.06
    assert "no slower than" in str(next(v for v in verdicts if not v.is_slower))


def test_a_slow_auto_is_found_out() -> None:
    verdicts = [judge(rounds_of(1.08, seed)) for seed in range(20)]
    assert all(verdict.is_slower for verdict in verdicts)
    assert "`auto` is slower than the best of the others" in str(verdicts[0])


def test_a_faster_auto_is_no_slower() -> None:
    assert not any(judge(rounds_of(0.8, seed)).is_slower for seed in range(20))


def test_time_in_the_latency_model_is_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    clock_s = [0.0]

    class Slow(LatencyTable):
        def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
            clock_s[0] += 0.1
            return super().stages(stages)

    # Each reading of the clock advances it by one microsecond.
    clock = SimpleNamespace(perf_counter=lambda: clock_s[0] + next(ticks) * 1e-6)
    monkeypatch.setattr(search_time, "time", clock)

    graph = OpGraph.from_edges(3, [(0, 2), (1, 2)])
    row = search_time.search("ios", "three", graph, Slow([1.0, 2.0, 3.0]), [])
    assert row.pricing_s >= 0.1
    assert row.operators == 3
    assert row.stats["stages_priced"] >= 3
    # Nearly all time passed in the latency model.
    assert 0 < row.search_s < 1e-3


def test_search_tables_tell_aims_and_published_figures() -> None:
    rows = [
        search_time.Row(name, "nasnet_a", 374, seconds, 0.0)
        for name, seconds in (("greedy", 4e-3), ("lios", 6e-3), ("ios", 1.5))
    ]
    met = {aim.scheduler: aim.is_met for aim in search_time.aims(rows)}
    assert met == {"greedy": True, "lios": False, "ios": True}
    assert "| lios | nasnet_a | 5 ms | 6 ms | **missed** |" in search_time.aim_table(
        search_time.aims(rows)
    )
    table = search_time.network_table(rows)
    assert "| LIOS, Table V: ios | 2,783 s |" in table
    assert "RTX 3080" in table


def test_growth_is_an_exponent() -> None:
    small, large = (search_time.Row("lios", "", n, n * n * 1e-9, 0.0) for n in (1000, 10_000))
    assert search_time.exponent(small, large) == pytest.approx(2)
