"""Tests that the command lines of tvmc's tutorials work here."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.nets import chain, two_inputs
from tvm_interop import load
from tvm_interop.tvmc import main, translate


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder with a model. It becomes the working directory."""
    monkeypatch.chdir(tmp_path)
    onnx.save(two_inputs(), tmp_path / "two.onnx")
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], line: str) -> str:
    assert main(line.split()) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(("tvmc: error: ", "tvm-interop: error: "))
    assert captured.err.count("\n") == 1
    return captured.err


def test_compile_and_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([
        "compile", "--target", "llvm", "--input-shapes", "image:[1,4,2,2] vector:[1,6]",
        "--output", "two.tar", "--opt-level=3", "--output-format", "tar", "--desired-layout",
        "NCHW", "--executor", "graph", "--module-name", "two", "two.onnx",
    ]) == 0  # fmt: skip
    captured = capsys.readouterr()
    assert "wrote two.tar" in captured.out
    assert "tvmc: --executor graph changes nothing: " in captured.err
    assert "tvmc: --module-name two changes nothing: " in captured.err
    assert "tvmc: --desired-layout NCHW changes nothing: " in captured.err
    rng = np.random.default_rng(0)
    np.savez(
        "in.npz",
        image=rng.standard_normal((1, 4, 2, 2)).astype("float32"),
        vector=rng.standard_normal((1, 6)).astype("float32"),
    )
    line = "run --inputs in.npz --output out.npz --print-time --profile --repeat 2 two.tar"
    assert main(line.split()) == 0
    printed = capsys.readouterr().out
    assert "median" in printed
    assert "start us" in printed
    with np.load("out.npz") as outputs:
        assert set(outputs) == {"features", "scores"}


def test_in_a_process_of_its_own(folder: Path) -> None:
    command = [sys.executable, "-m", "tvm_interop.tvmc", "compile", "two.onnx"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert (folder / "module.tar").is_file()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the options name x86's")
def test_target_options(folder: Path) -> None:
    line = "compile --target llvm --target-llvm-mcpu=core-avx2 --target-llvm-mattr +fma two.onnx"
    assert main(line.split()) == 0
    target = json.loads(load("module.tar").manifest.target)
    assert target["mcpu"] == "core-avx2"
    assert target["mattr"] == ["+fma"]


def test_what_is_passed_on() -> None:
    assert translate(["run", "m.tar", "--print-top", "5", "--end-to-end"]) == [
        "run", "m.tar", "--fill-mode", "random", "--print-top", "5", "--end-to-end",
        "--repeat", "1", "--number", "1",
    ]  # fmt: skip
    assert translate(["run", "--rpc-tracker", "host:9190", "--rpc-key=pi", "m.tar"])[-4:] == [
        "--rpc-tracker", "host:9190", "--rpc-key", "pi",
    ]  # fmt: skip
    assert translate([
        "compile", "m.onnx", "--pass-config", "a=1", "--pass-config", "b=2", "-v",
    ]) == [
        "compile", "m.onnx", "--output", "module.tar", "--pass-config", "a=1",
        "--pass-config", "b=2", "--verbose",
    ]  # fmt: skip


def test_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "microTVM" in refused(capsys, "micro create-project")
    assert "give both" in refused(capsys, "run m.tar --rpc-tracker=host:9190")
    assert "float16" in refused(capsys, "compile two.onnx --mixed-precision")
    assert "no folder `log`" in refused(capsys, "compile two.onnx --tuning-records log")
    assert "the only value is `graph`" in refused(capsys, "compile two.onnx --executor aot")
    assert "the only value is `NCHW`" in refused(capsys, "compile two.onnx --desired-layout NHWC")
    assert "`--colour`" in refused(capsys, "compile two.onnx --colour red")
    assert "`--target-llvm-libs`" in refused(capsys, "compile two.onnx --target-llvm-libs=mkl")
    assert "not an option of `llvm`" in refused(capsys, "compile two.onnx --target-cuda-arch=sm_90")
    assert "kernels.so" in refused(capsys, "compile two.onnx -f so")
    assert "FILE" in refused(capsys, "compile")
    assert "invalid choice" in refused(capsys, "destroy two.onnx")
    assert [path.name for path in folder.iterdir()] == ["two.onnx"]


def test_an_input_of_unknown_shape(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(chain(2, batch="batch"), "open.onnx")
    assert "`x`" in refused(capsys, "compile open.onnx")
    assert main(["compile", "open.onnx", "--input-shapes", "x:[1,4,4,4]"]) == 0


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    assert "--fill-mode" in capsys.readouterr().out
