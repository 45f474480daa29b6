"""Tests `tvm-interop models`, and verbs that get the name of a network instead of a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tvm_interop import models
from tvm_interop.cli.app import run_app


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "name", "operators", "edges", "width", "parameters", "GFLOPs", "inputs",
    ]  # fmt: skip
    rows = {line.split()[0]: line.split() for line in lines[1:] if line}
    assert rows["squeezenet"][1:6] == ["50", "65", "3", "1.6", "M"]
    assert rows["nasnet_a"][1:3] == ["374", "576"]
    assert set(models.list()) < set(rows)
    assert "light:squeezenet" in lines[-1].split()


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["models", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    networks = {network["name"]: network for network in facts["networks"]}
    assert list(networks) == models.list()
    inception = networks["inception_v3"]
    assert (inception["operators"], inception["edges"]) == (119, 153)
    assert inception["gflops"] == pytest.approx(11.4, rel=0.01)
    assert inception["inputs"] == {"image": "float32[1, 3, 299, 299]"}
    assert "squeezenet" in facts["light"]


def test_a_name_in_place_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_app(["schedule", "squeezenet", "--scheduler", "sequential"]) == 0
    printed = capsys.readouterr().out
    assert "fire2/squeeze1x1/conv" in printed
    assert run_app(["schedule", "light:squeezenet", "--scheduler", "sequential"]) == 0
    assert capsys.readouterr().out != printed


def test_wrong_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_app(["compile", "sqeezenet"]) == 2
    said = capsys.readouterr().err
    assert "did you mean `squeezenet`?" in said
    assert said.count("\n") == 1
    assert run_app(["schedule", "light:sqeezenet"]) == 2
    assert "shufflenet" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
