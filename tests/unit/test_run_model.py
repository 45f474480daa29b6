"""`tvm-interop run` of a model: compiled once, and kept."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.nets import branches, chain
from tvm_interop.cli.app import run_app


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
    monkeypatch.setattr("tvm_interop.compiler.api.compile", None)  # Whoever compiles fails.
    assert run_app(["run", str(path), "--json"]) == 0
    assert f"runs as `{kept}`" in capsys.readouterr().err
    assert run_app(["run", str(path), "--sha256", "0" * 64]) == 2
    assert "are about artifacts" in capsys.readouterr().err


def test_a_model_with_open_dimensions_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "open.onnx"
    onnx.save(branches(batch="n"), path)
    assert run_app(["run", str(path)]) == 2
    assert '--dim "n=1" of `tvm-interop compile`' in capsys.readouterr().err
