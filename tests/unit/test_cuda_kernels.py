"""Compiles kernels for GPUs without a GPU. The tests need nvcc."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tvm
from tvm import te

from tests.nets import in_float16, inception_like
from tvm_interop import DeviceError
from tvm_interop.compiler.api import CompileOptions
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.kernels.build_cuda import (
    Demands,
    build_cuda_kernels,
    compile_fatbin,
    compiling_with_nvcc,
    cuda_target,
)
from tvm_interop.kernels.cuda_schedule import DefaultCUDASchedule
from tvm_interop.kernels.launches import Launch, launch_of
from tvm_interop.program.storage import GPU_PART_ALIGNMENT

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")

FATBIN = bytes.fromhex("50ed55ba")
"""The first bytes of a fat binary of NVIDIA."""


def doubling() -> tvm.IRModule:
    x = te.placeholder((100,), "float32", name="some/x")
    y = te.compute((100,), lambda i: x[i] * 2.0, name="y")
    func = te.create_prim_func([x, y]).with_attr("global_symbol", "double")
    return DefaultCUDASchedule(cuda_target())(tvm.IRModule({"double": func}))


def test_the_target_is_the_oldest_architecture() -> None:
    assert cuda_target(("sm_90", "sm_80", "sm_100")).attrs["arch"] == "sm_80"
    with pytest.raises(DeviceError, match="`hopper` is not a GPU architecture"):
        cuda_target(("sm_90", "hopper"))


@needs_nvcc
def test_machine_code_is_embedded(tmp_path: Path) -> None:
    library = build_cuda_kernels(doubling(), tmp_path / "kernels.so", ("sm_80", "sm_90"))
    data = library.read_bytes()
    assert FATBIN in data
    assert b"double_kernel" in data
    # The module contains no source code that would be compiled again.
    assert b"__global__" not in data
    assert b"sm_80" in data or b"sm_90" in data
    assert [path.name for path in tmp_path.iterdir()] == ["kernels.so"]


@pytest.mark.parametrize("make", [inception_like, lambda: in_float16(inception_like())])
def test_parts_are_aligned_to_what_kernels_take_at_once(make: Callable[[], Any]) -> None:
    """CUDA reads and writes a vector only at an address that is a multiple of the vector's size."""
    kernels = Compilation(make(), CompileOptions("cuda", archs=["sm_90"])).program.kernels
    target = cuda_target(("sm_90",))
    with target, compiling_with_nvcc(("sm_90",)):
        module = tvm.compile(kernels, target=target).mod
    sources = [part.inspect_source() for part in module.imports if part.kind == "cuda"]
    vectors = set(re.findall(r"\*\((\w+?)(\d*)\s*\*\)", "".join(sources)))
    assert vectors
    for kind, lanes in vectors:
        nbytes = {"half": 2, "float": 4, "int": 4, "uint": 4}[kind] * int(lanes or 1)
        assert GPU_PART_ALIGNMENT % nbytes == 0


@needs_nvcc
def test_what_kernels_ask_of_a_gpu_is_told(tmp_path: Path) -> None:
    told: list[Demands] = []
    archs = ("sm_80", "sm_90")
    build_cuda_kernels(doubling(), tmp_path / "kernels.so", archs, told.append)
    ((first, second),) = [[demands[arch]["double"] for arch in archs] for demands in told]
    for (launch,) in (first, second):
        assert launch.function == "double_kernel"
        assert launch.blocks * launch.threads >= 100
        assert launch.registers >= 1
        assert (launch.shared_bytes, launch.assumed) == (0, False)


class LaunchCall:
    """A call that launches a kernel, as in TVM's code for the host."""

    def __init__(self, **settings: Any) -> None:
        names = [name.replace("_", ".") for name in settings]
        self.attrs = SimpleNamespace(launch_params=names)
        self.args = [SimpleNamespace(value="f"), "tensor", *settings.values()]


def test_a_launch_is_read_from_the_hosts_code() -> None:
    found = launch_of(LaunchCall(blockIdx_x=3, blockIdx_z=2, threadIdx_y=32))
    assert found == Launch("f", (3, 1, 2), (1, 32, 1))
    assert (found.blocks, found.threads) == (6, 32)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"clusterIdx_x": 2},
            "`f` has the setting `clusterIdx.x`, which this version does not know",
        ),
        ({"blockIdx_x": object()}, "`f` depends on values that are known only when it runs"),
    ],
)
def test_launches_that_cannot_be_read(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(DeviceError, match=says):
        launch_of(LaunchCall(**settings))


@needs_nvcc
def test_source_that_does_not_compile() -> None:
    with pytest.raises(DeviceError, match="nvcc cannot compile the kernels"):
        compile_fatbin("this is not C", ("sm_90",))


def test_nvcc_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gcc = shutil.which("g++") or shutil.which("c++")
    monkeypatch.setenv("CXX", str(gcc))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    with pytest.raises(DeviceError, match="no `nvcc` was found"):
        build_cuda_kernels(doubling(), tmp_path / "kernels.so")
    assert list(tmp_path.iterdir()) == []
