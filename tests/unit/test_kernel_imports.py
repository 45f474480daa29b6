"""Tests that kernels import only functions that the runtime library has."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
import tvm
from tvm import te, tirx

from tests import kernel_imports, nets
from tvm_interop._native.cpu import unknown_imports
from tvm_interop.errors import DeviceError
from tvm_interop.kernels.build import build_kernels

pytestmark = pytest.mark.compiles_anew


def calling(function: str) -> tvm.IRModule:
    """A kernel that calls a function of another library."""
    x = te.placeholder((4,), "float32", name="x")
    y = te.compute((4,), lambda i: tirx.call_extern("float32", function, x[i]), name="y")
    kernel = te.create_prim_func([x, y]).with_attr("global_symbol", "kernel")
    return tvm.IRModule({"kernel": kernel})


def test_a_function_that_is_missing_at_run_time_is_refused_when_compiling(tmp_path: Path) -> None:
    build_kernels(calling("expf"), "llvm", tmp_path / "known.so")
    with pytest.raises(DeviceError, match="the kernels need `strange`, which the runtime library"):
        build_kernels(calling("strange"), "llvm", tmp_path / "unknown.so")
    assert [path.name for path in tmp_path.iterdir()] == ["known.so"]


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64"])
def test_kernels_for_a_cpu(target: str) -> None:
    code = kernel_imports.cpu_code(nets.attention(), target)
    assert "TVMFFIErrorSetRaisedFromCStrParts" in kernel_imports.imports(code)
    assert unknown_imports(code) == []


def test_host_code_of_kernels_for_a_gpu() -> None:
    code = kernel_imports.host_code(nets.inception_like())
    assert "TVMFFIErrorSetRaisedFromCStrParts" in kernel_imports.imports(code)
    assert unknown_imports(code) == []


def test_the_survey_tells_of_a_function_that_is_not_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kernel_imports", "5", "6"])
    compiled = kernel_imports.cpu_code
    built: list[bytes] = []

    def compiled_once(model: onnx.ModelProto, target: str) -> bytes:
        if not built:
            built.append(compiled(model, target))
        return built[0]

    monkeypatch.setattr(kernel_imports, "cpu_code", compiled_once)
    assert kernel_imports.main() == 0
    assert "seeds 5 to 5: 1 libraries, 0 refused, 0 failed" in capsys.readouterr().out
    monkeypatch.setattr(kernel_imports, "unknown_imports", lambda code: ["memset"])
    monkeypatch.setattr(kernel_imports, "imports", lambda code: ["memset"])
    assert kernel_imports.main() == 1
    assert "1 memset NOT LISTED" in capsys.readouterr().out
