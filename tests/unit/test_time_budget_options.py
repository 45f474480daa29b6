"""Tests the options of the time budget, and the messages about steps that were left out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import onnx
import pytest

import tvm_interop
from tests import nets
from tests.unit.test_time_budget import compiled
from tvm_interop.cli.app import run_app
from tvm_interop.compiler import time_budget
from tvm_interop.errors import InputError


@pytest.mark.parametrize("wrong", [-1, -0.5, math.nan, math.inf, "soon", True, [1]])
def test_a_wrong_budget_is_told(wrong: Any) -> None:
    with pytest.raises(InputError, match=r"`time_budget` is .* 0 or more, or leave it out"):
        compiled(time_budget=wrong)


@pytest.mark.parametrize("wrong", ["-1", "soon", "nan", "inf"])
def test_the_command_line_refuses_a_wrong_budget(
    wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(nets.chain(2), tmp_path / "net.onnx")
    given = ["compile", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "net.tar")]
    assert run_app([*given, f"--time-budget={wrong}"]) == 2
    assert "budget" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_an_unknown_scheduler_is_refused_without_time() -> None:
    with pytest.raises(tvm_interop.ScheduleError, match="`iso`"):
        compiled(scheduler="iso", time_budget=0)


def test_the_error_of_bf16_needs_time() -> None:
    with pytest.raises(InputError, match="`time_budget` is 0, but `precision` bf16"):
        compiled(precision="bf16", providers=None, time_budget=0)


def test_what_was_not_tried_is_printed_and_stays_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "net.onnx", tmp_path / "net.tar"
    onnx.save(nets.branches(), path)
    given = ["compile", str(path), "-o", str(out), "--time-budget", "0"]
    assert run_app(given) == 0
    told = capsys.readouterr().out
    assert "not tried within --time-budget: " in told
    assert "scheduler `auto`" in told
    kept = tvm_interop.load(out).manifest.not_tried
    assert run_app([*given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_tried"] == list(kept)
    assert all(text in told for text in kept)


def test_the_page_tells_the_shares() -> None:
    text = (Path(__file__).parents[2] / "docs" / "compile.rst").read_text()
    assert f"at most {time_budget.CHOICE_SHARE:.0%} of the time" in text
    assert f"at most {time_budget.SCHEDULE_SHARE:.0%} of the time that is left" in text
    assert time_budget.LIBRARIES_SHARE == 0.5
    assert "at most half of the time that step 1 leaves" in text
