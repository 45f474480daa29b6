"""Tests kernels that MetaSchedule tunes: the search, its records, and compiled models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import helper, numpy_helper
from tvm import s_tir, te
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.database import TuningRecord
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply

import tvm_interop
from tvm_interop.cli import tune_kernels
from tvm_interop.cli.app import run_app
from tvm_interop.compiler import kernel_tuning
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.compiler.kernel_tuning import KernelTuning
from tvm_interop.errors import InputError
from tvm_interop.kernels.build import divisible_kernels, kernel_hash, kernel_hashes
from tvm_interop.kernels.cpu_schedule import schedule_kernel
from tvm_interop.kernels.tuned_schedule import tuned_kernel
from tvm_interop.kernels.tuning_records import Comparison, TuningRecords, as_workload
from tvm_interop.machine.cpu_features import vector_registers

ON_TVM = CompileOptions(providers=("tvm",), latency_db=":memory:", streams=2, threads=1)


def net(channels: int = 8) -> onnx.ModelProto:
    """A model with two kernels: a convolution with ReLU, and a transposition."""
    weight = np.random.default_rng(0).standard_normal((channels, 4, 3, 3)).astype(np.float32)
    return helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
                helper.make_node("Relu", ["c"], ["r"], "relu"),
                helper.make_node("Transpose", ["r"], ["y"], "turned", perm=[0, 2, 3, 1]),
            ],
            "net",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4, 12, 12])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 12, 12, channels])],
            [numpy_helper.from_array(weight, "w")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    return Compilation(net(), ON_TVM)


def conv_of(compilation: Compilation) -> Any:
    name = next(op.kernel for op in compilation.program.operators if "conv" in op.name)
    return compilation.module[name]


def by_hand(compilation: Compilation, folder: Path, parallel_padding: bool = False) -> Any:
    """Record a schedule of the convolution's loops, as if the search had found it, and return the
    kernel. The schedule computes each tile in a buffer of its own."""
    conv = conv_of(compilation)
    records = TuningRecords.made(folder, compilation.target)
    schedule = s_tir.Schedule(as_workload(conv))
    pad, sums, *after = schedule.get_child_blocks(schedule.get_sblock("root"))
    for block in after[:-1]:
        schedule.compute_inline(block)
    rows = schedule.get_loops(after[-1])
    fused = schedule.fuse(*rows[:2])
    schedule.parallel(fused)
    schedule.compute_at(sums, fused)
    if parallel_padding:
        schedule.parallel(schedule.get_loops(pad)[1])
    else:
        schedule.compute_inline(pad)
    workload = records.database.commit_workload(as_workload(conv))
    record = TuningRecord(schedule.trace, workload, [1e-6], compilation.target)
    records.add(record)
    return tuned_kernel(conv, record)


def judge(compilation: Compilation, folder: Path, tuned: Any, tuned_us: float) -> None:
    """Store latencies: `tuned_us` for the tuned kernel, and 2 us for the default kernel."""
    target = compilation.target
    default = schedule_kernel(conv_of(compilation), vector_registers(target))
    records = TuningRecords(folder, target)
    records.add_comparison(Comparison(kernel_hash(tuned), kernel_hash(default), tuned_us, 2.0))


def outputs(artifact: Any) -> tuple[np.ndarray, np.ndarray]:
    """The outputs of the artifact and of onnxruntime for the same input."""
    x = np.random.default_rng(1).standard_normal((1, 4, 12, 12)).astype(np.float32)
    module = tvm_interop.GraphModule(artifact)
    module.run(x=x)
    session = onnxruntime.InferenceSession(net().SerializeToString())
    return module.get_output(0).numpy(), session.run(None, {"x": x})[0]


@pytest.mark.parametrize("parallel_padding", [False, True])
def test_a_faster_record_changes_the_kernel(
    compilation: Compilation, tmp_path: Path, parallel_padding: bool
) -> None:
    tuned = by_hand(compilation, tmp_path, parallel_padding)
    judge(compilation, tmp_path, tuned, tuned_us=1.0)
    options = {"providers": ["tvm"], "latency_db": ":memory:", "tuning_records": tmp_path}

    with_records = Compilation(net(), CompileOptions(**options))
    changed = dict(
        kernel_hashes(with_records.program.kernels).items()
        - kernel_hashes(compilation.program.kernels).items()
    )
    assert list(changed.values()) == [kernel_hash(tuned)]
    # If the loop that pads is parallel too, a share would read padding that was not written yet.
    assert (set(changed) <= divisible_kernels(with_records.program.kernels)) != parallel_padding

    results = []
    for streams, threads in ((1, 1), (1, 2), (2, 1)):
        artifact = tvm_interop.compile(
            net(), scheduler="greedy", streams=streams, threads=threads, keep_slower=True, **options
        )
        result, expected = outputs(artifact)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
        results.append(result)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("compared", [True, False])
def test_a_slower_record_changes_nothing(
    compilation: Compilation, tmp_path: Path, compared: bool
) -> None:
    tuned = by_hand(compilation, tmp_path)
    if compared:
        judge(compilation, tmp_path, tuned, tuned_us=3.0)
    options = CompileOptions(
        providers=("tvm",), latency_db=":memory:", tuning_records=tmp_path, streams=2, threads=1
    )
    same = Compilation(net(), options)
    assert kernel_hashes(same.program.kernels) == kernel_hashes(compilation.program.kernels)


@pytest.mark.slow
def test_search_and_resume(compilation: Compilation, tmp_path: Path) -> None:
    def tune(**options: Any) -> KernelTuning:
        tuning = KernelTuning(
            compilation, TuningRecords.made(tmp_path, compilation.target), **options
        )
        tuning.run()
        return tuning

    assert tune(time_budget_s=0).trials == 0
    first = tune(max_trials=10)
    assert first.trials == 10
    assert sum(kernel.trials for kernel in first.progress) == 10
    assert {kernel.uses for kernel in first.progress} == {1}
    lines = (tmp_path / "database_tuning_record.json").read_text().splitlines()
    assert len(lines) == 10

    assert tune(max_trials=10).trials == 10
    assert tune(max_trials=13).trials == 13
    kept = (tmp_path / "database_tuning_record.json").read_text().splitlines()
    assert kept[:10] == lines
    assert len(kept) == 13

    for kernel in tune(max_trials=0).progress:
        records = TuningRecords(tmp_path, compilation.target)
        assert (records.best(compilation.module[kernel.name]) is None) == (kernel.tuned_us is None)
    tvm_interop.compile(
        net(), scheduler="sequential", providers=["tvm"], latency_db=":memory:",
        tuning_records=tmp_path,
    )  # fmt: skip


@pytest.mark.slow
def test_no_sum_is_split() -> None:
    """If threads added up a sum in parts, its bits would depend on the number of threads.

    MetaSchedule's own rules split a long sum if nothing else can be divided.
    """
    numbers = te.placeholder((1, 65536))
    along = te.reduce_axis((0, 65536))
    total = te.compute((1,), lambda i: te.sum(numbers[i, along], along))
    kernel = te.create_prim_func([numbers, total])

    def splits(space: PostOrderApply) -> list[bool]:
        context = ms.TuneContext(
            as_workload(kernel),
            target=tvm.target.Target({"kind": "llvm", "num-cores": 4}),
            space_generator=space,
            rand_state=1,
        )
        return ["rfactor" in str(made.trace) for made in context.generate_design_space()]

    assert any(splits(PostOrderApply()))
    assert splits(kernel_tuning._space()) == [False]


@pytest.fixture
def small_population(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the search begin with few candidates.

    This is quick, and these tests need no good kernel.
    """
    monkeypatch.setattr(kernel_tuning, "_POPULATION", 8)


