"""Tests the GPU benchmark on the fake GPU, which computes nothing."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

import tvm_interop
from benchmarks import torch_gpu
from benchmarks.gpu import (
    CHECKED,
    FASTEST,
    FASTEST_SCHEDULERS,
    LIBRARIES,
    LIBRARY_PLAN,
    PREFERRING,
    SCHEDULERS,
    TORCH,
    Bench,
    main,
)
from benchmarks.gpu_bundle_models import add_network, repeat_weights
from benchmarks.gpu_flight import runs_per_s
from benchmarks.gpu_report import Report, earliest_us
from benchmarks.step_facts import DONE, MISSING, WRONG
from tests.fake_cuda import fake_gpu
from tests.library_cases import CASES, plan_of
from tests.nets import inception_like
from tvm_interop import OpGraph
from tvm_interop._native.timing import OperatorTiming
from tvm_interop.machine.gpu_traits import gpu_traits
from tvm_interop.plan.as_program import program_of
from tvm_interop.plan.check import read_plan
from tvm_interop.program.storage import dependencies

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scratch = tmp_path_factory.mktemp("bundle")
    onnx.save(inception_like(), scratch / "net.onnx")
    add_network(scratch / "net", str(scratch / "net.onnx"), ["sm_90"])
    return scratch / "net"


def test_every_schedule_is_checked_and_timed(folder: Path) -> None:
    report = Bench(folder, deadline=time.monotonic() + 600).run()
    assert set(report.median_us) == set(report.bits)
    assert {"sequential", "sequential, linked", *SCHEDULERS} <= set(report.median_us)
    # Nimble's schedule also runs with priorities, because it has several streams. Other schedulers
    # find that the kernels of the fake GPU are too short for a second stream.
    assert "nimble" + PREFERRING in report.median_us
    assert set(report.bits.values()) == {"same"}
    assert report.no_graph == {}
    assert report.stages_measured > 0
    on_fastest = {f"{name}, fastest kernels" for name in FASTEST_SCHEDULERS}
    assert {LIBRARIES, FASTEST, *on_fastest} <= set(report.median_us)
    assert report.kernels == {
        "tvm": report.operators
    }  # On the fake GPU all kernels take the same time.
    assert set(report.library_numbers) == {LIBRARIES, FASTEST}
    # The fake GPU computes nothing, so the benchmark must notice wrong numbers.
    assert report.numbers == "WRONG"
    assert report.first_wrong.startswith(f"operator 0 of {report.operators}, `")
    assert not report.is_right


def test_the_library_plan_has_kernels_of_libraries(folder: Path) -> None:
    """The plan with libraries is made without a GPU, so no kernels can be measured.

    Libraries then run all operators that they can run.
    """
    plan = read_plan((folder / LIBRARY_PLAN).read_bytes())
    assert {op.library for op in plan.operators} >= {"cudnn"}
    plain = tvm_interop.load(folder / "model.tar").plan
    assert {op.library for op in plain.operators} == {None}


def test_three_ways_to_run_are_checked_without_measuring(folder: Path) -> None:
    written: list[str] = []
    deadline = time.monotonic()
    bench = Bench(folder, deadline, write=lambda report: written.append(report.numbers))
    report = bench.check()
    ways = ("", ", uncaptured", ", linked")
    assert set(report.bits) == {s + w for s in ("sequential", *CHECKED) for w in ways}
    assert set(report.bits.values()) == {"same"}
    assert report.early_us["nimble"] == 0
    assert report.stages_measured == 0
    # The report is written after the check of numbers, and at the end.
    assert written == ["WRONG", "WRONG"]


def test_opara_gets_what_kernels_ask_and_opens_its_own_streams(folder: Path) -> None:
    bench = Bench(folder, deadline=time.monotonic())
    artifact = tvm_interop.load(folder / "model.tar")
    names = [op.name for op in artifact.plan.operators]
    graph = OpGraph.from_edges(names, dependencies(artifact.plan.values, artifact.plan.operators))
    traits = gpu_traits(program_of(artifact.plan, {}), artifact.manifest.gpu_kernels, "sm_90")
    assert all(found.kernels and found.demand for found in traits)
    made = tvm_interop.schedule(graph, "opara", traits=traits)
    bench.check()
    plan = bench._instances["opara"].plan
    assert [op.name for op in plan.operators] == [names[op] for op in made.launch_order or ()]
    assert len(plan.streams) == made.num_streams > graph.width


def test_an_artifact_without_demands_is_reported(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "net")
    artifact = tvm_interop.load(folder / "model.tar")
    older = msgspec.structs.replace(artifact.manifest, gpu_kernels={})
    replace(artifact, manifest=older).save(tmp_path / "net" / "model.tar")
    report = Bench(tmp_path / "net", deadline=time.monotonic()).check()
    assert [reason for reason in report.not_run if "resources that kernels need" in reason]


def test_an_operator_that_is_early_in_most_profiles_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The times of events are rounded, so in a single profile an operator may seem to start too
    early."""
    bench = Bench(folder, time.monotonic())
    bench.check()
    instance = bench._instances["nimble"]
    rows = instance.profile()
    op, waits = next(
        (op, planned.waits) for op, planned in enumerate(instance.plan.operators) if planned.waits
    )
    end = max(row.end_us for row in rows if row.op in waits)
    calls = itertools.count()

    def early_in(every: int) -> list[OperatorTiming]:
        is_early = next(calls) % every == 0
        return [
            row._replace(start_us=end - 0.5) if row.op == op and is_early else row for row in rows
        ]

    monkeypatch.setattr(instance, "profile", lambda: early_in(3))
    assert earliest_us(instance) == 0
    monkeypatch.setattr(instance, "profile", lambda: early_in(1))
    assert earliest_us(instance) == pytest.approx(0.5)


