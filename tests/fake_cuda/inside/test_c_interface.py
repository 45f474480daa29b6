"""Runs models for a GPU through the C interface, which needs no TVM, on the fake GPU."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_interop
from tests import nets
from tests.fake_cuda import fake_gpu
from tests.fake_cuda.inside.test_library_compile import LIBRARIES, convolutions
from tests.native_runtime import UNSUPPORTED, NativeModel, RuntimeLibraryError, library
from tvm_interop.execution.open_instance import open_instance
from tvm_interop.plan.check import read_plan

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


def saved(net: onnx.ModelProto, path: Path, providers: Sequence[str]) -> Path:
    """Compile a model for a GPU into the file `path`."""
    tvm_interop.compile(
        net, target="cuda", scheduler="nimble", keep_slower=True, providers=list(providers)
    ).save(path)
    return path


@pytest.fixture(scope="module")
def of_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a model that libraries compute."""
    return saved(convolutions(), tmp_path_factory.mktemp("libraries") / "model.tar", LIBRARIES)


@pytest.fixture(scope="module")
def of_tvm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a model that TVM's kernels compute."""
    return saved(nets.branches(), tmp_path_factory.mktemp("tvm") / "model.tar", ["tvm"])


def by_tvm_ffi(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The results of the executor that uses TVM's runtime."""
    instance = open_instance(tvm_interop.load(path))
    for port in instance.inputs:
        instance.write(port.value, feeds[port.name])
    instance.run()
    return [instance.read(port.value) for port in instance.outputs]


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_libraries_give_the_same_bits(precision: str, of_libraries: Path, tmp_path: Path) -> None:
    path = of_libraries
    if precision == "float16":
        path = saved(nets.in_float16(convolutions()), tmp_path / "model.tar", LIBRARIES)
    model = NativeModel(path)
    assert library().tvi_model_device(model.model, 0) == b"cuda:0"
    rng = np.random.default_rng(2)
    for _ in range(3):
        feeds = {
            name: rng.standard_normal(shape).astype(dtype)
            for name, dtype, shape in model.infos("input")
        }
        expected = by_tvm_ffi(path, feeds)
        assert any(array.any() for array in expected)
        made = model.run(*feeds.values())
        assert [a.tobytes() for a in made] == [a.tobytes() for a in expected]
        made = model.run_on_own_buffers(*feeds.values())
        assert [a.tobytes() for a in made] == [a.tobytes() for a in expected]
    plan = tvm_interop.load(path).plan
    times = model.profile()
    assert sorted(time.op for time in times) == list(range(len(plan.operators)))
    assert [time.name.decode() for time in times] == [plan.operators[t.op].name for t in times]


def launches(log: Path) -> list[tuple[Any, ...]]:
    """The launches in a log. Streams are numbered in the order in which they first appear."""
    streams: dict[int, int] = {}
    return [
        (
            entry["kernel"],
            entry["parameters"],
            entry["blocks"],
            entry["threads"],
            streams.setdefault(entry["stream"], len(streams)),
        )
        for entry in fake_gpu.logged(log, "launch")
    ]


def test_tvms_kernels_get_the_same_arguments(tmp_path: Path) -> None:
    """Our runtime lays out an instance's memory as TVM's runtime does.

    So kernels must get the same addresses of tensors from both.
    """
    path = saved(nets.inception_like(), tmp_path / "model.tar", ["tvm"])
    artifact = tvm_interop.load(path)
    kernels = {
        launch.function
        for needs in artifact.manifest.gpu_kernels.values()
        for each in needs.launches.values()
        for launch in each
    }
    assert len(kernels) >= 10
    code = artifact.kernels
    for name in kernels:
        written = struct.pack("<Q", len(name)) + name.encode()
        found = re.search(re.escape(written * 2) + rb"(.{8})", code, re.DOTALL)
        assert found is not None
        (number,) = struct.unpack("<Q", found[1])
        fake_gpu.driver().FakeCudaTellKernel(name.encode(), int(number), None)
    logs = [tmp_path / "tvm_ffi.jsonl", tmp_path / "native.jsonl"]
    fake_gpu.start_log(logs[0])
    instance = open_instance(artifact)
    instance.run()
    fake_gpu.stop_log()
    fake_gpu.start_log(logs[1])
    model = NativeModel(path)
    model.run(*(np.zeros(shape, dtype) for _, dtype, shape in model.infos("input")))
    fake_gpu.stop_log()
    expected = launches(logs[0])
    assert {launch[0] for launch in expected} == kernels
    assert all("?" not in launch[1] for launch in expected)
    assert len({launch[-1] for launch in expected}) == len(artifact.plan.streams) > 1
    assert launches(logs[1]) == expected


def test_a_missing_kernel_library_is_named(
    of_libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = of_libraries
    assert tvm_interop.load(path).fallback is not None
    program = (
        "import sys\n"
        "from tests.native_runtime import NativeModel, library\n"
        "model = NativeModel(sys.argv[1], needs_onednn=int(sys.argv[2]))\n"
        "print(library().tvi_model_warning(model.model).decode())\n"
    )
    monkeypatch.setenv("TVM_INTEROP_CUDNN_LIBRARY", str(tmp_path / "none.so"))
    assert "kernel library `cudnn`, which is missing here" in said(program, path, 0)
    text = said(program, path, 1)
    assert "RuntimeLibraryError" in text
    assert "name its file in TVM_INTEROP_CUDNN_LIBRARY" in text


def said(program: str, path: Path, needs: int) -> str:
    """The text that a process prints when it runs a program."""
    done = subprocess.run(
        [sys.executable, "-c", program, path, str(needs)], capture_output=True, text=True
    )
    return done.stdout + done.stderr


def test_a_gpu_that_does_not_exist_is_named(of_tvm: Path, tmp_path: Path) -> None:
    artifact, path = tvm_interop.load(of_tvm), tmp_path / "model.tar"
    artifact.plan = read_plan(artifact.plan.to_json().replace("cuda:0", "cuda:6"))
    artifact.save(path)
    with pytest.raises(RuntimeLibraryError, match="there is no device `cuda:6`") as caught:
        NativeModel(path)
    assert caught.value.status == UNSUPPORTED


def test_a_missing_graph_is_told(of_tvm: Path) -> None:
    model = NativeModel(of_tvm)
    assert library().tvi_instance_warning(model.instance) is None
    fake_gpu.fail_next("cudaStreamBeginCapture", 900)
    model = NativeModel(of_tvm)
    said = library().tvi_instance_warning(model.instance).decode()
    assert "no CUDA graph, operators are launched one by one: " in said
    assert "cudaStreamBeginCapture" in said
    model.run_on_own_buffers()