@pytest.mark.usefixtures("small_population")
def test_interrupted(compilation: Compilation, tmp_path: Path) -> None:
    def stop(tuning: KernelTuning) -> None:
        if tuning.trials == 2:
            raise KeyboardInterrupt

    records = TuningRecords.made(tmp_path, compilation.target)
    with pytest.raises(KeyboardInterrupt):
        KernelTuning(compilation, records, max_trials=8, on_progress=stop).run()
    again = TuningRecords(tmp_path, compilation.target)
    kernels = {kernel.name: kernel for kernel in KernelTuning(compilation, again)._kernels}
    assert sum(kernel.trials for kernel in kernels.values()) == 2


def test_records_for_another_target(compilation: Compilation, tmp_path: Path) -> None:
    by_hand(compilation, tmp_path)
    older = {"kind": "llvm", "mcpu": "x86-64", "mattr": ["+sse3"]}
    with pytest.raises(
        InputError, match=r"are for target .* the target here is .*sse3.* another folder"
    ):
        tvm_interop.compile(net(), older, tuning_records=tmp_path)
    with pytest.raises(InputError, match="are for target"):
        TuningRecords.made(tmp_path, older)


def test_no_records(compilation: Compilation, tmp_path: Path) -> None:
    def refused(folder: Path, model: onnx.ModelProto | None = None) -> str:
        with pytest.raises(InputError) as caught:
            tvm_interop.compile(
                model or net(), providers=["tvm"], latency_db=":memory:", tuning_records=folder
            )
        assert "tvm-interop tune MODEL --kernels" in str(caught.value)
        return str(caught.value)

    assert "no folder" in refused(tmp_path / "missing")
    assert "has no tuning records" in refused(tmp_path)
    TuningRecords.made(tmp_path, compilation.target)
    assert "has no tuning records" in refused(tmp_path)
    by_hand(compilation, tmp_path)
    assert "other models" in refused(tmp_path, net(channels=6))
    (tmp_path / "comparisons.json").write_text("[{}]")
    with pytest.raises(InputError, match="cannot be read"):
        TuningRecords(tmp_path, compilation.target)