def test_a_search_that_takes_too_long_is_cut_short(folder: Path) -> None:
    report = Bench(folder, deadline=time.monotonic() + 600, ios_seconds=0).run()
    assert report.stages_refused > 0
    # Even when its time is over, IOS makes a schedule from the stages that were measured before.
    assert "ios" in report.median_us


def test_launches_and_runs_in_a_row_are_timed(folder: Path) -> None:
    report = Bench(folder, deadline=time.monotonic() - 1).run()
    assert set(report.launch_us) == set(report.back_to_back_us) == set(report.bits)
    assert all(us > 0 for us in report.launch_us.values())


def test_instances_in_flight_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.FLIGHT_SECONDS", 0.05)
    report = Bench(folder, deadline=time.monotonic() + 600).fly()
    assert set(report.runs_per_s) == {"sequential", "nimble"}
    for rates in report.runs_per_s.values():
        assert list(rates) == [1, 2, 4, 8]
        assert all(rate > 0 for rate in rates.values())


def test_an_instance_that_fails_in_flight_fails_the_count(folder: Path) -> None:
    bench = Bench(folder, deadline=time.monotonic())
    bench._add("sequential", bench._artifact.plan)
    fake_gpu.fail_next("cudaGraphLaunch", 2)
    with pytest.raises(tvm_interop.TVMInteropError):
        runs_per_s([bench._instances["sequential"]], 0.05)


def test_the_algorithms_of_libraries_are_reported(folder: Path) -> None:
    bench = Bench(folder, deadline=time.monotonic())
    bench._artifact = replace(bench._artifact, weights={})
    for case in ("bias", "matmul"):
        bench._add(case, plan_of(CASES[case]))
    (conv,), (product,) = (told.values() for told in bench.report.implementations.values())
    assert conv.startswith("algorithm ")
    assert "cuBLASLt's choice" in product


def test_libraries_that_are_missing_are_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.library_version", lambda name: None)
    monkeypatch.setattr("benchmarks.gpu.why_missing", lambda name: "nobody installed it")
    report = Bench(folder, deadline=time.monotonic() - 1).run()
    assert {LIBRARIES, FASTEST}.isdisjoint(report.median_us)
    for name in ("cudnn", "cublaslt"):
        assert f"kernels of {name}: nobody installed it" in report.not_run


