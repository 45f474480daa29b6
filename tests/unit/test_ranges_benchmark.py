"""Tests the benchmark of random sizes of open dimensions."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import ranges
from tests.nets import branches


def test_sizes_and_inputs_are_those_that_are_asked_for() -> None:
    told = {
        "ranges": {"height": (60, 200), "batch": (1, 3)},
        "multiples": {"height": 32},
        "inputs": {"x": [["batch", 3, "height"], 0, None], "ids": [["batch"], 5, 9]},
    }
    drawn = [ranges._drawn(told, random.Random(seed)) for seed in range(99)]
    assert {each["height"] for each in drawn} == {64, 96, 128, 160, 192}
    assert {each["batch"] for each in drawn} == {1, 2, 3}
    feed = ranges._feed(told, {"height": 64, "batch": 2})
    assert feed["x"].shape == (2, 3, 64)
    assert all(5 <= number < 9 for number in feed["ids"])


def test_the_largest_difference_counts() -> None:
    one, other = np.array([1.0, -4.0]), np.array([1.0, -4.2])
    assert ranges._difference([one, one], [one, other]) == pytest.approx(0.2 / 4.2)
    assert ranges._difference([one], [one[:1]]) == np.inf


def test_a_network_is_measured_beside_its_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path / "kept"))
    monkeypatch.setenv("TVM_INTEROP_LATENCY_DB", str(tmp_path / "latency.db"))
    monkeypatch.setattr(ranges, "_REST_S", 0.0)
    onnx.save(branches(batch="batch"), tmp_path / "net.onnx")
    told = {
        "ranges": {"batch": [1, 3]},
        "multiples": {},
        "inputs": {"x": [["batch", 8, 8, 8], 0, None]},
    }
    (tmp_path / "net.json").write_text(json.dumps(told))
    found = tmp_path / "found.json"
    options = ["--sizes", "4", "--runs", "1", "--json", str(found)]
    monkeypatch.setattr("sys.argv", ["ranges", str(tmp_path), "net", *options])
    assert ranges.main() == 0
    (row,) = json.loads(found.read_text())
    assert row["sizes"] == 4
    assert row["error"] < 1e-5
    assert row["over"]["onnxruntime"] > 0
    assert "| net | 4 |" in capsys.readouterr().out
