"""Tests compiling for a GPU on a machine without a GPU."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import tvm_interop
from tests.native_runtime import (
    UNSUPPORTED,
    NativeModel,
    RuntimeLibraryError,
    read_plan_in_both,
)
from tests.native_runtime import reader as native_reader
from tests.nets import chain, inception_like
from tvm_interop import ArtifactError, DeviceError, GraphModule, InputError
from tvm_interop.cli.app import run_app
from tvm_interop.compiler.api import CompileOptions, new_compilation
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.cuda import CudaBackend, is_cuda
from tvm_interop.lowering.extract import extract
from tvm_interop.models import light


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(has_driver(), reason="there is a GPU's driver")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@needs_nvcc
def test_compiled_here_for_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "model.tar"
    artifact = tvm_interop.compile(
        inception_like(),
        target="cuda",
        scheduler="nimble",
        archs=["sm_90"],
        keep_slower=True,
        out=out,
    )
    assert {stream.device for stream in artifact.plan.streams} == {"cuda:0"}
    assert len(artifact.plan.streams) > 1
    assert artifact.manifest.speed_check is None
    loaded = tvm_interop.load(out)
    assert loaded.plan == artifact.plan
    assert loaded.native is None  # Python runs a model for a GPU by tvm-ffi.
    assert loaded.is_for_gpus
    with pytest.raises(DeviceError, match="no CUDA here"):
        GraphModule(loaded)
    assert native_reader()("artifact", out) is None
    with pytest.raises(RuntimeLibraryError, match=r"no CUDA here: libcuda\.so\.1") as caught:
        NativeModel(out)
    assert caught.value.status == UNSUPPORTED
    # The wheel that only runs models has no Python module that reads artifacts.
    monkeypatch.setitem(sys.modules, "tvm_interop.artifact.reading", None)
    with pytest.raises(ArtifactError, match="was compiled for a GPU: install `tvm-interop`"):
        tvm_interop.load(out)


def on_a_gpu(value: dict[str, object]) -> dict[str, object]:
    """A value of a plan for one GPU, as JSON, with these fields replaced."""
    return {"name": "x", "shape": [16], "dtype": "float32", "storage": "arena"} | value


@pytest.mark.parametrize(("change", "message"), [
    (lambda plan: None, None),
    (lambda plan: plan["values"][1].update(offset=32), None),  # A CPU needs a multiple of 64.
    (lambda plan: plan["values"][1].update(offset=16), "is not part of the value"),
    (lambda plan: plan["values"][0].update(device="cuda:0"), None),
    (lambda plan: plan["values"][0].update(device="cuda:1"), "lies on cuda:1"),
    (lambda plan: plan["values"][2].update(copy_of=0), "both lie on cuda:0|copy"),
    (lambda plan: plan.update(arenas={"cuda:0": 0}), "arenas"),
    (lambda plan: plan["operators"][0].update(library="onednn"), "known are `cudnn`, `cublaslt`"),
    (lambda plan: plan["operators"][0].update(library="cudnn"), "has no description"),
    (lambda plan: plan["streams"].append({"device": "cpu:0", "threads": 1}), "combined|no op"),
    (lambda plan: plan["operators"][1].update(waits=[1]), "not planned before it"),
])  # fmt: skip
def test_both_readers_check_plans_for_a_gpu_alike(
    change: Callable[[dict[str, Any]], object], message: str | None
) -> None:
    plan = {
        "streams": [{"device": "cuda:0", "threads": 1}],
        "values": [
            on_a_gpu({"name": "x", "storage": "input", "shape": [32]}),
            on_a_gpu({"name": "part", "storage": "alias", "alias_of": 0, "offset": 64}),
            on_a_gpu({"name": "y", "storage": "output"}),
            on_a_gpu({"name": "z", "storage": "output"}),
        ],
        "operators": [
            {"name": "a", "kernel": "k", "inputs": [1], "outputs": [2], "stream": 0, "waits": []},
            {"name": "b", "kernel": "k", "inputs": [2], "outputs": [3], "stream": 0, "waits": []},
        ],
        "inputs": [0],
        "outputs": [2, 3],
        "arena_bytes": 0,
        "parallel_kernels": False,
    }
    change(plan)
    if message is None:
        read_plan_in_both(json.dumps(plan))
        return
    with pytest.raises(ArtifactError, match=message):
        read_plan_in_both(json.dumps(plan))


@pytest.mark.parametrize(("name", "joined"), [("squeezenet", 8), ("inception_v1", 9)])
def test_concatenations_cost_nothing(name: str, joined: int) -> None:
    """The operators before a concatenation write directly into its result, so no concatenation is
    left in the program."""
    compilation = Compilation(light.build(name), CompileOptions("cuda", archs=["sm_90"]))
    described = [op.description for op in extract(compilation.module).operators]
    assert [d.op for d in described if d is not None].count("concat") == joined
    left = [op.description for op in compilation.program.operators]
    assert [d.op for d in left if d is not None].count("concat") == 0


@needs_nvcc
def test_a_schedule_over_gpus(tmp_path: Path) -> None:
    """The artifact is compiled and written on this machine, for a machine with two GPUs."""
    compilation = Compilation(inception_like(), CompileOptions("cuda", archs=["sm_90"]))
    made = compilation.schedule("nimble")
    over_two = dataclasses.replace(made, devices=[s % 2 for s in range(made.num_streams)])
    text = tmp_path / "schedule.json"
    text.write_text(over_two.to_json())
    out = tmp_path / "model.tar"
    options = ["--target", "cuda", "--arch", "sm_90", "--schedule", str(text), "--keep-slower"]
    onnx.save(inception_like(), tmp_path / "model.onnx")
    assert run_app(["compile", str(tmp_path / "model.onnx"), *options, "-o", str(out)]) == 0
    loaded = tvm_interop.load(out)
    assert loaded.plan.devices == ("cuda:0", "cuda:1")
    assert loaded.schedule == over_two
    assert any(op.is_copy for op in loaded.plan.operators)
    # The file holds each weight once, even if several GPUs read it.
    assert all(loaded.plan.values[v].copy_of is None for v in loaded.weights)


def test_measuring_needs_a_gpu() -> None:
    with pytest.raises(DeviceError, match=r"`ios` needs latencies.* no CUDA here.*`nimble`"):
        tvm_interop.compile(chain(), target="cuda", scheduler="ios")
    with pytest.raises(DeviceError, match=r"speed is checked on a GPU.*`keep_slower`"):
        tvm_interop.compile(inception_like(), target="cuda", scheduler="nimble")


def test_options_of_cpus_are_refused() -> None:
    with pytest.raises(InputError, match="`threads` is for CPUs"):
        tvm_interop.compile(chain(), target="cuda", threads=2)
    with pytest.raises(InputError, match="`onednn` has no kernels for a GPU"):
        tvm_interop.compile(chain(), target="cuda", providers=["tvm", "onednn"])
    with pytest.raises(DeviceError, match="`90` is not a GPU architecture"):
        tvm_interop.compile(chain(), target="cuda", archs=["90"])


def test_options_of_gpus_are_refused() -> None:
    with pytest.raises(InputError, match="`stream_priorities` is for GPUs"):
        tvm_interop.compile(chain(), stream_priorities=True)


def test_targets_and_architectures() -> None:
    assert is_cuda("cuda")
    assert is_cuda({"kind": "cuda", "arch": "sm_90"})
    assert not is_cuda("llvm")
    assert not is_cuda("abacus")
    named = new_compilation(chain(), CompileOptions({"kind": "cuda", "arch": "sm_86"}))
    assert isinstance(named.backend, CudaBackend)
    assert named.backend.archs == ("sm_86",)
    assert Compilation(chain(), CompileOptions("cuda")).backend.archs == ("sm_80", "sm_90")


def test_the_command_line_says_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.tar"
    assert run_app(["compile", "squeezenet", "--stream-priorities", "-o", str(out)]) == 2
    assert "`stream_priorities` is for GPUs" in capsys.readouterr().err
    options = ["--target", "cuda", "--arch", "sm_90,hopper", "-o", str(out)]
    assert run_app(["compile", "squeezenet", *options]) == 2
    assert "`hopper` is not a GPU architecture" in capsys.readouterr().err
    assert not out.exists()
