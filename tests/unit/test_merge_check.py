"""Tests the comparison of merged operators with the operators that they replace."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from tvm import relax

import tvm_interop
from tests.merging import MERGED, Eager, by_hand, cut_too_late, two_convs
from tests.native_runtime import load_in_both
from tvm_interop import Artifact, ArtifactError, ScheduleError
from tvm_interop.artifact.manifest import MergeCheck
from tvm_interop.cli import compile as command
from tvm_interop.cli.app import run_app
from tvm_interop.compiler import cpu
from tvm_interop.compiler.annotate import annotated_merge_check
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.compiler.merge_check import LIMIT, _allowed, _as_shipped, _difference
from tvm_interop.frontend import load_model
from tvm_interop.lowering.merge_convs import merged_beside_apart
from tvm_interop.transform import InterOpSchedule

CONVS = ("one/Conv", "three/Conv")


def compilation(**options: Any) -> Compilation:
    made = CompileOptions(latency_db=":memory:", parts=1, **options)
    return Compilation(two_convs(), made)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    made = compilation(providers=["onednn"], streams=2)
    return made.artifact(by_hand(made, CONVS))


def test_the_manifest_says_how_far_apart_the_results_are(
    artifact: Artifact, tmp_path: Path
) -> None:
    check = artifact.manifest.merge_check
    assert check is not None
    assert list(check.differences) == [MERGED]
    assert check.largest is not None
    assert check.largest < 1e-6
    artifact.save(tmp_path / "model.tar")
    assert load_in_both(tmp_path / "model.tar").manifest.merge_check == check


def test_nothing_is_said_if_nothing_is_merged() -> None:
    made = compilation(providers=["onednn"])
    manifest = made.artifact(made.sequential()).manifest
    assert manifest.merge_check is None
    # Older versions of this package refuse a field that they do not know, so an artifact that does
    # not need the field must not have it.
    assert b"merge_check" not in manifest.to_json()


def test_a_cut_at_a_wrong_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compilation(providers=["onednn"])
    schedule = by_hand(made, CONVS)
    cut_too_late(monkeypatch)
    says = r"`one/Conv`, `three/Conv` cannot be merged: .* differ from theirs by [\d.]+ of"
    with pytest.raises(ScheduleError, match=says):
        made.merge_check(schedule)


def test_the_pass_checks_and_the_artifact_says_so() -> None:
    options = {"providers": ["onednn"], "parts": 1}
    merging = InterOpSchedule("ios-merge", latency=Eager(compilation()), **options)
    artifact = tvm_interop.compile(
        merging(load_model(two_convs())), providers=["onednn"], keep_slower=True
    )
    check = artifact.manifest.merge_check
    assert check is not None
    assert check.largest is not None
    assert list(check.differences) == [MERGED]


def test_each_operator_is_compared_on_the_library_that_ships_it() -> None:
    """In the model, oneDNN runs `one/Conv`. TVM runs `three/Conv` and the merged operator.

    Two more operators cut the merged output into results. oneDNN cannot run such operators.
    """
    made = compilation(providers=["onednn"])
    operators = [
        dataclasses.replace(op, library="onednn" if op.name == "one/Conv" else None)
        for op in made.program.operators
    ]
    shipped = dataclasses.replace(made.program, operators=operators)
    module, sizes = made.merges.beside_apart([CONVS])
    assert sizes == [2]
    lowered = made.backend.lower_unmeasured(
        module, None, lambda program: _as_shipped(program, [shipped])
    )
    used = {op.name: op.library for op in lowered.program.operators}
    assert [used[name] for name in (*CONVS, MERGED)] == ["onednn", None, None]
    assert len(used) == 5


def test_the_separate_operators_are_those_of_the_model() -> None:
    """The separate operators are copied from the model. The merged operator is built anew."""
    module, _ = merged_beside_apart(compilation().merges._module, [CONVS])
    calls = [
        binding.value
        for block in module["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]
    convs = [call for call in calls if call.op.name == "relax.nn.conv2d"]
    assert [[int(n) for n in call.args[1].ty.shape] for call in convs] == [
        [3, 4, 1, 1],
        [5, 4, 3, 3],
        [8, 4, 3, 3],
    ]


def test_a_cpu_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compilation(providers=["onednn"])
    monkeypatch.setattr(cpu, "runs_here", lambda target: False)
    found = made.merge_check(by_hand(made, CONVS))
    assert found.differences == {MERGED: None}
    assert found.largest is None
    assert "1 merged operator, not checked against the separate operators: this mach" in str(found)


def test_what_counts_as_a_difference() -> None:
    apart = np.array([1.0, -4.0], np.float32)
    assert _difference(apart, apart) == 0
    assert _difference(apart, np.array([1.0, -3.0], np.float32)) == 0.25
    assert _difference(apart, np.array([math.nan, -4.0], np.float32)) == math.inf
    assert _difference(np.zeros(2), np.array([0.0, 1e-9])) == math.inf
    assert _difference(np.array([math.nan, 1.0]), np.array([math.nan, 1.0])) == 0
    assert _difference(np.array([math.inf, 1.0]), np.array([math.inf, 2.0])) == math.inf


def test_what_is_allowed() -> None:
    options = CompileOptions()
    assert _allowed(np.dtype("float32"), options) == LIMIT == 1e-4
    assert _allowed(np.dtype("int32"), options) == LIMIT
    assert _allowed(np.dtype("float16"), options) == 4 * 2.0**-10
    assert _allowed(np.dtype(ml_dtypes.bfloat16), options) == 4 * 2.0**-7
    assert _allowed(np.dtype("float32"), CompileOptions(precision="bf16")) == 4 * 2.0**-7
    assert _allowed(np.dtype("float32"), CompileOptions(allow_tf32=True)) == 4 * 2.0**-10


def test_an_artifact_may_say_that_nothing_was_checked(artifact: Artifact, tmp_path: Path) -> None:
    unchecked = MergeCheck({MERGED: None}, "there is no GPU")
    manifest = msgspec.structs.replace(artifact.manifest, merge_check=unchecked)
    dataclasses.replace(artifact, manifest=manifest).save(tmp_path / "model.tar")
    found = load_in_both(tmp_path / "model.tar").manifest.merge_check
    assert found == unchecked
    assert "not checked against the separate operators: there is no GPU" in str(found)


def test_an_attribute_that_nobody_can_read() -> None:
    module = load_model(two_convs())
    main = module.get_global_var("main")
    module[main] = module[main].with_attr("tvm_interop.merge_check", "far")
    with pytest.raises(ScheduleError, match=r"`tvm_interop.merge_check` of `main` cannot be read"):
        annotated_merge_check(module)


@pytest.mark.parametrize(
    "wrong",
    [
        MergeCheck({MERGED: -1.0}),
        MergeCheck({MERGED: "far"}),  # type: ignore[dict-item]
        MergeCheck({MERGED: None}, 7),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_field_is_refused(artifact: Artifact, wrong: MergeCheck, tmp_path: Path) -> None:
    manifest = msgspec.structs.replace(artifact.manifest, merge_check=wrong)
    dataclasses.replace(artifact, manifest=manifest).save(tmp_path / "model.tar")
    with pytest.raises(ArtifactError):
        load_in_both(tmp_path / "model.tar")


def test_commands_print_it(
    artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = str(tmp_path / "model.tar"), str(tmp_path / "page.html")
    said = "1 merged operator; the results differ from those of the separate operators by at most"
    artifact.save(path)
    for typed in (["show", path, "--no-run", "-o", page], ["explain", path, "--no-measure"]):
        assert run_app(typed) == 0
        assert said in capsys.readouterr().out
        assert run_app([*typed, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        (told,) = told.get("records", [told])
        assert list(told["merge_check"]["differences"]) == [MERGED]
    assert "merged operators differ by" in Path(page).read_text()


def test_compile_prints_it(
    artifact: Artifact,
    tmp_path: Path,
) -> None:
    artifact.save(tmp_path / "model.tar")
    assert "1 merged operator; the results differ" in command._summary(artifact, None)
    facts = command._facts(artifact)
    assert facts["merge_check"] == msgspec.to_builtins(artifact.manifest.merge_check)
