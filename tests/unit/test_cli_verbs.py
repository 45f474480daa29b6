"""Tests the verbs `bench` and `devices`, the options for TVM's passes, and shell completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.nets import chain, inception_like
from tvm_interop import models, schedulers
from tvm_interop.cli import names
from tvm_interop.cli.app import run_app
from tvm_interop.cli.pass_context import read_config
from tvm_interop.latency.described import DEVICES
from tvm_interop.machine.kernel_libraries import provider_names
from tvm_interop.scheduling import registry


@pytest.fixture
def net(tmp_path: Path) -> str:
    onnx.save(inception_like(), tmp_path / "net.onnx")
    return str(tmp_path / "net.onnx")


@pytest.fixture
def small(tmp_path: Path) -> str:
    onnx.save(chain(2), tmp_path / "small.onnx")
    return str(tmp_path / "small.onnx")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a wrong command line, check that it fails, and return the line on standard error."""
    assert run_app(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tvm-interop: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_bench(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", net, "--schedulers", "greedy,lios", "--rounds", "3", "--streams", "2"]
    assert run_app(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["scheduler", "sequential", "greedy", "lios"]
    assert lines[1].split()[-1] == "1.000"
    assert "against itself" in lines[4]
    assert run_app([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [row["scheduler"] for row in facts["rows"]] == ["sequential", "greedy", "lios"]
    assert all(row["median_us"] > 0 for row in facts["rows"])
    assert facts["rows"][1]["streams"] == 2
    assert "`oops`" in refused(capsys, "bench", net, "--schedulers", "lios,oops")
    assert "nowhere.onnx" in refused(capsys, "bench", "nowhere.onnx")


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["devices"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("cpu ")
    assert "onednn" in printed
    assert run_app(["devices", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["cpu"]["cores"] >= 1
    assert set(facts["kernels"]) >= {"tvm", "onednn"}


def test_tvms_passes(small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "small.tar"
    assert run_app([
        "compile", small, "-o", str(out), "-f", "tar", "--model-format", "onnx", "--json",
        "-O", "3", "--pass-config", "tirx.disable_vectorize=true", "--disabled-pass", "FuseTIR2,X",
        "--print-pass-times", "--print-ir-before", "[LegalizeOps]", "--print-ir-after", "NoSuch",
    ]) == 0  # fmt: skip
    captured = capsys.readouterr()
    assert json.loads(captured.out)["operators"] == 2
    assert "LegalizeOps: " in captured.err
    assert "# before LegalizeOps" in captured.err
    assert "R.nn.conv2d" in captured.err
    assert "no pass `NoSuch` ran; the passes that ran are " in captured.err


def test_a_disabled_pass_does_not_run(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "compile", small, "--disabled-pass", "LegalizeOps")
    assert "conv" in said


def test_wrong_pass_settings(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "compile", small, "--pass-config", "tirx.disable_vectorise=1")
    assert "did you mean `tirx.disable_vectorize`?" in said
    said = refused(capsys, "compile", small, "--pass-config", "tirx.disable_vectorize=perhaps")
    assert "true or false" in said
    assert "NAME=VALUE" in refused(capsys, "compile", small, "--pass-config", "fast")
    said = refused(capsys, "compile", small, "--pass-config", "tirx.vtcm_capacity=x")
    assert "whole number" in said
    assert "--opt-level" in refused(capsys, "compile", small, "-O", "4")


def test_config_types() -> None:
    assert read_config(["tirx.disable_vectorize=True", "tirx.vtcm_capacity = 12"]) == {
        "tirx.disable_vectorize": True,
        "tirx.vtcm_capacity": 12,
    }


def test_wrong_formats(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "kernels.so" in refused(capsys, "compile", small, "-f", "so")
    assert "microTVM" in refused(capsys, "compile", small, "-f", "mlf")
    assert "no such format" in refused(capsys, "compile", small, "-f", "zip")
    assert "to ONNX" in refused(capsys, "compile", small, "--model-format", "keras")
    assert "`tvm`" in refused(capsys, "compile", small, "--model-format", "tvm")


def test_old_targets(small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "small.tar")
    for target in ("llvm -num-cores=2", '{"kind": "llvm", "num-cores": 2}'):
        assert run_app(["compile", small, "-o", out, "--target", target]) == 0
    capsys.readouterr()
    assert "`-libs`" in refused(capsys, "compile", small, "--target", "llvm -libs=cblas")
    assert "is not JSON" in refused(capsys, "compile", small, "--target", '{"kind"')
    assert "`nonsense`" in refused(capsys, "compile", small, "--target", "nonsense")


def test_schedule_as_json(small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["schedule", small, "--scheduler", "sequential", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["operators"] == 2
    assert facts["schedule"]["scheduler"] == "sequential"
    out = str(tmp_path / "schedule.json")
    assert run_app(["schedule", small, "--scheduler", "sequential", "--json", "-o", out]) == 0
    assert json.loads(capsys.readouterr().out)["output"] == out


def test_one_line_for_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "`tvm-interop compile --help`" in refused(capsys, "compile")
    assert "--colour" in refused(capsys, "compile", "net.onnx", "--colour", "red")
    assert "complie" in refused(capsys, "complie", "net.onnx")


def test_one_clear_line_for_what_is_wrong(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tar, nowhere = str(tmp_path / "small.tar"), str(tmp_path / "nowhere" / "out")
    assert run_app(["compile", small, "-o", tar, "--scheduler", "sequential"]) == 0
    capsys.readouterr()
    for arguments, said in (
        (["compile", small, "--max-groups", "0"], "--max-groups"),
        (["compile", small, "--streams", "two"], "--streams"),
        (["compile", "sqeezenet"], "did you mean `squeezenet`?"),
        (["run", small, "--sha256", "0"], "are for artifacts"),
        (["run", tar, "--inputs", small], "is not an .npz file; write it with numpy.savez"),
        (["run", tar, "--inputs", nowhere], "No such file"),
        (["run", tar, "-o", nowhere], f"no folder `{tmp_path / 'nowhere'}`"),
        (["show", tar, "-o", nowhere], f"no folder `{tmp_path / 'nowhere'}`"),
        (["schedule", small, "--scheduler", "greedy", "-o", nowhere], "no folder"),
        (["bench", small, "--schedulers", ","], "--schedulers does not name a scheduler"),
        (["db", "import", nowhere], f"No such file or directory: `{nowhere}`"),
    ):
        line = refused(capsys, *arguments)
        assert said in line
        assert "method gz" not in line
        assert len(line) < 300


def test_no_arguments_show_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app([]) == 0
    printed = capsys.readouterr().out
    assert all(verb in printed for verb in ("compile", "run", "schedule", "bench", "devices"))


def test_completion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "networks").mkdir()
    (tmp_path / "networks" / "mine.onnx").touch()
    (tmp_path / "networks" / "mine.tar").touch()
    (tmp_path / "networks" / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_TVM_INTEROP_COMPLETE", "complete_bash")

    def completed(line: str) -> list[str]:
        """Return the words that bash gets when the Tab key is pressed at the end of `line`."""
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        assert run_app([]) == 0
        return capsys.readouterr().out.split()

    assert completed("tvm-interop com") == ["compile", "compare"]
    assert completed("tvm-interop compile light:sq") == ["light:squeezenet"]
    assert completed("tvm-interop compile squ") == ["squeezenet"]
    assert completed("tvm-interop explain squ") == ["squeezenet"]
    assert completed("tvm-interop explain networks/") == ["networks/mine.onnx", "networks/mine.tar"]
    assert completed("tvm-interop compile net") == ["networks/"]
    assert completed("tvm-interop compile networks/") == ["networks/mine.onnx"]
    assert completed("tvm-interop compile squeezenet --scheduler se") == ["sequential"]


@pytest.mark.parametrize(
    ("words", "said"),
    [("com", "compile"), ("compile --sched", "--scheduler"), ("run --rpc-t", "--rpc-tracker"),
     ("compile squ", "squeezenet"), ("compile net --scheduler li", "lios+"), (None, "compile")],
)  # fmt: skip
def test_help_and_completion_do_not_wait_for_tvm(words: str | None, said: str) -> None:
    """Completion must not import TVM.

    The import takes seconds, which is too long after the Tab key.
    """
    if words is None:
        run, asked = f"run_app({['compile', '--help']})", {}
    else:
        line = f"tvm-interop {words}"
        run = "run_app([])"
        asked = {
            "_TVM_INTEROP_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
        }
    script = (
        f"import sys; from tvm_interop.cli.app import run_app; {run}; "
        "print('imported', sorted({'tvm', 'tvm_ffi', 'onnx'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **asked}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert said in ran.stdout
    assert ran.stdout.splitlines()[-1] == "imported []"


def test_names_are_those_there_are() -> None:
    # Other tests may have registered more schedulers.
    assert {*names.SCHEDULERS} <= {*schedulers()}
    assert {name for name in schedulers() if registry.is_own(name)} == {*names.SCHEDULERS}
    assert provider_names() == names.PROVIDERS
    assert sorted(names.DEVICES) == sorted(DEVICES)
    assert list(names.NETWORKS) == models.list()
    assert names.light_networks() == [f"light:{name}" for name in models.light.names()]
