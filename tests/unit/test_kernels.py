"""Compiling kernels, and telling them apart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import tirx as T

from tests import nets
from tvm_interop.errors import DeviceError
from tvm_interop.frontend import load_model
from tvm_interop.kernels import build_kernels, kernel_hashes, uses_parallel_loops
from tvm_interop.transform import LowerToUnits, extract


@I.ir_module
class _Kernels:
    @T.prim_func
    def double(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            b[i] = a[i] * T.float32(2)

    @T.prim_func
    def twice(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for j in range(4):
            y[j] = x[j] * T.float32(2)

    @T.prim_func
    def triple(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in T.parallel(4):
            b[i] = a[i] * T.float32(3)


def test_library_gives_every_kernel_by_name(tmp_path: Path) -> None:
    path = build_kernels(_Kernels, "llvm", tmp_path / "k.so")
    assert path == tmp_path / "k.so"
    library = tvm.runtime.load_module(path)
    source = tvm.runtime.tensor(np.arange(4, dtype=np.float32))
    for name, factor in (("double", 2), ("twice", 2), ("triple", 3)):
        result = tvm.runtime.empty((4,), "float32")
        library[name](source, result)
        np.testing.assert_array_equal(result.numpy(), factor * np.arange(4))
    assert [entry.name for entry in tmp_path.iterdir()] == ["k.so"]


def test_equal_kernels_share_a_hash() -> None:
    hashes = kernel_hashes(_Kernels)
    assert hashes["double"] == hashes["twice"]
    assert hashes["double"] != hashes["triple"]


_PRINT_HASHES = """
from tests import nets
from tvm_interop.frontend import load_model
from tvm_interop.kernels import kernel_hashes
from tvm_interop.transform import LowerToUnits, extract
program = extract(LowerToUnits()(load_model(nets.attention())))
for item in sorted(kernel_hashes(program.kernels).items()):
    print(*item)
"""


def test_hashes_are_the_same_in_another_process() -> None:
    program = extract(LowerToUnits()(load_model(nets.attention())))
    here = [f"{name} {value}" for name, value in sorted(kernel_hashes(program.kernels).items())]
    paths = f"import sys; sys.path[:0] = {sys.path!r}"
    there = subprocess.run(
        [sys.executable, "-c", f"{paths}\n{_PRINT_HASHES}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.split("\n")[:-1] == here
    assert len(here) > 3


def test_parallel_loops_are_found() -> None:
    assert uses_parallel_loops(_Kernels) == {"double": False, "twice": False, "triple": True}


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(DeviceError, match=r"no C\+\+ compiler.*apt install g\+\+"):
        build_kernels(_Kernels, "llvm", tmp_path / "k.so")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(DeviceError, match="`no-such-compiler`"):
        build_kernels(_Kernels, "llvm", tmp_path / "k.so")
    assert list(tmp_path.iterdir()) == []


def test_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k.so"
    path.write_bytes(b"old")
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(DeviceError, match="linking"):
        build_kernels(_Kernels, "llvm", path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_unknown_target(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no-such-target"):
        build_kernels(_Kernels, "no-such-target", tmp_path / "k.so")
