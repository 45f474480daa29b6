"""Tests how `operator_profile` matches operators of two runtimes, and how it counts times."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import operator_profile
from benchmarks.operator_groups import OperatorGroups
from benchmarks.operator_profile import Row, Run, Span, compare, shares_us, tables
from tests import nets


def residual() -> onnx.ModelProto:
    """The sum of two convolutions, concatenated with a grouped convolution of the sum."""
    net = nets.Net()
    x = net.input("x", [1, 4, 5, 5])
    shape = net.constant(np.array([4, 1, 1], np.int64))
    net.op("Reshape", [net.positive(4), shape], "scale")
    net.op("Sqrt", ["scale"], "root")
    net.op("Mul", [net.conv(x, "a", (4, 4), 3), "root"], "scaled")
    net.op("Sum", [net.conv("scaled", "b", (4, 4), 3), "scaled"], "sum")
    net.op("Relu", ["sum"], "relu")
    net.op("Concat", ["relu", net.conv("relu", "g", (4, 4), 1, group=2)], "y", axis=1)
    return net.model("y")


def test_elementwise_operators_are_in_the_group_of_their_latest_producer() -> None:
    groups = OperatorGroups(residual())
    assert groups.kinds == {
        "a/Conv": "convolution",
        "b/Conv": "convolution",
        "g/Conv": "grouped convolution",
        "y/Concat": "concatenation",
    }
    assert groups.of("scaled/Mul") == "a/Conv"
    assert groups.of("relu/Relu") == groups.of("sum/Sum") == "b/Conv"
    assert groups.of("root/Sqrt") is None  # `root` depends only on constants.


def test_names_are_known_with_what_runtimes_add_to_them() -> None:
    groups = OperatorGroups(residual())
    for name in (
        "b/Conv[1/2]",
        "b/Conv_3",
        "fused b/Conv",
        "relu_nchwc_token_7",
        "b/Conv/MatMulAddFusion",
    ):
        assert groups.of(name) == "b/Conv", name
    assert groups.of("ReorderOutput_token_7") is None
    assert groups.of("") is None


def test_operators_side_by_side_share_the_time() -> None:
    spans = [Span("a", "", 0, 10), Span("b", "", 4, 10), Span("c", "", 12, 15)]
    assert shares_us(spans) == [7, 3, 3]


def test_compare() -> None:
    """The comparison has rows for operators, for kinds of operators, and for the time between
    operators. Their times are medians over the runs."""
    ours = [
        Run([Span("a/Conv[1/2]", "", 0, us), Span("a/Conv[2/2]", "", 0, us)], us + 5)
        for us in (10, 20, 90)
    ]
    theirs = [
        Run(
            [
                Span("ReorderInput", "reorder", 0, 2),
                Span("scaled_nchwc", "", 2, 9),
                Span("b", "", 9, 10),
            ],
            12,
        )
    ]
    found = compare(OperatorGroups(residual()), ours, theirs)
    assert found.operators == [
        Row("a/Conv", "convolution", 20, 7)
    ]  # Our runs have no operator `b`.
    assert found.kinds == [
        Row("convolution", "convolution", 20, 8),
        Row("reorder", "reorder", 0, 2),
        Row(operator_profile.BETWEEN, operator_profile.BETWEEN, 5, 2),
    ]
    assert (found.profiled.ours_us, found.profiled.onnxruntime_us) == (25, 12)
    written = tables(found)
    assert "| convolution | 20 | 80% | 8 | 67% | 2.50 |" in written
    assert "| a/Conv | convolution | 20 | 7 | 13 | 2.86 |" in written


def test_a_small_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "branches.onnx"
    onnx.save(nets.branches(), path)
    options = ["--scheduler", "sequential", "--runs", "3", "--force", "--json"]
    monkeypatch.setattr(sys, "argv", ["operator_profile", str(path), *options])
    assert operator_profile.main() == 0
    found = json.loads(capsys.readouterr().out)
    operators = {row["name"]: row for row in found["operators"]}
    for name in ("c1/Conv", "c3/Conv", "pool/MaxPool"):
        # onnxruntime counts whole microseconds, so the time of a small operator may be 0.
        assert operators[name]["ours_us"] > 0
        assert operators[name]["onnxruntime_us"] >= 0
    kinds = {row["name"]: row for row in found["kinds"]}
    assert kinds["convolution"]["onnxruntime_us"] > 0
    assert "depthwise convolution" in kinds
    assert "other" not in kinds  # Each operator of both runtimes has a known kind.
    for whole in (found["profiled"], found["plain"]):
        assert min(whole["ours_us"], whole["onnxruntime_us"]) > 0
