"""Tests how the differences of two artifacts are found, and the verb `tvm-interop compare`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.nets import attention, inception_like
from tvm_interop import compare, errors
from tvm_interop.artifact.artifact import Artifact, load
from tvm_interop.cli.app import run_app
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.explaining.compare import Comparison, Cost, part_of_plan
from tvm_interop.explaining.differences import differences
from tvm_interop.explaining.text import comparison_text


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    return Compilation(inception_like(), CompileOptions(streams=2, latency_db=":memory:"))


@pytest.fixture(scope="module")
def in_turn(compilation: Compilation) -> Artifact:
    return compilation.artifact(compilation.sequential())


@pytest.fixture(scope="module")
def greedy(compilation: Compilation) -> Artifact:
    return compilation.artifact(compilation.schedule("greedy"))


def test_an_artifact_does_not_differ_from_itself(in_turn: Artifact, greedy: Artifact) -> None:
    assert differences(in_turn, in_turn) == ()
    assert differences(greedy, greedy) == ()


def test_stages_that_differ(in_turn: Artifact, greedy: Artifact) -> None:
    found = differences(in_turn, greedy)
    assert found
    assert {difference.kind for difference in found} == {"stage"}
    names = [name for difference in found for name in difference.operators]
    assert len(set(names)) == len(names)
    assert "stages" in found[0].first
    # The differences do not name operators that are alone in a stage of the second artifact.
    alone = {
        whole
        for stage in greedy.schedule.stages
        if len(stage.groups) == 1
        for whole in (greedy.schedule.op_names[op] for op in stage.ops)
    }
    assert not alone & set(names)


def test_a_kernel_that_differs(in_turn: Artifact) -> None:
    plan = in_turn.plan
    ours = next(i for i, op in enumerate(plan.operators) if op.library is None)
    operators = list(plan.operators)
    operators[ours] = msgspec.structs.replace(operators[ours], kernel="another")
    other = replace(in_turn, plan=msgspec.structs.replace(plan, operators=tuple(operators)))
    (found,) = differences(in_turn, other)
    assert found.kind == "kernel"
    assert found.operators == (operators[ours].whole,)
    assert found.second == "tvm.another"


def test_an_operator_that_only_one_has(in_turn: Artifact) -> None:
    plan = in_turn.plan
    operators = list(plan.operators)
    operators[0] = msgspec.structs.replace(operators[0], name="renamed")
    other = replace(in_turn, plan=msgspec.structs.replace(plan, operators=tuple(operators)))
    found = [d for d in differences(in_turn, other) if d.kind == "operator"]
    assert [d.operators for d in found] == [(plan.operators[0].whole,), ("renamed",)]
    assert (found[0].second, found[1].first) == ("not there", "not there")


def test_different_models_are_named(in_turn: Artifact) -> None:
    options = CompileOptions(streams=2, latency_db=":memory:")
    other = Compilation(attention(), options)
    artifact = other.artifact(other.sequential())
    with pytest.raises(errors.InputError, match="only artifacts of one model"):
        differences(in_turn, artifact)
    plan = in_turn.plan
    renamed = [msgspec.structs.replace(op, name=f"x{i}") for i, op in enumerate(plan.operators)]
    other_names = msgspec.structs.replace(plan, operators=tuple(renamed))
    with pytest.raises(errors.InputError, match="no operator in common"):
        differences(in_turn, replace(in_turn, plan=other_names))
    streams = [msgspec.structs.replace(stream, device="cuda:0") for stream in plan.streams]
    elsewhere = msgspec.structs.replace(plan, streams=tuple(streams))
    with pytest.raises(errors.InputError, match="cuda:0"):
        differences(in_turn, replace(in_turn, plan=elsewhere))


def test_a_part_of_a_plan_keeps_its_order(greedy: Artifact) -> None:
    plan = greedy.plan
    first, last = plan.operators[0].whole, plan.operators[-1].whole
    part = part_of_plan(plan, [first, last])
    assert {op.whole for op in part.operators} == {first, last}
    end = part.operators[-1]
    start = part.operators[0]
    # The last operator runs after the first operator: it is on the same stream, or waits for the
    # first operator.
    assert end.stream == start.stream or 0 in end.waits
    whole = part_of_plan(plan, [op.whole for op in plan.operators])
    assert [op.name for op in whole.operators] == [op.name for op in plan.operators]
    for op, same in zip(plan.operators, whole.operators, strict=True):
        assert set(op.waits) <= set(same.waits) | {
            w for w in op.waits if plan.operators[w].stream == op.stream
        }


def test_an_order_by_way_of_others_becomes_a_wait(greedy: Artifact) -> None:
    a, b, c = (
        msgspec.structs.replace(op, name=name, stream=stream, waits=waits)
        for op, name, stream, waits in zip(
            greedy.plan.operators, "abc", (0, 1, 0), ((), (0,), ()), strict=False
        )
    )
    late = msgspec.structs.replace(c, name="late", stream=1, waits=())
    plan = msgspec.structs.replace(greedy.plan, operators=(a, b, late))
    part = part_of_plan(plan, ["a", "late"])
    assert [op.waits for op in part.operators] == [(), (0,)]


def test_noise() -> None:
    assert not Cost(1, 1, 0.9, (0.8, 1.1), 1.0, 9).is_beyond_noise
    assert not Cost(1, 1, 0.99, (0.98, 0.995), 1.0, 9).is_beyond_noise
    assert not Cost(1, 1, 0.9, None, 1.0, 1).is_beyond_noise
    assert Cost(1, 1, 0.9, (0.85, 0.95), 1.0, 9).is_beyond_noise
    assert Cost(1, 1, 1.1, (1.05, 1.15), 1.0, 9).is_beyond_noise


def test_every_difference_has_a_cost(in_turn: Artifact, greedy: Artifact) -> None:
    found: Comparison = compare(in_turn, greedy, total_s=0.05, each_s=0.02)
    assert found.total is not None
    assert found.total.rounds >= 6
    assert all(cost is not None and cost.first_us > 0 for _, cost in found.differences)
    said = comparison_text(found)
    assert said.count("ratio within a round") == len(found.differences) + 1
    assert "the whole: " in said


def test_the_command(
    in_turn: Artifact, greedy: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = str(tmp_path / "a.tar"), str(tmp_path / "b.tar")
    in_turn.save(a)
    greedy.save(b)
    assert run_app(["compare", a, b, "--seconds", "0.1", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["total"]["rounds"] >= 6
    assert {entry["kind"] for entry in facts["differences"]} == {"stage"}
    assert run_app(["compare", a, b, "--no-measure"]) == 0
    assert "not measured" in capsys.readouterr().out
    assert run_app(["compare", a, a, "--no-measure"]) == 0
    assert "the same operators, kernels and stages" in capsys.readouterr().out
    with pytest.raises(errors.ArtifactError, match="kernels=False"):
        compare(load(a, kernels=False), load(b, kernels=False))
    (tmp_path / "no.tar").write_text("no artifact")
    assert run_app(["compare", a, str(tmp_path / "no.tar")]) == 2
    assert "no.tar" in capsys.readouterr().err
    assert run_app(["compare", a, str(tmp_path / "nowhere.tar")]) == 2
    assert "nowhere.tar" in capsys.readouterr().err


def test_medians_that_contradict_the_ratio_are_told_apart() -> None:
    """The medians contradict the ratio within rounds if the machine becomes faster half-way."""
    busy = Cost(2668.7, 1884.3, 0.984, (0.97, 0.995), 1.002, 60)
    told = comparison_text(Comparison(("a.tar", "b.tar"), (), busy))
    assert "medians 2668.7 and 1884.3 us; ratio within a round 0.984 (0.970 to 0.995)" in told
    assert told.endswith(
        "the ratio of the medians is 0.706, and other work on the machine distorts it"
    )
    quiet = Cost(2000.0, 1960.0, 0.984, (0.97, 0.995), 1.002, 60)
    assert "distorts" not in comparison_text(Comparison(("a.tar", "b.tar"), (), quiet))