def test_what_is_not_run_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Bench(folder, deadline=time.monotonic() - 1).run()
    missing = [f"{name}: out of time" for name in SCHEDULERS]
    missing += [f"{name}, fastest kernels: out of time" for name in FASTEST_SCHEDULERS]
    missing += [f"{name}: {torch_gpu.why_not()}" for name in TORCH]
    assert report.not_run == missing
    printed = capsys.readouterr().out
    assert all(f"  not run: {line}" in printed for line in missing)
    assert not Report("net").is_right


@pytest.fixture
def torch_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the benchmark run PyTorch on the host, in place of a GPU. Each run takes one second."""
    pytest.importorskip("torch")

    class OnHost(torch_gpu.TorchRunner):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, device="cpu")

        def time(self) -> float:
            return 1.0

    monkeypatch.setattr(torch_gpu, "why_not", lambda: "")
    monkeypatch.setattr(torch_gpu, "TorchRunner", OnHost)


def test_pytorch_beside_us(folder: Path, torch_on_the_host: None) -> None:
    report = Bench(folder, deadline=time.monotonic() - 1).run()
    assert report.median_us["PyTorch eager"] == 1e6
    assert 0 <= report.peer_errors["PyTorch eager"] <= 1
    # PyTorch cannot capture a graph on the host. The report says so, and the rest is timed.
    assert "PyTorch CUDA graph" not in report.median_us
    assert any(line.startswith("PyTorch CUDA graph: ") for line in report.not_run)


def test_a_peer_with_other_numbers_is_not_timed(
    folder: Path, torch_on_the_host: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(twin: Any, inputs: Any) -> torch_gpu.Call:
        return lambda: [2 * y for y in twin(*inputs)]

    monkeypatch.setitem(TORCH, "PyTorch eager", wrong)
    report = Bench(folder, deadline=time.monotonic() - 1).run()
    assert "PyTorch eager" not in report.median_us
    assert any(line.startswith("PyTorch eager: WRONG") for line in report.not_run)


def test_the_compiled_peer_comes_last(
    folder: Path, torch_on_the_host: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_gpu, "compiled", torch_gpu.eager)
    report = Report("net")
    Bench(folder, time.monotonic() + 600, report).run_compiled()
    assert report.compiled_us["torch.compile"] == 1e6
    assert report.compiled_us["sequential"] > 0


@pytest.mark.parametrize(("part", "code"), [("check", WRONG), ("time", WRONG), ("flight", DONE)])
def test_the_script(
    part: str, code: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "gpu.json"
    monkeypatch.setattr("benchmarks.gpu.FLIGHT_SECONDS", 0.01)
    arguments = [part, str(folder), "--out", str(out), "--seconds", "5"]
    monkeypatch.setattr("sys.argv", ["gpu.py", *arguments])
    assert main() == code  # The numbers of the fake GPU are wrong.
    found = json.loads(out.read_text())
    assert found["network"] == "net"
    assert bool(found["wrong"]) == (code == WRONG)


def test_the_script_says_what_torch_compile_lacks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "gpu.json"
    monkeypatch.setattr("sys.argv", ["gpu.py", "compile", str(folder), "--out", str(out)])
    monkeypatch.setattr(torch_gpu, "why_not", lambda: "nobody installed it")
    assert main() == MISSING
    assert json.loads(out.read_text())["missing"] == ["torch.compile: nobody installed it"]


def test_weights_repeat_and_keep_their_spread() -> None:
    model = inception_like(channels=64)
    spreads = {i.name: onnx.numpy_helper.to_array(i).std() for i in model.graph.initializer}
    repeat_weights(model)
    changed = [onnx.numpy_helper.to_array(i) for i in model.graph.initializer]
    long = [(i.name, w) for i, w in zip(model.graph.initializer, changed, strict=True)]
    long = [(name, w.ravel()) for name, w in long if w.size > 2 * 4093]
    assert long
    for name, weight in long:
        np.testing.assert_array_equal(weight[:4093], weight[4093 : 2 * 4093])
        assert weight.std() == pytest.approx(spreads[name], rel=0.1)
