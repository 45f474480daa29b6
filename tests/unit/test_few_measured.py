"""Tests schedulers other than IOS with learned latencies.

Some latencies are measured, the others predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_interop
from tests.contended_device import SETTING, ContendedDevice
from tests.graphs import layered, randwire
from tests.nets import chain, inception_like
from tests.output_bits import bits
from tests.prices import give_prices
from tvm_interop import InputError, OpGraph, ScheduleError
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.errors import LatencyError, OutOfTimeError
from tvm_interop.latency.ensemble import TreeEnsemble
from tvm_interop.latency.learned_operators import LearnedOperators
from tvm_interop.measure.few_measured import FewMeasured
from tvm_interop.measure.few_search import Limits, search_with_few
from tvm_interop.measure.store import LatencyStore
from tvm_interop.scheduling import Schedule, schedule

pytest.importorskip("xgboost", reason="xgboost is not installed (extra `learned`)")


def few_of(device: ContendedDevice, graph: OpGraph, **options: Any) -> FewMeasured:
    return FewMeasured(device.workloads[: graph.num_ops], SETTING, device, **options)


def found_by(
    name: str, graph: OpGraph, device: ContendedDevice, limits: Limits | None = None, **options: Any
) -> Schedule:
    few = few_of(device, graph, transfers=dict.fromkeys(graph.edges, 3.0))
    return search_with_few(
        lambda model: schedule(graph, name, model, **options), graph, few, limits
    )


def several(stages: Sequence[Sequence[Sequence[int]]]) -> int:
    return sum(1 for groups in stages if sum(map(len, groups)) > 1)


class Copying(ContendedDevice):
    """A device whose copies between GPUs take 3 microseconds."""

    def transfer(self, u: int, v: int) -> float:
        return 3.0


def test_lios_plus_measures_some_operators_and_is_nearly_as_good() -> None:
    graph = layered(150, 1)
    device, everything = ContendedDevice(150), ContendedDevice(150)
    full = schedule(graph, "lios+", everything, streams=3)
    found = found_by("lios+", graph, device, streams=3)
    assert several(list(device.asked)) == 0
    assert 0 < len(device.asked) < 100
    assert found.stats["operators_measured"] == len(device.asked)
    assert found.stats["operators_in_all"] == 150
    assert found.stats["mape"] < 0.5
    assert found.simulate(graph, everything) <= 1.05 * full.simulate(graph, everything)


@pytest.mark.parametrize("options", [{"gpus": 1}, {"gpus": 2}])
def test_multi_gpu_measures_few_stages_and_is_nearly_as_good(options: dict[str, Any]) -> None:
    graph = randwire(20, 3)
    device, everything = Copying(20), Copying(20)
    full = schedule(graph, "multi-gpu", everything, streams=2, **options)
    found = found_by("multi-gpu", graph, device, streams=2, **options)
    found.validate(graph)
    assert found.stats["stages_measured"] == several(list(device.asked))
    assert several(list(device.asked)) <= several(list(everything.asked)) / 2
    assert full.makespan is not None
    assert found.simulate(graph, everything) <= 1.03 * full.makespan
    assert found.simulate(graph, everything) == pytest.approx(found.makespan), "measured"


def test_a_stage_that_only_seems_good_is_measured_before_it_ships() -> None:
    """`greedy` puts operators into a stage without asking how long the stage takes. So the
    stages of its schedule are measured before the schedule is returned."""
    graph, device = randwire(20, 3), ContendedDevice(20)
    found = found_by("greedy", graph, device, streams=2)
    stages = [stage for stage in found.concurrent_stages(graph) if sum(map(len, stage)) > 1]
    assert not np.isnan(device.known(stages)).any()
    assert found.makespan == pytest.approx(found.simulate(graph, device))


@pytest.mark.parametrize("most", [0, 1, 5])
def test_at_most_so_many_stages(most: int) -> None:
    graph, device = randwire(20, 3), Copying(20)
    found = found_by("multi-gpu", graph, device, Limits(max_measurements=most), gpus=1, streams=2)
    found.validate(graph)
    assert several(list(device.asked)) == most == found.stats["stages_measured"]


def test_no_round_after_the_time_budget() -> None:
    graph, device = layered(60, 1), ContendedDevice(60)
    found = found_by("lios+", graph, device, Limits(time_budget_s=0.0), streams=2)
    assert found.stats["rounds"] == 0
    assert not device.asked


class OutOfTime(ContendedDevice):
    """A device whose time budget is spent after some measurements."""

    def __init__(self, num_ops: int, left: int) -> None:
        super().__init__(num_ops)
        self.left = left

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
        self.left -= int(np.isnan(self.known(stages)).sum())
        if self.left < 0:
            raise OutOfTimeError("the time budget is spent")
        return super().stages(stages)


@pytest.mark.parametrize(("name", "left"), [("lios+", 12), ("greedy", 50)])
def test_the_time_is_over_in_the_search(name: str, left: int) -> None:
    graph, device = layered(40, 1), OutOfTime(40, left)
    found = found_by(name, graph, device, streams=2)
    found.validate(graph)
    assert found.stats["budget_used_up"]
    assert device.left < 0
    whole = found_by(name, graph, ContendedDevice(40), streams=2)
    assert not whole.stats["budget_used_up"]


def test_the_time_is_over_before_the_operators_are_measured() -> None:
    with pytest.raises(OutOfTimeError):
        found_by("greedy", layered(40, 1), OutOfTime(40, 30), streams=2)


@pytest.mark.parametrize("name", ["sequential", "nimble"])
def test_a_scheduler_that_asks_for_nothing_measures_nothing(name: str) -> None:
    graph, device = randwire(20, 3), ContendedDevice(20)

    def run(model: FewMeasured) -> Schedule:
        return schedule(graph, name, None)

    found = search_with_few(run, graph, few_of(device, graph))
    found.validate(graph)
    assert not device.asked


@pytest.mark.parametrize("limit", ["max_measurements", "time_budget_s"])
def test_limits_of_no_use(limit: str) -> None:
    for wrong in (-1, math.nan, "many"):
        with pytest.raises(InputError, match=f"`{limit}` must be 0 or more, got {wrong!r}"):
            Limits(**{limit: wrong})


def test_a_prediction_never_says_that_operators_run_free() -> None:
    """If predictions said that a stage of several operators takes no longer than one operator,
    schedulers would put any operators side by side."""
    device = ContendedDevice(6)
    few = few_of(device, OpGraph.from_edges(6, []))
    for groups in ([[0], [1]], [[2, 3], [4]]):
        longest = max(sum(map(device.op, group)) for group in groups)
        assert few.stage(groups) > longest * (1 + 1e-9)
    assert several(list(device.asked)) == 0


def test_copies_need_a_link() -> None:
    few = few_of(ContendedDevice(4), OpGraph.from_edges(4, [(0, 1)]))
    with pytest.raises(LatencyError, match="bandwidth of the link"):
        few.transfer(0, 1)


# The next tests are about `LearnedOperators`, which predicts latencies of single operators.


def test_operators_of_another_device_need_few_of_this_one() -> None:
    """100 operators were measured on another device. All operators take three times as long here.
    Measuring four operators here is enough to learn this factor."""
    device = ContendedDevice(120)
    us = np.array([device.op(i) for i in range(120)])
    learned = LearnedOperators(SETTING)
    learned.observe_elsewhere([SETTING] * 100, device.workloads[:100], us[:100] / 3)
    unseen = device.workloads[100:]
    before = np.median(np.abs(learned.predict(unseen).us / us[100:] - 1))
    learned.observe(device.workloads[:4], us[:4])
    after = np.median(np.abs(learned.predict(unseen).us / us[100:] - 1))
    assert before > 0.5
    assert after < 0.15


def test_more_operators_make_it_better() -> None:
    device = ContendedDevice(200)
    us = np.array([device.op(i) for i in range(200)])
    errors = []
    for count in (4, 100):
        learned = LearnedOperators(SETTING)
        learned.observe(device.workloads[:count], us[:count])
        found = learned.predict(device.workloads[100:])
        assert (found.us > 0).all()
        assert (found.spread > 0).all()
        errors.append(np.median(np.abs(found.us / us[100:] - 1)))
    assert errors[1] < 0.5 * errors[0]


def test_operators_without_samples() -> None:
    with pytest.raises(LatencyError, match="no samples yet"):
        LearnedOperators(SETTING).predict(ContendedDevice(1).workloads)


def test_trees_learn_and_predict_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search predicts only a few stages at a time. With so little work, several threads would
    mostly wait for each other."""
    import xgboost

    made, threads = xgboost.DMatrix, []

    def noted(*args: Any, **options: Any) -> Any:
        threads.append(options.get("nthread"))
        return made(*args, **options)

    monkeypatch.setattr(xgboost, "DMatrix", noted)
    ensemble = TreeEnsemble()
    ensemble.add(np.arange(40, dtype=np.float32).reshape(20, 2), np.arange(20.0))
    ensemble.predict(np.ones((1, 2), np.float32))
    assert threads
    assert set(threads) == {1}


