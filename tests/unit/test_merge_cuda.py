"""Tests operators that are merged for a GPU that this machine lacks."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

import tvm_interop
from tests.merging import MERGED, Eager, by_hand, fire, two_convs
from tests.unit.test_merge_products import QKV, attention
from tvm_interop import DeviceError, Schedule
from tvm_interop.cli.app import run_app
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.compiler.prices import named_prices
from tvm_interop.latency.measurement import Record, Setting, stage_key
from tvm_interop.measure.store import LatencyStore
from tvm_interop.measure.workloads import workload_hash

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
CONVS = ("one/Conv", "three/Conv")
GPU = "NVIDIA A40 sm_90"


def compilation(model: onnx.ModelProto | None = None, **options: Any) -> Compilation:
    made = CompileOptions("cuda", archs=["sm_90"], **{"latency_db": ":memory:", **options})
    return Compilation(model or two_convs(), made)


def merged_groups(made: Schedule) -> list[set[str]]:
    return [{made.op_names[op] for op in s.ops} for s in made.stages if s.kind == "merge"]


@pytest.mark.parametrize("scheduler", ["ios-merge", "ios-both"])
def test_convolutions_and_products_merge(scheduler: str) -> None:
    for model, names in ((two_convs(), CONVS), (attention(), QKV)):
        made = compilation(model)
        schedule = made.schedule(scheduler, Eager(made))
        (group,) = merged_groups(schedule)
        assert group <= set(names)
        home, realized = made.realized(schedule)
        plan = home.plan(realized)
        assert "+".join(sorted(group)) in [op.name for op in plan.operators]
        assert not group & {op.name for op in plan.operators}
        assert plan.devices == ("cuda:0",)


def test_libraries_run_the_merged_operator() -> None:
    made = compilation(providers=["cudnn"])
    home, _ = made.realized(by_hand(made, CONVS))
    assert {op.name: op.library for op in home.program.operators}[MERGED] == "cudnn"


@pytest.mark.parametrize("scheduler", ["ios-merge", "ios-both"])
def test_measuring_needs_a_gpu(scheduler: str) -> None:
    with pytest.raises(DeviceError, match=rf"`{scheduler}` needs latencies.* no CUDA here"):
        compilation().schedule(scheduler)


def test_a_data_sheet_prices_merged_operators() -> None:
    made = compilation(fire())
    schedule = made.schedule("ios-merge", "h100")
    assert merged_groups(schedule) == [{"c1/Conv", "c3/Conv"}]
    assert schedule.stats["prices"].startswith("the data sheet of `h100`")
    home, _ = made.realized(schedule)
    assert len(home.program.operators) == 1  # No operator cuts the merged output.
    price = named_prices("h100", home._lowered, made._store, None).latency.op(0)
    assert schedule.makespan == pytest.approx(price)


@needs_nvcc
def test_what_cannot_run_here_is_not_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "model.onnx", tmp_path / "model.tar"
    onnx.save(fire(), model)
    options = ["--target", "cuda", "--arch", "sm_90", "--scheduler", "ios-merge"]
    assert run_app(["compile", str(model), *options, "--latency", "h100", "-o", str(out)]) == 0
    said = "1 merged operator, not checked against the separate operators: "
    assert said in " ".join(capsys.readouterr().out.split())
    loaded = tvm_interop.load(out)
    assert [op.name for op in loaded.plan.operators] == ["c1/Conv+c3/Conv"]
    assert loaded.manifest.merge_check is not None
    assert loaded.manifest.merge_check.differences == {"c1/Conv+c3/Conv": None}


def fill(
    store: Path,
    made: Compilation,
    merged: Compilation,
    streams: int,
    row_us: float,
    version: str = "0.27",
) -> None:
    """Fill the database as if a GPU had measured a model, and its merged operator together with the
    operators that cut the output into parts (the cuts).

    Parameters
    ----------
    made, merged: the model before and after merging.
    streams: the number of streams on which the merged operator was measured.
    row_us: the latency of the merged operator and the cuts, in microseconds.
    version: the version of TVM with which the merged operator was measured.
    """

    def record(streams: int, row: Sequence[str], us: float, version: str = "0.27") -> Record:
        setting = Setting(
            device=GPU, driver="", cores=0, tvm_version=version, streams=streams, threads=1
        )
        key = stage_key(setting, False, [list(row), *([] for _ in range(streams - 1))])
        return Record(
            key=key, latency_us=us, samples=9, measured_at="", groups=(tuple(row),), setting=setting
        )

    def hashes(of: Compilation) -> list[str]:
        kernels = of._lowered.kernels.hashes
        return [workload_hash(op, kernels) for op in of.program.operators]

    records = [record(4, [digest], 50.0) for digest in set(hashes(made))]
    LatencyStore(store).put([*records, record(streams, hashes(merged), row_us, version)])


@pytest.mark.parametrize("streams", [1, 4])
def test_the_database_prices_merged_operators(tmp_path: Path, streams: int) -> None:
    made = compilation(fire())
    merged, _ = made.realized(by_hand(made, ("c1/Conv", "c3/Conv")))
    for us, groups in ((60.0, [{"c1/Conv", "c3/Conv"}]), (1000.0, [])):
        store = tmp_path / f"{us}.db"
        fill(store, made, merged, streams, us)
        schedule = compilation(fire(), latency_db=store).schedule("ios-merge", "database")
        assert merged_groups(schedule) == groups
        assert GPU in schedule.stats["prices"]


def test_another_version_of_tvm_does_not_count(tmp_path: Path) -> None:
    made = compilation(fire())
    merged, _ = made.realized(by_hand(made, ("c1/Conv", "c3/Conv")))
    fill(tmp_path / "latency.db", made, merged, 4, 60.0, "0.26")
    known = compilation(fire(), latency_db=tmp_path / "latency.db")
    assert merged_groups(known.schedule("ios-merge", "database")) == []


def test_what_was_never_measured_is_not_merged(tmp_path: Path) -> None:
    made = compilation(fire())
    fill(tmp_path / "latency.db", made, made, 4, 1.0)
    known = compilation(fire(), latency_db=tmp_path / "latency.db")
    assert merged_groups(known.schedule("ios-merge", "database")) == []
    prices = named_prices("database", known._lowered, known._store, None)
    _, rows = prices.price_alone(known.backend)(known.merges.alone([[0, 1]])[0])
    assert rows([[0]]) == [math.inf]


@pytest.mark.parametrize("merged_last", [False, True])
def test_a_merged_stage_stays_on_its_gpu(merged_last: bool) -> None:
    """A stage of one GPU may wait for a stage of another GPU that comes later in the list."""
    made = compilation(attention())
    merging = by_hand(made, QKV[1:])
    stages = [
        dataclasses.replace(
            stage,
            streams=(1,) * len(stage.groups) if stage.kind == "merge" else stage.streams,
            device=int(stage.kind == "merge"),
        )
        for stage in merging.stages
    ]
    if merged_last:
        stages.sort(key=lambda stage: stage.kind == "merge")
    home, realized = made.realized(dataclasses.replace(merging, stages=stages, streams=()))
    # An operator that cuts a merged output shares its stage with another operator.
    assert len(realized.stages) == len(home.graph.names) - 1
    plan = home.plan(realized)
    device_of = {op.name: plan.streams[op.stream].device for op in plan.operators}
    assert device_of["key/MatMul+value/MatMul"] == "cuda:1"
    assert device_of["query/MatMul"] == "cuda:0"
