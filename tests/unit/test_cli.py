"""Tests the verbs of the command line as a user types them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_interop.execution.threads
from tests.nets import chain, inception_like, two_inputs
from tvm_interop.cli.app import run_app
from tvm_interop.cli.console import json_text
from tvm_interop.cli.run import _top
from tvm_interop.cli.shape_options import parse_input_shapes
from tvm_interop.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    onnx.save(inception_like(), folder / "net.onnx")
    onnx.save(two_inputs(), folder / "two.onnx")
    assert run_app([
        "compile", str(folder / "two.onnx"), "-o", str(folder / "two.tar"),
        "--scheduler", "greedy", "--streams", "2", "--keep-slower",
    ]) == 0  # fmt: skip
    return folder


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a wrong command line, check that it fails, and return the line on standard error."""
    assert run_app(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_odd_values_of_options_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'--seed'" in refused(capsys, "tune", "net.onnx", "--seed", "-1")
    assert "cannot read `batch=²`" in refused(capsys, "compile", "net.onnx", "--dim", "batch=²")
    said = refused(capsys, "serve", "my model.tar", "--http-port", "0", "--grpc-port", "0")
    assert "cannot be called 'my model': give it a name (--name)" in said


def test_the_largest_values_are_exact_and_json_has_no_nan() -> None:
    largest = [2**53 + 1, 7, -(2**60) - 1]
    assert [row["value"] for row in _top("y", np.array(largest), 3)] == largest
    top = _top("y", np.array([1.5, np.nan, np.inf], np.float32), 3)
    read = json.loads(json_text({"top": top, "time": (2.0, None)}), parse_constant=pytest.fail)
    assert [row["value"] for row in read["top"]] == [None, None, 1.5]
    assert read["time"] == [2.0, None]


def test_compile_and_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "net.tar"
    assert run_app(["compile", str(folder / "net.onnx"), "-o", str(out), "--scheduler", "ios"]) == 0
    printed = capsys.readouterr().out
    assert "operators" in printed
    assert "speed check: `ios` takes " in printed
    assert f"wrote {out}" in printed
    data = np.random.default_rng(0).standard_normal((1, 8, 14, 14)).astype("float32")
    np.savez(tmp_path / "in.npz", x=data)
    assert run_app([
        "run", str(out),
        "--inputs", str(tmp_path / "in.npz"), "--outputs", str(tmp_path / "out.npz"),
        "--print-time", "--repeat", "3", "--number", "2", "--print-top", "3",
        "--profile", str(tmp_path / "trace.json"), "--print-profile", "--device", "cpu",
        "--end-to-end",
    ]) == 0  # fmt: skip
    printed = capsys.readouterr().out
    assert "operator" in printed
    assert "a1/Conv" in printed
    assert "median" in printed
    assert "float32 of shape (1, 10)" in printed
    with np.load(tmp_path / "out.npz") as outputs:
        np.testing.assert_allclose(outputs["y"].sum(), 1, rtol=1e-5)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {e["name"] for e in events if e["ph"] == "X"} > {"a1/Conv", "logits/Gemm"}


def test_json(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app([
        "compile", str(folder / "two.onnx"), "-o", str(tmp_path / "m.tar"), "--json",
        "--scheduler", "lios", "--streams", "2",
    ]) == 0  # fmt: skip
    facts = json.loads(capsys.readouterr().out)
    assert facts["scheduler"] == "lios"
    assert run_app(["run", str(folder / "two.tar"), "--json", "--print-time", "--repeat", "1"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["outputs"]["features"] == {"shape": [1, 16], "dtype": "float32"}
    assert facts["time_ms"]["median"] > 0


def test_schedule_edit_and_give_back(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "schedule.json", tmp_path / "net.tar"
    model = str(folder / "net.onnx")
    assert run_app(["schedule", model, "-o", str(path), "--scheduler", "greedy"]) == 0
    path.write_text(path.read_text().replace('"scheduler": "greedy"', '"scheduler": "mine"'))
    arguments = ["compile", model, "-o", str(out), "--schedule", str(path), "--json"]
    assert run_app([*arguments, "--keep-slower"]) == 0
    assert json.loads(capsys.readouterr().out)["shipped"] == "mine"
    assert run_app([*arguments[:-1], "--keep-slower"]) == 0
    assert capsys.readouterr().out.startswith("`schedule.json` has ")
    assert run_app(["schedule", model, "--scheduler", "sequential"]) == 0
    assert json.loads(capsys.readouterr().out)["scheduler"] == "sequential"


def test_a_pinned_digest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(folder / "two.tar")
    digest = hashlib.sha256((folder / "two.tar").read_bytes()).hexdigest()
    assert run_app(["run", model, "--sha256", digest]) == 0
    assert run_app(["run", model, "--sha256", "0" * 64]) == 2
    assert f"its SHA-256 is {digest}, not 000" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["schedule", "compile", "bench", "tune"])
def test_an_artifact_in_the_place_of_a_model(
    folder: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    model = str(folder / "two.tar")
    assert run_app([verb, model]) == 2
    said = capsys.readouterr().err
    assert f"`{model}` is an artifact, not a model" in said
    assert f"`tvm-interop run {model}`" in said
    assert f"`tvm-interop show {model}`" in said


def test_fill_modes(folder: Path, tmp_path: Path) -> None:
    results = {}
    for mode in ("zeros", "ones", "random"):
        out = tmp_path / f"{mode}.npz"
        assert run_app(["run", str(folder / "two.tar"), "--fill-mode", mode, "-o", str(out)]) == 0
        with np.load(out) as outputs:
            results[mode] = outputs["scores"]
    assert not results["zeros"].any()
    assert not np.array_equal(results["ones"], results["random"])


def test_wrong_models(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.tar"
    notes = tmp_path / "notes.onnx"
    notes.write_text("not a model")
    assert "notes.onnx" in refused(capsys, "compile", str(notes), "-o", str(out))
    assert "nowhere.onnx" in refused(capsys, "compile", "nowhere.onnx", "-o", str(out))
    onnx.save(chain(2, batch="batch"), tmp_path / "open.onnx")
    said = refused(capsys, "compile", str(tmp_path / "open.onnx"), "-o", str(out))
    assert "`x`" in said
    assert "--input-shapes" in said
    assert not out.exists()
    assert run_app([
        "compile", str(tmp_path / "open.onnx"), "-o", str(out), "--input-shapes", "x:[1,4,4,4]",
        "--scheduler", "sequential",
    ]) == 0  # fmt: skip


def test_wrong_requests(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = str(folder / "net.onnx"), str(tmp_path / "model.tar")
    assert "`oops`" in refused(capsys, "compile", model, "-o", out, "--scheduler", "oops")
    assert "max_groups" in refused(
        capsys, "compile", model, "-o", out, "--scheduler", "lios", "--max-groups", "3"
    )
    assert "`endings`" in refused(capsys, "compile", model, "-o", out, "--endings", "happy")
    assert "NAME:[D,D" in refused(capsys, "compile", model, "-o", out, "--input-shapes", "x=1,2")
    assert "`z`" in refused(capsys, "compile", model, "-o", out, "--input-shapes", "z:[1]")
    schedule = tmp_path / "schedule.json"
    schedule.write_text('{"format": "something else"}')
    said = refused(capsys, "compile", model, "-o", out, "--schedule", str(schedule))
    assert "schedule.json" in said
    assert "nowhere.json" in refused(capsys, "compile", model, "--schedule", "nowhere.json")
    assert "no folder" in refused(capsys, "compile", model, "-o", str(tmp_path / "no" / "m.tar"))
    assert "--streams" in refused(capsys, "compile", model, "-o", out, "--streams", "0")
    assert "--colour" in refused(capsys, "compile", model, "-o", out, "--colour", "red")
    assert list(tmp_path.iterdir()) == [schedule]


def test_wrong_runs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = str(folder / "two.tar")
    cut = tmp_path / "cut.tar"
    cut.write_bytes((folder / "two.tar").read_bytes()[:5000])
    assert "cut.tar" in refused(capsys, "run", str(cut))
    renamed = tmp_path / "model.tar"
    renamed.write_bytes((folder / "two.onnx").read_bytes())
    assert "not an artifact of tvm_interop" in refused(capsys, "run", str(renamed))
    np.savez(tmp_path / "wrong_name.npz", picture=np.zeros(3))
    said = refused(capsys, "run", artifact, "-i", str(tmp_path / "wrong_name.npz"))
    assert "`picture`" in said
    assert "`image`" in said
    np.savez(tmp_path / "one.npz", image=np.zeros((1, 4, 2, 2), "float32"))
    said = refused(capsys, "run", artifact, "-i", str(tmp_path / "one.npz"))
    assert "no array for input `vector`" in said
    assert "`vector` (float32 of shape (1, 6))" in said
    assert "compiled for cpu" in refused(capsys, "run", artifact, "--device", "cuda")
    np.savez(tmp_path / "wrong_shape.npz", image=np.zeros((1, 4, 2, 3), "float32"), vector=[1])
    said = refused(capsys, "run", artifact, "-i", str(tmp_path / "wrong_shape.npz"))
    assert "(1, 4, 2, 3)" in said
    (tmp_path / "text.npz").write_text("text")
    assert "text.npz" in refused(capsys, "run", artifact, "-i", str(tmp_path / "text.npz"))
    assert "nowhere.npz" in refused(capsys, "run", artifact, "-i", "nowhere.npz")


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        (["--threads", "1"], [(1, False)]),
        (["--threads", "2", "--pin"], [(2, True)]),
        (["--pin"], [(tvm_interop.num_threads(), True)]),
        ([], []),
    ],
)
def test_threads_of_a_run(
    folder: Path, typed: list[str], asked: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        tvm_interop.execution.threads,
        "set_num_threads",
        lambda threads, *, pin: told.append((threads, pin)),
    )
    assert run_app(["run", str(folder / "two.tar"), *typed]) == 0
    assert told == asked


def test_threads_of_a_server_are_not_ours(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--rpc-tracker", "localhost:9", "--rpc-key", "board")
    said = refused(capsys, "run", str(folder / "two.tar"), "--pin", *where)
    assert "TVM_INTEROP_NUM_THREADS" in said


def test_verbose_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["run", "nowhere.tar", "--verbose"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_input_shapes() -> None:
    assert parse_input_shapes(None) is None
    assert parse_input_shapes("x:[1,3,224,224]") == {"x": (1, 3, 224, 224)}
    assert parse_input_shapes("a:0:[1, 2] 'b':[3]") == {"a:0": (1, 2), "b": (3,)}
    assert parse_input_shapes("s:[]") == {"s": ()}
    for text in ("x", "x:[1,n]", "x:[1,2", "[1,2]"):
        with pytest.raises(InputError, match="--input-shapes"):
            parse_input_shapes(text)


def test_as_a_program(folder: Path) -> None:
    """The command prints help and errors and sets exit codes when it runs in its own process."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tvm_interop", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "100"},
            check=False,
        )

    helped = run("--help")
    assert helped.returncode == 0
    assert all(verb in helped.stdout for verb in ("compile", "run", "schedule"))
    assert "--scheduler" in run("compile", "--help").stdout
    wrong = run("run", "nowhere.tar")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("tvm-interop: error: `nowhere.tar`")
    assert wrong.stderr.count("\n") == 1
    assert run("run", str(folder / "two.tar")).returncode == 0


@pytest.mark.parametrize(("model", "imported"), [("net.onnx", False), ("net.pt2", True)])
def test_pytorch_is_imported_only_for_its_own_models(
    model: str, imported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.delenv("PYTHONPATH")  # Its folder `tests/started` hides PyTorch from TVM.
    code = (
        "import sys; from tvm_interop.cli.quick_import import import_tvm; "
        f"import_tvm({model!r}); "
        "import tvm; from tvm_interop.compiler import api; print('torch' in sys.modules); "
        "import torch; torch.ones(1)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(imported)


def test_pytorch_is_hidden_from_tvm_alone_in_processes_of_tests() -> None:
    pytest.importorskip("torch")
    code = (
        "import importlib.util, sys, tvm; "
        "print('torch' in sys.modules, importlib.util.find_spec('torch') is not None)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True"]