@pytest.mark.usefixtures("small_population")
def test_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(net(), "net.onnx")
    tune = ["tune", "net.onnx", "--kernels", "--providers", "tvm", "--latency-db", ":memory:"]
    assert run_app([*tune, "--max-trials", "2"]) == 0
    out = capsys.readouterr().out
    assert "2 trials" in out
    assert "--tuning-records tuning_records" in out
    assert run_app([*tune, "--max-trials", "3", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["trials"] == 3
    assert not facts["interrupted"]
    assert sum(kernel["trials"] for kernel in facts["kernels"]) == 3
    with_records = ["--providers", "tvm", "--tuning-records", "tuning_records"]
    assert run_app(["schedule", "net.onnx", "--scheduler", "greedy", *with_records]) == 0
    assert run_app(["compile", "net.onnx", "--scheduler", "greedy", *with_records]) == 0
    capsys.readouterr()

    assert run_app([*tune, "--streams", "2"]) == 2
    assert "--streams has no meaning here" in capsys.readouterr().err
    assert run_app(["tune", "net.onnx", "--max-trials", "2"]) == 2
    assert "--max-trials has no meaning here" in capsys.readouterr().err

    def stopped(self: KernelTuning) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tune_kernels.KernelTuning, "run", stopped)
    assert run_app(tune) == 130
    assert "stopped: 3 trials" in capsys.readouterr().out


def test_tensor_intrinsics_are_whole() -> None:
    code = """
import inspect
from tvm.s_tir import TensorIntrin
from tvm_interop.kernels.tensor_intrinsics import import_tensor_intrinsics
import_tensor_intrinsics()
print(TensorIntrin.get("dot_16x4_vnni"))
print(TensorIntrin.get("mma_ldmatrix_f16_a"))
print(inspect.stack.__module__)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "vpdpbusd" in told.stdout
    assert "ldmatrix" in told.stdout
    assert told.stdout.endswith("inspect\n")
