"""Tests measured latencies of stages, and the file that keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.nets import inception_like
from tests.prices import START_US, GivenTimer
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.kernels.build import kernel_hashes
from tvm_interop.latency.estimate import Estimate
from tvm_interop.measure import measured
from tvm_interop.measure.cpu_timer import CpuStageTimer
from tvm_interop.measure.measured import MeasuredLatency
from tvm_interop.measure.repeats import REPEATS, Measure
from tvm_interop.measure.stage_timer import Streams
from tvm_interop.measure.store import LatencyStore


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    options = CompileOptions(streams=2, latency_db=":memory:", providers=["tvm"])
    return Compilation(inception_like(), options)


def latency(compilation: Compilation, store: LatencyStore | None = None) -> MeasuredLatency:
    return MeasuredLatency(
        compilation.program,
        kernel_hashes(compilation.program.kernels),
        CpuStageTimer(compilation.program, compilation.loaded_kernels, streams=2),
        store=store,
    )


def priced(
    compilation: Compilation, us: list[float], store: LatencyStore | None = None
) -> MeasuredLatency:
    """A latency model with the given latencies of operators, which tests may change."""
    hashes = kernel_hashes(compilation.program.kernels)
    timer = GivenTimer(lambda op: us[op], 2)
    return MeasuredLatency(compilation.program, hashes, timer, store=store)


def heaviest(compilation: Compilation) -> tuple[int, int]:
    """Two of the slowest operators, with different kernels."""
    model = compilation.measured_latency
    order = sorted(range(compilation.graph.num_ops), key=model.op, reverse=True)
    kernels = [compilation.program.operators[i].kernel for i in order]
    second = next(i for i, kernel in enumerate(kernels) if kernel != kernels[0])
    return order[0], order[second]


def test_latencies_are_microseconds_without_the_start_of_a_run(compilation: Compilation) -> None:
    us = [10.0 + 3 * op for op in range(compilation.graph.num_ops)]
    model = priced(compilation, us)
    a, b = heaviest(compilation)
    # Operators with equal kernels share the latency that is given for the first of them.
    assert model.stage([[a]]) == pytest.approx(us[a])
    assert model.stage([[b]]) == pytest.approx(us[b])
    assert model.stage([[a, b]]) == pytest.approx(us[a] + us[b])
    assert model.stage([[a], [b]]) == pytest.approx(max(us[a], us[b]))


def test_no_latency_is_zero() -> None:
    """Callers divide by latencies, so a latency must not be 0.

    A latency is the time of a run minus the time of an empty stage. Here the run is the shorter of
    the two.
    """
    assert Estimate.of_runs([1e-6, 1e-6], start_us=50.0).latency_us > 0


def test_equal_kernels_share_a_measurement(compilation: Compilation) -> None:
    by_kernel: dict[str, list[int]] = {}
    for i, op in enumerate(compilation.program.operators):
        by_kernel.setdefault(op.kernel, []).append(i)
    twins = next(ops for ops in by_kernel.values() if len(ops) > 1)
    model = latency(compilation)
    assert model.stage([[twins[0]]]) == model.stage([[twins[1]]])
    assert model.measured == 1


def test_more_groups_than_streams_are_packed(compilation: Compilation) -> None:
    a, b = heaviest(compilation)
    kernels = [op.kernel for op in compilation.program.operators]
    # Operators with equal kernels share a measurement, so latencies are given by kernel.
    of_kernel = {kernels[a]: 20.0, kernels[b]: 10.0}
    model = priced(compilation, [of_kernel.get(kernel, 1.0) for kernel in kernels])
    # Each of the two streams gets one heavy and one light group.
    assert model.stage([[a], [b], [a], [b]]) == model.stage([[a, b], [a, b]]) == pytest.approx(30)


def test_a_second_run_measures_nothing(compilation: Compilation, tmp_path: Path) -> None:
    path = tmp_path / "latency.db"
    first = latency(compilation, LatencyStore(path))
    a, b = heaviest(compilation)
    stages = [[[a]], [[b]], [[a], [b]], [[a, b]]]
    prices = first.stages(stages)
    assert first.measured == len(stages)
    second = latency(compilation, LatencyStore(path))
    np.testing.assert_array_equal(second.stages(stages), prices)
    assert second.measured == 0


def test_only_what_comes_near_is_measured(compilation: Compilation) -> None:
    a, b = heaviest(compilation)
    model = latency(compilation)
    assert model.take_longer([a, b], [1e9, 1e-6]) == [False, True]
    # One run shows that `b` takes longer than 1e-6 us. No run is needed to see that `a` takes less
    # than 1e9 us.
    assert model.measured == 1
    known = float(model.stages([[[a]]])[0])
    assert model.take_longer([a, b], [1e9, 1e-6]) == [False, True]
    assert model.take_longer([a], [0.9 * known]) == [True]
    assert model.measured == 1


def test_one_run_shows_that_an_operator_does_not_come_near(compilation: Compilation) -> None:
    a, b = heaviest(compilation)
    model = latency(compilation)
    assert model.near([a, b], [1e9, 1e-6]) == [a]
    assert model.measured == 0


def test_a_rough_latency_takes_two_runs(compilation: Compilation) -> None:
    asked: list[int] = []

    def slower_at_first(op: int) -> float:
        asked.append(op)
        return 3000.0 if asked.count(op) == 1 else 10.0

    hashes = kernel_hashes(compilation.program.kernels)
    model = MeasuredLatency(compilation.program, hashes, GivenTimer(slower_at_first, 2))
    op, other = heaviest(compilation)
    with_start_us = [pytest.approx(15.0)]
    assert model.rough_us([op]) == with_start_us
    assert model.rough_us([op]) == with_start_us
    assert (asked, model.measured) == ([op, op], 0)
    assert model.near([op], [20.0]) == [op]
    known = model.stage([[other]])
    asked.clear()
    assert model.rough_us([other]) == [known]
    assert asked == []


def test_a_run_that_the_machine_held_up_does_not_decide(compilation: Compilation) -> None:
    asked: list[int] = []

    def held_up_once(op: int) -> float:
        asked.append(op)
        return 3000.0 if asked.count(op) == 1 else 10.0

    hashes = kernel_hashes(compilation.program.kernels)
    model = MeasuredLatency(compilation.program, hashes, GivenTimer(held_up_once, 2))
    op, _ = heaviest(compilation)
    assert model.take_longer([op], [20.0]) == [False]


class _OneCoreAtFirst(GivenTimer):
    """The first time that a stage of two streams is measured, both streams share a core."""

    def __init__(self, us: float, again_us: float) -> None:
        super().__init__(lambda op: us, 2)
        self._first_us, self._again_us, self.measured = 2 * us, again_us, 0

    def _rounds(self, stages: Sequence[Streams]) -> Measure:
        alone = super()._rounds(stages)
        both = {i for i, streams in enumerate(stages) if all(streams)}
        self.measured += len(both)
        us = self._first_us if self.measured <= 1 else self._again_us

        def measure(indices: Sequence[int], repeats: int) -> list[list[float]]:
            times = [list(row) for row in alone(indices, repeats)]
            return [
                [us * 1e-6 + START_US * 1e-6] * repeats if i in both else row
                for i, row in zip(indices, times, strict=True)
            ]

        return measure


@pytest.mark.parametrize(("again_us", "us"), [(110.0, 110.0), (250.0, 200.0)])
def test_streams_that_shared_a_core_are_measured_again(
    compilation: Compilation, again_us: float, us: float
) -> None:
    """A stage whose streams shared a core is measured again. The shorter of its two times counts,
    in this process and in later ones."""
    timer, store = _OneCoreAtFirst(100.0, again_us), LatencyStore(":memory:")
    hashes = kernel_hashes(compilation.program.kernels)
    model = MeasuredLatency(compilation.program, hashes, timer, store=store)
    a, b = heaviest(compilation)
    assert model.op(a) == pytest.approx(100)
    assert model.stage([[a], [b]]) == pytest.approx(us)
    assert timer.measured == 2
    later = MeasuredLatency(compilation.program, hashes, timer, store=store)
    assert later.stage([[a], [b]]) == pytest.approx(us)
    assert timer.measured == 2


class _OneCoreForAWhile(GivenTimer):
    """Two streams share a core while the clock is between two given times."""

    def __init__(self, us: float, clock: list[float], begins: float, ends: float) -> None:
        super().__init__(lambda op: us, 2)
        self._clock, self._begins, self._ends = clock, begins, ends

    def _rounds(self, stages: Sequence[Streams]) -> Measure:
        alone = super()._rounds(stages)
        shares = self._begins <= self._clock[0] < self._ends

        def measure(indices: Sequence[int], repeats: int) -> list[list[float]]:
            return [
                [us * (2 if shares and all(stages[i]) else 1) for us in row]
                for i, row in zip(indices, alone(indices, repeats), strict=True)
            ]

        return measure


@pytest.mark.parametrize(("ends", "us"), [(11.6, 500.0), (100.0, 1000.0)])
def test_a_stretch_on_one_core_is_waited_for(
    compilation: Compilation, monkeypatch: pytest.MonkeyPatch, ends: float, us: float
) -> None:
    """The timer repeats a stage that ran well earlier, until each stream has a core again."""
    clock = [0.0]
    monkeypatch.setattr(measured.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(
        measured.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds)
    )
    timer = _OneCoreForAWhile(500.0, clock, 10.0, ends)
    model = MeasuredLatency(compilation.program, kernel_hashes(compilation.program.kernels), timer)
    a, b = heaviest(compilation)
    model.op(a)
    model.stage([[a], [b]])  # Both groups have a core of their own.
    assert clock[0] == 0.0
    clock[0] = 11.0
    c = next(op for op in range(len(compilation.program.operators)) if op not in (a, b))
    assert model.stage([[a], [c]]) == pytest.approx(us, rel=0.05)
    assert clock[0] == pytest.approx(11.75 if ends < 20 else 16.0)
    if ends > 20:
        assert model.stage([[b], [c]]) == pytest.approx(us, rel=0.05)
        assert clock[0] == pytest.approx(16.0), "the timer has waited as long as it may"


def test_stages_that_do_not_seem_held_up_are_measured_once(compilation: Compilation) -> None:
    timer = _OneCoreAtFirst(100.0, 110.0)
    timer._first_us = 140.0
    model = MeasuredLatency(compilation.program, kernel_hashes(compilation.program.kernels), timer)
    a, b = heaviest(compilation)
    model.op(a)
    assert model.stage([[a], [b]]) == pytest.approx(140)
    assert timer.measured == 1


def test_other_settings_are_other_latencies(compilation: Compilation, tmp_path: Path) -> None:
    from tvm_interop.kernels.build import kernel_hashes

    store = LatencyStore(tmp_path / "latency.db")
    latency(compilation, store).stage([[0]])
    other = MeasuredLatency(
        compilation.program,
        kernel_hashes(compilation.program.kernels),
        CpuStageTimer(compilation.program, compilation.loaded_kernels, streams=1),
        store=store,
    )
    other.stage([[0]])
    assert other.measured == 1


def test_progress_is_told(compilation: Compilation) -> None:
    seen: list[tuple[int, int]] = []
    model = latency(compilation)
    model._progress = lambda done, total: seen.append((done, total))
    model.stages([[[i]] for i in range(3)])
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1] > 0


def test_an_interrupted_search_keeps_what_it_measured(
    compilation: Compilation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuStageTimer, "stages_per_job", 4)
    path = tmp_path / "latency.db"
    model = latency(compilation, LatencyStore(path))
    n = compilation.graph.num_ops
    stages = [[[i], [j]] for i in range(n) for j in range(i)][:60]

    def interrupt(done: int, total: int) -> None:
        if 0 < done < total:
            raise KeyboardInterrupt

    model._progress = interrupt
    with pytest.raises(KeyboardInterrupt):
        model.stages(stages)
    assert model.measured > 0
    resumed = latency(compilation, LatencyStore(path))
    resumed.stages(stages)
    fresh = latency(compilation)
    fresh.stages(stages)
    assert resumed.measured == fresh.measured - model.measured


def test_records_say_what_was_measured(compilation: Compilation) -> None:
    store = LatencyStore(":memory:")
    model = latency(compilation, store)
    a, b = heaviest(compilation)
    price = model.stage([[a, b], [a]])
    (record,) = store.records()
    assert record.latency_us == price
    assert 1 <= record.samples <= REPEATS[-1]
    assert (record.spread_us is None) == (record.samples == 1)
    assert record.setting is not None
    assert (record.setting.streams, record.setting.threads) == (2, 1)
    workloads = store.workloads()
    assert record.groups is not None
    assert sorted(map(len, record.groups)) == [1, 2]
    assert {h for group in record.groups for h in group} == set(workloads)
    operator = compilation.program.operators[a]
    values = [compilation.program.values[v] for v in (*operator.inputs, *operator.outputs)]
    arguments = tuple((value.dtype, value.shape) for value in values)
    (described,) = (w for w in workloads.values() if w.arguments == arguments)
    assert described.flops > 0
    assert described.parallel_extent == np.prod(values[-1].shape)
    assert described.nbytes == sum(value.nbytes for value in values)


def test_what_is_known_without_measuring(compilation: Compilation, tmp_path: Path) -> None:
    path = tmp_path / "latency.db"
    model = latency(compilation, LatencyStore(path))
    a, b = heaviest(compilation)
    price = model.stage([[a], [b]])
    model.op(0)
    again = latency(compilation, LatencyStore(path))
    known = again.known([[[a], [b]], [[a, b], [a, b]]])
    assert again.measured == 0
    assert known[0] == price
    assert np.isnan(known[1])


def test_stages_are_measured_again_by_runs_of_their_own(compilation: Compilation) -> None:
    store = LatencyStore(":memory:")
    a, b = heaviest(compilation)
    us = [10.0] * compilation.graph.num_ops
    model = priced(compilation, us, store)
    stages = [[[a]], [[a], [b]]]
    before = model.stages(stages)
    first = {record.key: record for record in store.records()}
    sure, other = model.keys(stages)
    doubtful = msgspec.structs.replace(first[other], spread_us=first[other].latency_us)
    store.put([msgspec.structs.replace(first[sure], spread_us=0.0), doubtful])
    us[b] = 30.0
    # Only the latency with a large spread is measured again.
    assert model.measure_again(stages) == 1
    after = model.stages(stages)
    np.testing.assert_allclose(after, [before[0], 30.0])
    both = store.estimates([other])[other]
    assert both.samples > first[other].samples
    runs = both.samples - first[other].samples
    weighed = (first[other].samples * before[1] + runs * after[1]) / both.samples
    assert both.latency_us == pytest.approx(weighed)


def test_records_without_a_spread_are_measured_again(compilation: Compilation) -> None:
    """The records of an older version have no spread, so they cannot be trusted."""
    store = LatencyStore(":memory:")
    model = latency(compilation, store)
    model.stages([[[0]]])
    (record,) = store.records()
    store.put([msgspec.structs.replace(record, spread_us=None, samples=0)])
    again = latency(compilation, store)
    assert again.stage([[0]]) == record.latency_us
    assert again.measured == 0
    assert again.measure_again([[[0]]]) == 1
    assert 1 <= store.records()[0].samples <= REPEATS[-1]


def test_what_a_wait_costs_is_kept(compilation: Compilation) -> None:
    store = LatencyStore(":memory:")
    model = latency(compilation, store)
    assert model.known_wait_us() is None
    cost_us = model.wait_us()
    assert 0 <= cost_us < 1e5
    assert model.known_wait_us() == cost_us
    assert latency(compilation, store).known_wait_us() == cost_us
    # The cost of a wait is not a stage, so it is not used for learning.
    assert [record.samples for record in store.records() if record.key.startswith("wait:")] == [1]


def test_known_latencies_are_looked_up_without_measuring(compilation: Compilation) -> None:
    model = latency(compilation, LatencyStore(":memory:"))
    assert np.isnan(model.known([[[0]], [[0], [1]]])).all()
    assert model.measured == 0