# The next tests compile models and measure on this machine, not on a simulated device.


def compiled(scheduler: str, path: Path | str, **options: Any) -> tvm_interop.Artifact:
    return tvm_interop.compile(
        inception_like(), scheduler=scheduler, latency="learned", latency_db=path, streams=2,
        keep_slower=True, providers=("tvm",), **options,
    )  # fmt: skip


def measured_in(path: Path) -> int:
    records = LatencyStore(path).records()
    return several([r.groups for r in records if r.setting and r.groups is not None])


@pytest.mark.parametrize("scheduler", ["lios+", "greedy", "multi-gpu", "auto"])
def test_compile_with_learned_latencies(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_prices(monkeypatch)
    path = tmp_path / "latency.db"
    artifact = compiled(scheduler, path, max_measurements=6)
    assert artifact.schedule.scheduler == scheduler
    stats = artifact.schedule.stats
    whole = {name.partition("[")[0] for name in artifact.schedule.op_names if "[" in name}
    assert measured_in(path) <= 6 + len(whole)
    assert stats["stages_measured"] <= 6
    if scheduler == "lios+":
        assert measured_in(path) == 0
        assert stats["operators_measured"] > 0
    other = tvm_interop.compile(
        inception_like(), scheduler="sequential", latency_db=path, providers=("tvm",)
    )
    assert bits(artifact) == bits(other)


def test_a_second_model_learns_from_the_operators_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_prices(monkeypatch)
    options = CompileOptions(
        streams=2, latency_db=tmp_path / "latency.db", parts=1, providers=("tvm",)
    )
    first = Compilation(inception_like(), options).schedule("lios+", "learned")
    assert first.stats["mape"] is None or math.isfinite(first.stats["mape"])
    larger = Compilation(inception_like(size=10), options).schedule(
        "lios+", "learned", time_budget_s=0
    )
    assert larger.stats["operators_measured"] == 0
    assert larger.makespan is not None
    assert larger.makespan > 0


def test_what_cannot_be_learned() -> None:
    compilation = Compilation(chain(), CompileOptions(latency_db=":memory:", parts=1))
    with pytest.raises(InputError, match="`ios-both` merges operators"):
        compilation.schedule("ios-both", "learned")
    with pytest.raises(ScheduleError, match="no option `wait`"):
        compilation.schedule("lios+", "learned", wait=1)
    with pytest.raises(ScheduleError, match="`seed` is -1"):
        compilation.schedule("lios+", "learned", seed=-1)
