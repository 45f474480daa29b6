"""Tests `tvm-interop run` with a model: it is compiled once, and the artifact is kept."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import tvm_interop
from tests.nets import branches, chain
from tvm_interop.cli.app import run_app
from tvm_interop.compiler import api


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_model_is_compiled_and_found_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path / "kept"))
    path = tmp_path / "net.onnx"
    onnx.save(chain(2), path)
    assert run_app(["run", str(path), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["outputs"]
    (kept,) = (tmp_path / "kept" / "artifacts").iterdir()
    assert f"runs as `{kept}`" in told.err
    monkeypatch.setattr("tvm_interop.compiler.api.compile", None)  # Compiling would fail.
    assert run_app(["run", str(path), "--json"]) == 0
    assert f"runs as `{kept}`" in capsys.readouterr().err
    assert run_app(["run", str(path), "--sha256", "0" * 64]) == 2
    assert "are for artifacts" in capsys.readouterr().err


def test_a_model_with_open_dimensions_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "open.onnx"
    onnx.save(branches(batch="n"), path)
    assert run_app(["run", str(path)]) == 2
    assert '--dim "n=1" on the command line' in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("given", [["--dim", "n=2"], ["--input-shapes", "x:[2,8,8,8]"]])
def test_open_dimensions_are_given(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    given: list[str],
) -> None:
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path / "kept"))
    path = tmp_path / "open.onnx"
    onnx.save(branches(batch="n"), path)
    assert run_app(["run", str(path), *given, "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"].values()
    assert output["shape"][0] == 2
    (kept,) = (tmp_path / "kept" / "artifacts").glob("*.tar")
    assert run_app(["run", str(kept), *given]) == 2
    assert "with fixed shapes" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_how_long_schedules_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path / "kept"))
    given: list[object] = []
    compile = api.compile
    monkeypatch.setattr(
        "tvm_interop.compiler.api.compile",
        lambda model, **options: (
            given.append(options.get("time_budget")) or compile(model, **options)
        ),
    )
    path = tmp_path / "net.onnx"
    onnx.save(chain(2), path)
    for _ in range(2):
        assert run_app(["run", str(path), "--time-budget", "0.5"]) == 0
    assert given == [0.5]
    (kept,) = (tmp_path / "kept" / "artifacts").iterdir()
    assert run_app(["run", str(kept), "--time-budget", "0.5"]) == 2
    assert "are for compiling models" in capsys.readouterr().err


def test_cores_that_stay_idle_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    narrow, wide, model = (str(tmp_path / name) for name in ("n.tar", "w.tar", "net.onnx"))
    onnx.save(branches(), model)
    greedy = ["--scheduler", "greedy", "--keep-slower", "--threads", "1", "--streams"]
    assert run_app(["compile", model, "-o", narrow, *greedy, "1"]) == 0
    assert "on 1 stream, 0 waits" in capsys.readouterr().out
    assert run_app(["compile", model, "-o", wide, *greedy, "2"]) == 0
    capsys.readouterr()
    before = tvm_interop.num_threads()
    try:
        assert run_app(["run", narrow, "--threads", "2"]) == 0
        told = capsys.readouterr().err
        assert "runs on 1 of the 2 cores" in told
        assert "RuntimeWarning" not in told
        assert run_app(["run", wide, "--threads", "2"]) == 0
        assert "cores" not in capsys.readouterr().err
        assert run_app(["run", wide, "--threads", "1"]) == 0
        told = capsys.readouterr().err
        assert "tvm-interop: warning: the model was compiled for 2 cores" in told
        assert "GraphModule(" not in told, "a line of our source"
    finally:
        tvm_interop.set_num_threads(before)
