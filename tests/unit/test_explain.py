"""Tests the verdicts on operators, the ceiling, suggested changes and `tvm-interop explain`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.nets import inception_like
from tests.prices import random_clock
from tvm_interop import errors
from tvm_interop._native import cpu
from tvm_interop.artifact.artifact import Artifact, load
from tvm_interop.artifact.manifest import SpeedCheck
from tvm_interop.cli.app import run_app
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.explaining.api import Explanation, explain, explain_subject
from tvm_interop.explaining.findings import find_all, find_pair, shipped_as
from tvm_interop.explaining.subject import Subject
from tvm_interop.explaining.text import explanation_text
from tvm_interop.explaining.verdict import Verdict, judge
from tvm_interop.explaining.wholes import Wholes
from tvm_interop.plan.as_program import program_of
from tvm_interop.program.graph import OpGraph


class Table:
    """Latencies of operators, and the factor by which they slow down if two streams are busy."""

    def __init__(self, op_us: Sequence[float], slowdown: float = 1.0) -> None:
        self.op_us, self.slowdown = op_us, slowdown
        self.asked_again = 0

    def __call__(self, stages: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
        return np.array([self._stage(groups) for groups in stages])

    def again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        self.asked_again += len(stages)
        return len(stages)

    def _stage(self, groups: Sequence[Sequence[int]]) -> float:
        longest = max(sum(self.op_us[op] for op in group) for group in groups)
        return longest * (self.slowdown if len(groups) > 1 else 1.0)


def diamond(op_us: Sequence[float], slowdown: float = 1.0, wait_us: float = 0.0) -> Wholes:
    """`a` and `b` lie between `top` and `end`. No operator is divided."""
    edges = [("top", "a"), ("top", "b"), ("a", "end"), ("b", "end")]
    graph = OpGraph.from_edges(["top", "a", "b", "end"], edges)
    return Wholes(graph, Table(op_us, slowdown), 2, wait_us)


def divided(slowdown: float, part_us: float = 5.0) -> Wholes:
    """Two independent operators `a` and `b`, each divided into two parts."""
    graph = OpGraph.from_edges(["a[1/2]", "a[2/2]", "b[1/2]", "b[2/2]"], [])
    return Wholes(graph, Table([part_us] * 4, slowdown), 2, 1.0, ["a", "a", "b", "b"])


def only(wholes: Wholes) -> tuple[Verdict, str]:
    (finding,) = find_all(wholes)
    return finding.verdict, finding.reason


def test_two_undivided_operators_gain() -> None:
    verdict, reason = only(diamond([1, 10, 10, 1], slowdown=1.2, wait_us=1.0))
    assert verdict is Verdict.PROFITABLE
    assert "20.0 us in turn, 12.0 us side by side: saves 40%" in reason


def test_waits_cost_more_than_they_save() -> None:
    verdict, reason = only(diamond([1, 10, 10, 1], slowdown=2.0, wait_us=3.0))
    assert verdict is Verdict.WAITS
    assert "a fork and a join of streams take 6.0 us; without them, running" in reason
    assert "side by side would take 14.0 us" in reason


def test_one_alone_fills_the_device() -> None:
    (finding,) = find_all(divided(slowdown=1.0))
    assert finding.verdict is Verdict.FILLS
    assert "`a` is 2.00 times as fast on 2 cores as on 1" in finding.reason


def test_memory_bound_together() -> None:
    verdict, reason = only(diamond([1, 10, 10, 1], slowdown=2.0))
    assert verdict is Verdict.MEMORY
    assert "2.00 times as long as alone" in reason


def test_little_to_gain_beside_a_long_one() -> None:
    verdict, reason = only(diamond([1, 100, 1, 1]))
    assert verdict is Verdict.LITTLE
    assert "1.0 us is the most that could be saved" in reason


@pytest.mark.parametrize("side_us", [9.69, 9.71])
def test_the_threshold_is_where_it_is_said_to_be(side_us: float) -> None:
    (numbers,) = diamond([1, 9, 1, 1]).side_by_side([[1, 2]])
    changed = replace(numbers, beside_us=side_us, ideal_us=9.0)
    assert (judge(changed)[0] is Verdict.PROFITABLE) == (side_us < 9.7)


def test_differences_are_measured_again_before_they_are_told() -> None:
    table = Table([10, 10])
    wholes = Wholes(OpGraph.from_edges(["a", "b"], []), table, 2, 0.0, None, table.again)
    assert find_all(wholes)[0].verdict is Verdict.PROFITABLE
    # Six measurements: the pair one after the other and side by side, and each operator on one core
    # and on all cores.
    assert table.asked_again == 6


def test_what_is_not_known_is_named() -> None:
    verdict, reason = only(diamond([1, math.nan, 10, 1]))
    assert verdict is Verdict.UNKNOWN
    assert "`a` over all cores" in reason
    assert "`b`" not in reason
    verdict, reason = only(diamond([1, 10, 10, 1], wait_us=math.nan))
    assert verdict is Verdict.UNKNOWN
    assert "the cost of a wait" in reason


def test_a_pair() -> None:
    wholes = diamond([1, 10, 10, 1])
    (finding,) = find_pair(wholes, ("end", "top"))
    assert finding.verdict is Verdict.DEPENDENT
    assert "`top` -> `a` -> `end`" in finding.reason
    assert find_pair(wholes, ("a", "b"))[0].verdict is Verdict.PROFITABLE
    with pytest.raises(errors.GraphError, match=r"`tpo`.*did you mean `top`"):
        find_pair(wholes, ("tpo", "a"))
    with pytest.raises(errors.GraphError, match="give two"):
        find_pair(wholes, ("a", "a"))


def test_more_operators_than_cores_share_them() -> None:
    wholes = Wholes(OpGraph.from_edges(3, []), Table([6, 5, 4]), 2, 0.0)
    (numbers,) = wholes.side_by_side([[0, 1, 2]])
    assert (numbers.in_turn_us, numbers.beside_us, numbers.ideal_us) == (15, 9, 9)


def test_the_ceiling_and_the_changes() -> None:
    explained = explain_subject(Subject("net", diamond([1, 10, 10, 1])))
    top = explained.ceiling
    assert top is not None
    assert top.sequential_us == 22
    assert top.without_contention == pytest.approx(12 / 22)
    assert top.with_contention == pytest.approx(12 / 22)
    assert top.as_measured == pytest.approx(12 / 22)
    (change,) = explained.changes
    assert change.kind == "batch"
    assert change.gain == pytest.approx(0.5)
    assert "2 samples at a time: 4 operators" in explanation_text(explained)
    wide = explain_subject(Subject("net", Wholes(OpGraph.from_edges(8, []), Table([1] * 8), 2, 0)))
    assert wide.ceiling is not None
    assert wide.ceiling.without_contention == pytest.approx(1 / 8)
    assert wide.ceiling.with_contention == pytest.approx(1 / 2)


def test_operators_that_divide_badly() -> None:
    explained = explain_subject(Subject("net", divided(slowdown=1.8)))
    parts = next(change for change in explained.changes if change.kind == "parts")
    assert parts.amount == 4
    assert "`a`, is 1.11 times as fast on 2 cores as on 1" in parts.what
    assert parts.gain == pytest.approx(1 - 1 / 1.8)
    assert parts.is_bound
    assert explained.changes[-1] == parts
    assert "saves 44% at most" in explanation_text(explained)


def test_unknown_numbers_are_null() -> None:
    explained = explain_subject(Subject("net", diamond([1, math.nan, 10, 1])))
    facts = json.loads(json.dumps(explained.as_dict(), allow_nan=False))
    assert facts["ceiling"]["without_contention"] is None
    assert facts["findings"][0]["numbers"]["side_by_side_us"] is None
    assert facts["changes"] == []
    assert "ceiling: unknown" in explanation_text(explained)


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    return Compilation(inception_like(), CompileOptions(streams=2, latency_db=":memory:"))


def test_a_program_read_back_from_its_plan(compilation: Compilation) -> None:
    plan = compilation.plan(compilation.sequential())
    program = program_of(plan, compilation.program.weights)
    ids = {op.name: i for i, op in enumerate(program.operators)}
    for op in compilation.program.operators:
        found = program.operators[ids[op.name]]
        assert (found.whole, found.share, found.library) == (op.whole, op.share, op.library)
    assert {program.graph().names[a] for a, _ in program.graph().edges} == {
        compilation.graph.names[a] for a, _ in compilation.graph.edges
    }


def test_what_ships(compilation: Compilation) -> None:
    beside = compilation.plan(compilation.schedule("nimble"))
    in_turn = compilation.plan(compilation.sequential())
    whole_of = [op.whole for op in compilation.program.operators]
    wholes = Wholes(compilation.graph, Table([1.0] * compilation.graph.num_ops), 2, 0.0, whole_of)
    sets = [[wholes.graph.names[op] for op in level] for level in wholes.levels()]
    assert "side by side" in [shipped_as(beside, names) for names in sets]
    assert {shipped_as(in_turn, names) for names in sets} == {"in turn"}


def test_shipped_sequential_because_measured_so(compilation: Compilation) -> None:
    checked = SpeedCheck(sequential_us=10, scheduled_us=11, noise_ratio=1, shipped="sequential")
    artifact = compilation.artifact(compilation.schedule("nimble"), checked)
    table = Table([10.0] * compilation.graph.num_ops)
    whole_of = [op.whole for op in compilation.program.operators]
    wholes = Wholes(compilation.graph, table, 2, 0.0, whole_of)
    verdicts = {finding.verdict for finding in find_all(wholes, artifact)}
    assert Verdict.SEQUENTIAL in verdicts
    assert Verdict.PROFITABLE not in verdicts


@pytest.fixture(scope="module")
def saved(compilation: Compilation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "net.tar"
    compilation.artifact(compilation.sequential()).save(path)
    return path


def test_without_measuring_no_code_is_loaded(saved: Path, tmp_path: Path) -> None:
    artifact = load(saved, kernels=False)
    options = CompileOptions(streams=2, latency_db=tmp_path / "new.db")
    explained = explain(artifact, measure=False, options=options)
    assert {finding.verdict for finding in explained.findings} == {Verdict.UNKNOWN}
    with pytest.raises(errors.ArtifactError, match="kernels=False"):
        explain(artifact, options=options)


def test_an_artifact_is_measured_and_then_known(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["explain", str(saved), "--streams", "2", "--latency-db", str(tmp_path / "l.db")]
    assert run_app([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ceiling"]["sequential_us"] > 0
    assert "unknown" not in facts["counts"]
    assert all(finding["shipped"] == "in turn" for finding in facts["findings"])
    assert run_app([*arguments, "--no-measure"]) == 0
    said = capsys.readouterr().out
    assert "thresholds: profitable" in said
    assert "not measured" not in said
    names = facts["findings"][0]["operators"][:2]
    assert run_app([*arguments, "--pair", *names, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["findings"]) == 1


@pytest.mark.parametrize("seed", range(6))
def test_what_a_busy_machine_measured_is_known_later(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A second measurement of the same latencies would give other numbers.

    An explanation that does not measure must use the latencies that an earlier explanation stored.
    """
    options = CompileOptions(streams=2, latency_db=tmp_path / "l.db")
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "measure_interleaved", random_clock(seed, cpu.run))
        measured = explain(saved, options=options)
    known = explain(saved, options=options, measure=False)
    assert [finding.numbers for finding in known.findings] == [
        finding.numbers for finding in measured.findings
    ]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run_app(["explain", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.err


def test_what_cannot_be_explained(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_measure = (str(saved), "--no-measure", "--latency-db", str(tmp_path / "l.db"))
    assert "`nobody`" in refused(capsys, *no_measure, "--pair", "nobody", "x")
    (tmp_path / "notes.txt").write_text("no model")
    assert "notes.txt" in refused(capsys, str(tmp_path / "notes.txt"))
    (tmp_path / "notes.tar").write_text("no artifact")
    assert "notes.tar" in refused(capsys, str(tmp_path / "notes.tar"))
    assert "nowhere.onnx" in refused(capsys, "nowhere.onnx")
    assert "GPU" in refused(capsys, "squeezenet", "--target", "cuda")
    assert "by measuring" in refused(capsys, *no_measure, "--try", "1")
    assert "give the model that it was compiled from" in refused(capsys, str(saved), "--try", "1")


def test_changes_are_numbered_from_one(tmp_path: Path) -> None:
    options = CompileOptions(streams=2, latency_db=tmp_path / "l.db")
    with pytest.raises(errors.InputError, match="there is no change 9; there are"):
        explain(inception_like(), try_number=9, options=options)


@pytest.mark.parametrize("kind", ["batch", "merge", "parts"])
def test_a_change_is_made_and_measured(compilation: Compilation, kind: str) -> None:
    from tvm_interop.explaining.changes import Change, try_change

    model = inception_like()
    wholes = Wholes(
        compilation.graph,
        Table([1.0] * compilation.graph.num_ops),
        2,
        0.0,
        [op.whole for op in compilation.program.operators],
    )
    subject = Subject("net", wholes, compilation=compilation)
    merges = compilation.merges_among(wholes.graph.names)
    groups = [" + ".join(wholes.graph.names[op] for op in ops) for ops in merges.sets]
    assert groups
    change = Change(kind, "a change", 0.1, tuple(groups), 2)
    trial = try_change(subject, change, model, limit_s=0.05)
    assert trial.present_us > 0
    assert trial.changed_us > 0
    assert trial.rounds >= 6
    explained = Explanation("net", 2, (), trial=trial)
    promised = "the bound" if kind == "parts" else "the estimate"
    assert f"10.0% was {promised}" in explanation_text(explained)


def test_nothing_is_changed_in_an_artifact(saved: Path) -> None:
    from tvm_interop.explaining.changes import Change, try_change

    artifact: Artifact = load(saved, kernels=False)
    subject = Subject("net.tar", diamond([1, 1, 1, 1]), artifact=artifact)
    with pytest.raises(errors.InputError, match="give `explain` the model"):
        try_change(subject, Change("parts", "", 0.1, (), 4), str(saved))


def test_a_batch_is_for_onnx_models(compilation: Compilation) -> None:
    from tvm_interop.explaining.changes import Change, try_change

    subject = Subject("net", diamond([1, 1, 1, 1]), compilation=compilation)
    with pytest.raises(errors.InputError, match="ONNX"):
        try_change(subject, Change("batch", "", 0.1, (), 2), compilation.module)


def test_the_model_is_left_as_it_was() -> None:
    from tvm_interop.explaining.changes import _with_batch

    model = inception_like()
    before = model.SerializeToString()
    changed: onnx.ModelProto = _with_batch(model, 3)
    assert changed.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3
    assert model.SerializeToString() == before


def test_help_and_docs_state_the_thresholds() -> None:
    from tvm_interop.cli.explain import explain_model
    from tvm_interop.explaining.verdict import FILLS, GAIN, SLOWDOWN

    docs = (Path(__file__).parents[2] / "docs" / "explain.rst").read_text()
    for text in (explain_model.__doc__ or "", docs):
        for number in (f"{FILLS:.0%}", f"{GAIN:.0%}", f"{SLOWDOWN:g} times"):
            assert number in text


def test_the_verdicts_are_on_the_page(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    arguments = ["show", str(saved), "--no-run", "-o", str(page)]
    assert run_app([*arguments, "--explain"]) == 0
    text = page.read_text()
    assert "<h2>Side by side?</h2>" in text
    known = explain(saved, measure=False)
    for finding in known.findings:
        assert ", ".join(finding.operators) in text
    assert text.count('<td class="text">unknown</td>') == known.counts().get("unknown", 0)
    assert run_app(arguments) == 0
    assert "Side by side?" not in page.read_text()
    capsys.readouterr()
    svg = str(tmp_path / "page.svg")
    assert run_app(["show", str(saved), "--no-run", "-o", svg, "--explain"]) == 2
    assert "--format html" in capsys.readouterr().err


def test_in_turn_is_measured_as_a_whole() -> None:
    asked: list[list[list[int]]] = []

    def price(stages: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
        asked.extend([[*map(list, groups)] for groups in stages])
        return np.ones(len(stages))

    graph = OpGraph.from_edges(["a[1/2]", "a[2/2]", "b"], [])
    Wholes(graph, price, 2, 0.0, ["a", "a", None]).side_by_side([[0, 1]])
    # The first stage runs the operators one after the other: first the parts of `a` side by side,
    # then `b`. The second stage runs them at the same time, each on one core.
    assert [[0, 2], [1]] in asked
    assert [[0, 1], [2]] in asked


def test_estimates_go_by_what_divides_already() -> None:
    # `a` is divided, and is 1.25 times as fast on two cores as on one. `b` is not divided.
    graph = OpGraph.from_edges(["a[1/2]", "a[2/2]", "b"], [("a[1/2]", "b"), ("a[2/2]", "b")])
    wholes = Wholes(graph, Table([5, 5, 10], slowdown=1.6), 2, 0.0, ["a", "a", None])
    changes = {change.kind: change for change in explain_subject(Subject("n", wholes)).changes}
    assert changes["batch"].gain == pytest.approx((10 - 10 / 1.25) / 18)
    assert changes["parts"].gain == pytest.approx((8 - 10 / 2) / 18)
