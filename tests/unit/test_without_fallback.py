"""Tests artifacts that need the kernel libraries of the machine that compiled them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_interop
from tests import nets
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.kernels import cpu_schedule
from tvm_interop.kernels.cpu_schedule import schedule_kernel
from tvm_interop.kernels.loops import SCHEDULED
from tvm_interop.machine.kernel_libraries import library_identity, library_version
from tvm_interop.machine.library_files import ONEDNN, file_identity

pytestmark = pytest.mark.skipif(library_version("onednn") is None, reason="needs oneDNN")

RUN = """
import sys, tvm_interop
try:
    tvm_interop.GraphModule(sys.argv[1]).run()
except tvm_interop.TVMInteropError as error:
    sys.exit(f"refused: {error}")
"""


@pytest.mark.parametrize("time_budget", [0, 1])
def test_the_same_bits_from_fewer_kernels(tmp_path: Path, time_budget: float) -> None:
    model, options = nets.branches(), {"scheduler": "sequential", "latency_db": ":memory:"}
    path = tmp_path / "m.tar"
    whole = tvm_interop.compile(model, **options, time_budget=0)
    made = tvm_interop.compile(model, **options, time_budget=time_budget, fallback=False, out=path)
    assert whole.fallback is not None
    assert made.fallback is None
    inputs = nets.feeds(model)
    one = tvm_interop.GraphModule(made)(**inputs)
    others = [tvm_interop.GraphModule(tvm_interop.load(path))(**inputs)]
    if time_budget == 0:
        assert len(made.machine_code()) < len(whole.machine_code())
        others.append(tvm_interop.GraphModule(whole)(**inputs))
    for other in others:
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


@pytest.mark.parametrize("fallback", [False, True])
def test_only_kernels_that_the_artifact_gets_are_scheduled(
    monkeypatch: pytest.MonkeyPatch, fallback: bool
) -> None:
    scheduled: list[str] = []

    def recorded(func: Any, registers: Any, name: str) -> Any:
        scheduled.append(name)
        return schedule_kernel(func, registers, name)

    monkeypatch.setattr(cpu_schedule, "schedule_kernel", recorded)
    options = CompileOptions(time_budget=0, fallback=fallback, latency_db=":memory:")
    compilation = Compilation(nets.branches(), options)
    assert compilation.kernels
    operators = compilation.program.operators
    every = {op.kernel for op in operators}
    used = {op.kernel for op in operators if op.library is None}
    assert used < every
    assert sorted(scheduled) == sorted(every if fallback else used)
    kernels = compilation.program.kernels.functions_items()
    assert {var.name_hint for var, _ in kernels} == set(scheduled)
    assert all(SCHEDULED in func.attrs for _, func in kernels)


def test_it_is_refused_without_the_library(tmp_path: Path) -> None:
    path = tmp_path / "m.tar"
    tvm_interop.compile(nets.branches(), time_budget=0, fallback=False, out=path)
    ended = subprocess.run(
        [sys.executable, "-c", RUN, str(path)],
        env=os.environ | {"TVM_INTEROP_ONEDNN_LIBRARY": str(tmp_path / "none.so")},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert "refused: " in ended.stderr
    assert "onednn" in ended.stderr.lower()


def test_a_library_is_told_from_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = library_identity("onednn")
    assert known == file_identity(ONEDNN.find())
    content = bytearray(Path(ONEDNN.find()).read_bytes())
    other = tmp_path / "libdnnl.so.3"
    for change in (0, len(content) - 1):
        changed = content.copy()
        changed[change] ^= 1
        other.write_bytes(changed)
        assert file_identity(str(other)) != known
    other.write_bytes(content + b"\0")
    assert file_identity(str(other)) != known
    other.write_bytes(content)
    monkeypatch.setenv("TVM_INTEROP_ONEDNN_LIBRARY", str(other))
    assert library_identity("onednn") == known
