"""Tests the learned search: IOS with few measurements, its budgets, interrupts and restarts."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tvm_interop
from tests.contended_device import SETTING, ContendedDevice
from tests.graphs import divided, layered, randwire, sparse
from tests.nets import chain, inception_like
from tests.output_bits import bits
from tests.prices import give_prices
from tvm_interop import InputError, OpGraph, ScheduleError
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.latency.learned import LearnedLatency
from tvm_interop.measure.active import ActiveSearch, Round
from tvm_interop.measure.store import LatencyStore
from tvm_interop.scheduling import schedule

pytest.importorskip("xgboost", reason="xgboost is not installed (extra `learned`)")


def make_search(graph: OpGraph, device: ContendedDevice, **options: object) -> ActiveSearch:
    learned = LearnedLatency(device.table(), SETTING)
    return ActiveSearch(graph, device, learned, streams=2, **options)  # type: ignore[arg-type]


def several(stages: Sequence[Sequence[Sequence[int]]]) -> int:
    return sum(1 for groups in stages if sum(map(len, groups)) > 1)


@pytest.mark.parametrize(
    "graph",
    [
        randwire(20, 3),
        pytest.param(layered(40, 1), marks=pytest.mark.slow),
        pytest.param(sparse(30, 5), marks=pytest.mark.slow),
    ],
)
def test_as_good_as_with_all_stages_measured(graph: OpGraph) -> None:
    everything, device = ContendedDevice(graph.num_ops), ContendedDevice(graph.num_ops)
    full = schedule(graph, "ios", everything, bounds=False, streams=2)
    found = make_search(graph, device).run()
    found.validate(graph)
    assert found.makespan is not None
    assert full.makespan is not None
    assert found.makespan <= 1.02 * full.makespan
    assert several(list(device.asked)) <= several(list(everything.asked)) / 4
    assert found.simulate(graph, device) == pytest.approx(found.makespan), "it must be measured"


@pytest.mark.slow
def test_the_same_seed_finds_the_same() -> None:
    graph = layered(30, 1)
    first, second = ContendedDevice(30), ContendedDevice(30)
    assert make_search(graph, first).run() == make_search(graph, second).run()
    assert list(first.asked) == list(second.asked)


def test_rounds_report() -> None:
    graph = randwire(20, 3)
    device, seen = ContendedDevice(20), list[Round]()
    search = make_search(graph, device, on_round=seen.append)
    found = search.run()
    assert seen == search.rounds
    assert [r.number for r in seen] == list(range(1, len(seen) + 1))
    assert math.isnan(seen[0].error.mape), "before the first round nothing was learned"
    assert all(r.error.stages > 0 and r.error.mape >= 0 for r in seen[1:])
    for before, after in pairwise(seen):
        assert after.samples == before.measured
        assert after.measured - before.measured == before.unmeasured - after.unmeasured
        assert after.best_us <= before.best_us
    assert found.makespan == seen[-1].best_us
    assert found.stats["stages_measured"] == seen[-1].measured == several(list(device.asked))
    assert found.stats["stages_priced"] + found.stats["stages_spared"] == found.stats["stages"]


@pytest.mark.parametrize("budget", [0, 1, 40])
def test_at_most_so_many_measurements(budget: int) -> None:
    graph, device = randwire(20, 3), ContendedDevice(20)
    search = make_search(graph, device, max_measurements=budget)
    found = search.run()
    found.validate(graph)
    assert several(list(device.asked)) == budget
    assert found.stats["stages_measured"] == budget


def test_no_round_begins_after_the_time_budget() -> None:
    graph, device = randwire(20, 3), ContendedDevice(20)
    found = make_search(graph, device, time_budget_s=0.0).run()
    assert several(list(device.asked)) == 0
    op_us = [device.op(i) for i in range(20)]
    assert found.makespan == pytest.approx(sum(op_us))


class Noisy(ContendedDevice):
    """A device whose first measurement of each stage is 5% off. A second measurement is exact."""

    def __init__(self, num_ops: int) -> None:
        super().__init__(num_ops)
        self.settled: set[str] = set()

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
        return super().stages(stages) * self.factors(stages)

    def known(self, stages: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
        return super().known(stages) * self.factors(stages)

    def factors(self, stages: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
        off = [0.05 * (-1) ** (sum(map(ord, key)) % 2) for key in self.keys(stages)]
        settled = [key in self.settled for key in self.keys(stages)]
        return np.where(settled, 1, 1 + np.array(off))

    def measure_again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        self.settled.update(self.keys(stages))
        return len(stages)


def test_the_stages_chosen_are_measured_again() -> None:
    graph, device = randwire(20, 3), Noisy(20)
    search = make_search(graph, device)
    found = search.run()
    assert found.stats["stages_measured_again"] == len(found.stages)
    stages = [list(stage.by_stream().values()) for stage in found.stages]
    assert found.makespan == pytest.approx(sum(map(device.stage, stages)))
    assert search.rounds[-1].best_us < 0.99 * found.makespan
    late = make_search(graph, Noisy(20), time_budget_s=0.0).run()
    assert late.stats["stages_measured_again"] == 0


def test_rounds_of_drawn_stages_are_no_failed_attempts() -> None:
    """On this device no stage saves time. The search measures randomly drawn stages for three
    rounds. These rounds do not count among the three rounds without a gain after which the search
    ends."""

    class NothingGains(ContendedDevice):
        def stage(self, groups: Sequence[Sequence[int]]) -> float:
            super().stage(groups)
            alone_us = sum(self.op(op) for group in groups for op in group)
            return alone_us * (1 + 0.01 * (len(groups) - 1))

    search = make_search(randwire(12, 1), NothingGains(12))
    search.run()
    drawn = [r.samples < 24 for r in search.rounds]
    assert drawn == [True] * 3 + [False] * 3


def test_stages_of_the_same_kernels_are_measured_once() -> None:
    """Operators 0 to 7 have the same kernels as operators 8 to 15."""

    class Twins(ContendedDevice):
        def keys(self, stages: Sequence[Sequence[Sequence[int]]]) -> list[str]:
            return super().keys([[[op % 8 for op in group] for group in s] for s in stages])

        def stage(self, groups: Sequence[Sequence[int]]) -> float:
            return super().stage([[op % 8 for op in group] for group in groups])

        def known(self, stages: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
            return super().known([[[op % 8 for op in group] for group in s] for s in stages])

        def op(self, op: int) -> float:
            return super().op(op % 8)

    cell = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 6), (4, 7), (5, 7), (6, 7)]
    edges = [*cell, (7, 8), *((u + 8, v + 8) for u, v in cell)]
    graph, device = OpGraph.from_edges(16, edges), Twins(16)
    search = make_search(graph, device)
    found = search.run()
    assert search.rounds[-1].measured == several(list(device.asked))
    whole = schedule(graph, "ios", Twins(16), bounds=False, streams=2)
    assert found.makespan == pytest.approx(whole.makespan, rel=0.02)


def test_a_chain_has_few_stages_and_all_are_measured() -> None:
    graph = OpGraph.from_edges(5, [(i, i + 1) for i in range(4)])
    device = ContendedDevice(5)
    found = make_search(graph, device).run()
    assert found == schedule(graph, "ios", ContendedDevice(5), streams=2)


def test_an_interrupt_leaves_the_best_so_far_and_goes_on_later() -> None:
    graph, device = randwire(20, 3), ContendedDevice(20)
    search = make_search(graph, device)

    def interrupt(done: Round) -> None:
        if done.number == 3:
            raise KeyboardInterrupt

    search._on_round = interrupt
    with pytest.raises(KeyboardInterrupt):
        search.run()
    best = search.best()
    best.validate(graph)
    assert best.makespan == search.rounds[-1].best_us
    before = set(device.asked)
    again = make_search(graph, device)
    assert again.best().makespan == best.makespan, "earlier measurements are not lost"
    assert again.run().makespan <= best.makespan  # type: ignore[operator]
    assert again.rounds[-1].measured == several(list(device.asked)) - several(list(before))


@pytest.mark.parametrize("seed", range(3))
def test_divided_operators_are_searched_as_wholes(seed: int) -> None:
    graph, parts = divided(layered(16, seed), random.Random(seed))
    everything, device = ContendedDevice(graph.num_ops), ContendedDevice(graph.num_ops)
    full = schedule(graph, "ios", everything, bounds=False, streams=2, parts=parts)
    search = make_search(graph, device, parts=parts)
    found = search.run()
    found.validate(graph)
    assert found.stats["stages"] == full.stats["stages"], "the searches differ"
    assert several(list(device.asked)) <= several(list(everything.asked))
    assert found.makespan == pytest.approx(full.makespan, rel=0.02)
    assert found.simulate(graph, device) == pytest.approx(found.makespan)


def test_blocks_too_large_to_look_at_all_stages() -> None:
    """A beam search finds a schedule from predicted latencies. Then the search improves windows
    (neighbouring stages) of this schedule, and measures their latencies."""
    graph = layered(36, 1, layer=6)
    greedy = schedule(graph, "greedy", ContendedDevice(36), max_groups=8, streams=2)
    whole, device = ContendedDevice(36), ContendedDevice(36)
    full = schedule(graph, "ios", whole, streams=2, bounds=False)
    search = make_search(graph, device, max_transitions=2000)
    found = search.run()
    found.validate(graph)
    assert found.stats["blocks_left"] == 1
    assert found.simulate(graph, device) == pytest.approx(found.makespan), "it must be measured"
    assert found.makespan <= 1.03 * full.makespan
    assert found.makespan < greedy.makespan
    assert several(list(device.asked)) == found.stats["stages_measured"]
    assert 4 * several(list(device.asked)) < several(list(whole.asked))


def test_divided_operators_in_blocks_too_large() -> None:
    graph, parts = divided(layered(40, 1, layer=8), random.Random(1))
    device = ContendedDevice(graph.num_ops)
    search = make_search(graph, device, parts=parts, max_transitions=300, max_measurements=60)
    found = search.run()
    found.validate(graph)
    assert found.stats["blocks_left"]
    assert found.stats["stages_measured"] <= 60
    assert found.simulate(graph, device) == pytest.approx(found.makespan)
    alone = [device.stage([(op,) for op in ops]) for ops in parts]
    assert found.makespan < sum(alone)


@pytest.mark.parametrize("option", ["max_measurements", "time_budget_s"])
def test_budgets_of_no_use(option: str) -> None:
    with pytest.raises(InputError, match=option):
        make_search(randwire(12, 1), ContendedDevice(12), **{option: -1})


def test_divided_operators_are_measured_whole_before_all_else() -> None:
    """A search that may measure no stage (`max_measurements=0`) still has a schedule, because it
    first measures all parts of each divided operator as one stage."""
    graph, parts = divided(layered(16, 1), random.Random(1))
    device = ContendedDevice(graph.num_ops)
    found = make_search(graph, device, parts=parts, max_measurements=0).run()
    assert len(found.stages) == len(parts)
    assert found.simulate(graph, device) == pytest.approx(found.makespan)
    assert found.stats["stages_measured"] == 0


# The next tests compile models and measure on this machine, not on a simulated device.


def test_compile_with_learned_latencies(tmp_path: Path) -> None:
    path = tmp_path / "latency.db"
    artifact = tvm_interop.compile(
        inception_like(), scheduler="ios", latency="learned", latency_db=path, streams=2,
        max_measurements=30, keep_slower=True,
    )  # fmt: skip
    assert artifact.schedule.scheduler == "ios"
    store = LatencyStore(path)
    on_two_streams = [r for r in store.records() if r.setting and r.setting.streams == 2]
    measured = several([r.groups for r in on_two_streams if r.groups is not None])
    whole = {name.partition("[")[0] for name in artifact.schedule.op_names if "[" in name}
    assert 0 < measured <= 30 + len(whole)
    # Both compilations use the same latencies, so they choose the same kernels.
    other = tvm_interop.compile(inception_like(), scheduler="sequential", latency_db=path)
    assert bits(artifact) == bits(other)


def test_a_second_search_learns_from_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_prices(monkeypatch)
    options = CompileOptions(streams=2, latency_db=tmp_path / "latency.db", parts=1)
    first = Compilation(inception_like(), options).search()
    first.run()
    assert first.rounds[0].samples == 0
    larger = Compilation(inception_like(size=10), options).search(max_measurements=5)
    larger.run()
    assert larger.rounds[0].samples >= first.rounds[-1].samples >= 24
    assert larger.rounds[0].error.stages > 0


def test_what_learned_latencies_are_not_for() -> None:
    compilation = Compilation(chain(), CompileOptions(latency_db=":memory:"))
    with pytest.raises(InputError, match="'guessed'"):
        compilation.schedule("ios", "guessed")  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match=r"no option `bounds`.*max_measurements"):
        compilation.schedule("ios", "learned", bounds=False)
