"""Tests the shared folder of compiled kernels: a kernel is compiled once, and its results are
right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tests.object_files import ObjectFiles
from tvm_interop.kernels import build

pytestmark = pytest.mark.compiles_anew


def kernel(name: str, offset: float) -> tirx.PrimFunc:
    """A kernel that adds `offset` to four numbers."""
    x = te.placeholder((4,), "float32", name="x")
    y = te.compute((4,), lambda i: x[i] + tirx.const(offset, "float32"), name="y")
    return te.create_prim_func([x, y]).with_attr("global_symbol", name)


def library(folder: Path, **offsets: float) -> Any:
    """Build and load a library with a kernel of each given name, which adds the given offset."""
    module = tvm.IRModule({name: kernel(name, offset) for name, offset in offsets.items()})
    made = folder / f"{len(list(folder.iterdir()))}.so"  # Each library needs a new name.
    return tvm.runtime.load_module(str(build.build_kernels(module, "llvm", made)))


def added(made: Any, name: str) -> float:
    x, y = (tvm.runtime.tensor(np.zeros(4, np.float32)) for _ in range(2))
    made[name](x, y)
    return float(y.numpy()[3])


def test_kernels_are_shared_whatever_their_names_and_their_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[list[str]] = []
    write_object = build.write_object

    def noted(kernels: tvm.IRModule, target: Any, path: Path) -> None:
        compiled.append([variable.name_hint for variable, _ in kernels.functions_items()])
        write_object(kernels, target, path)

    monkeypatch.setattr(build, "write_object", noted)
    files = ObjectFiles(tmp_path / "objects")
    monkeypatch.setattr(build, "write_object", files.write)
    first = library(tmp_path, one=1.0, two=2.0)
    assert len(compiled) == 2
    again = library(tmp_path, deux=2.0, trois=3.0, two=1.0)
    assert len(compiled) == 3, "only the kernel that adds 3 is new"
    assert [added(first, name) for name in ("one", "two")] == [1, 2]
    assert [added(again, name) for name in ("deux", "trois", "two")] == [2, 3, 1]
    assert [added(library(tmp_path, one=1.0, two=2.0), name) for name in ("one", "two")] == [1, 2]
    assert len(compiled) == 3


@pytest.mark.parametrize("triple", ["aarch64-linux-gnu", "x86_64-linux-gnu"])
def test_kernels_for_another_machine_are_compiled_too(tmp_path: Path, triple: str) -> None:
    files = ObjectFiles(tmp_path / "objects")
    target = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    for name in ("a", "b"):
        files.write(tvm.IRModule({name: kernel(name, 1.0)}), target, tmp_path / f"{name}.o")
        assert f"__tvm_ffi_{name}".encode() in (tmp_path / f"{name}.o").read_bytes()
