"""Tests the drawings: they show the operators that ran, and nothing overlaps."""

from __future__ import annotations

import itertools
import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

import tvm_interop
from tests.fake_cuda.random_program import random_program
from tests.nets import inception_like, two_inputs
from tvm_interop.cli.app import run_app
from tvm_interop.execution.operator_profile import OpProfile
from tvm_interop.latency import LatencyTable, Link
from tvm_interop.plan.make import make_plan
from tvm_interop.scheduling import schedule
from tvm_interop.viz.chrome_trace import chrome_trace
from tvm_interop.viz.dot import to_dot
from tvm_interop.viz.drawing import to_png, to_svg
from tvm_interop.viz.graph_layout import BOX_HEIGHT, BOX_WIDTH, lay_out
from tvm_interop.viz.kinds import KINDS, kind_of
from tvm_interop.viz.page import to_page
from tvm_interop.viz.record import Record, from_profile, planned, record
from tvm_interop.viz.timeline import MARGIN, labels, timeline


@pytest.fixture(scope="module")
def artifacts() -> dict[str, tvm_interop.Artifact]:
    """An artifact with stages, and an artifact with streams."""
    return {
        name: tvm_interop.compile(inception_like(), scheduler=name, streams=2, keep_slower=True)
        for name in ("greedy", "lios")
    }


@pytest.fixture(scope="module")
def records(artifacts: dict[str, tvm_interop.Artifact]) -> dict[str, Record]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Running on zeros must cause no warning.
        return {name: record(artifact, name, runs=1) for name, artifact in artifacts.items()}


@pytest.fixture(scope="module")
def over_gpus(artifacts: dict[str, tvm_interop.Artifact]) -> tvm_interop.Artifact:
    """An artifact with stages on three GPUs and copies between them."""
    program = random_program(2, num_ops=24)
    graph = program.graph()
    latency = LatencyTable([5.0] * graph.num_ops, transfers=Link(32.0).transfers(graph))
    made = schedule(graph, "heft", latency, gpus=3)
    plan = make_plan(program, made, device="cuda:0")
    return replace(artifacts["greedy"], plan=plan, schedule=made)


def in_turn(artifact: tvm_interop.Artifact) -> list[OpProfile]:
    """A profile in which every operator takes 10 us, one after the other."""
    return [
        OpProfile(op.name, op.kernel, op.stream, 10.0 * i, 10.0 * (i + 1))
        for i, op in enumerate(artifact.plan.operators)
    ]


def test_record(artifacts: dict[str, tvm_interop.Artifact]) -> None:
    artifact = artifacts["greedy"]
    seen = from_profile(artifact, "net", in_turn(artifact))
    assert [op.name for op in seen.operators] == [op.name for op in artifact.plan.operators]
    assert seen.num_stages == len(artifact.schedule.stages)
    assert {op.stage for op in seen.operators} == set(range(seen.num_stages))
    assert seen.makespan_us == 10.0 * len(seen.operators)
    assert sum(seen.busy_share(s) for s in range(2)) == pytest.approx(1)
    assert seen.num_waits == sum(len(op.waits) for op in artifact.plan.operators)
    names = [op.name for op in seen.operators]
    # `b1/Conv` reads a tensor of which four operators have written parts.
    reader = seen.operators[names.index("b1/Conv")]
    assert reader.kind == "convolution"
    assert {names[i] for i in reader.reads} == {"a1/Conv", "a3/Conv", "a5/Conv", "app/Conv"}


def test_what_a_stream_did_adds_up_and_has_room(
    artifacts: dict[str, tvm_interop.Artifact],
) -> None:
    """Each operator has no core for half of its time. In that time its stream is not busy."""
    artifact = artifacts["greedy"]
    profile = [row._replace(lost_us=5.0, off_core_us=5.0) for row in in_turn(artifact)]
    seen = from_profile(artifact, "net", profile)
    assert seen.busy_share(0) + seen.busy_share(1) == pytest.approx(0.5)
    assert seen.lost_share(0) + seen.lost_share(1) == pytest.approx(0.5)
    everywhere = replace(
        seen, operators=tuple(replace(op, stream=0) for op in seen.operators), threads=(2,),
        devices=("cpu:0",),
    )  # fmt: skip
    drawn = labels(everywhere)
    assert any(text.text == "50% busy, 50% no core" for text in drawn.iter("text"))
    for text in drawn.iter("text"):
        end = float(text.get("x", 0)) + _width(text.text or "", int(text.get("font-size", 11)))
        assert end <= MARGIN, text.text


def _width(text: str, size: int) -> float:
    """The width of a text in pixels, in the widest font that drawings use."""
    found = TextPath((0, 0), text, size=size, prop=FontProperties(family="DejaVu Sans"))
    return float(found.get_extents().x1)


def test_memory_is_what_is_in_use(artifacts: dict[str, tvm_interop.Artifact]) -> None:
    artifact = artifacts["lios"]
    seen = from_profile(artifact, "net", in_turn(artifact))
    assert seen.memory[-1][1] == 0
    assert 0 < max(used for _, used in seen.memory) <= seen.arena_bytes
    first = next(op for op in seen.operators if op.output_bytes)
    assert seen.memory[0][0] == first.start_us
    # The memory of the whole tensor is in use from its first part on.
    assert seen.memory[0][1] >= first.output_bytes


def test_predictions_are_those_of_the_schedule(records: dict[str, Record]) -> None:
    assert all(op.predicted_us is None for op in records["greedy"].operators)
    assert all(op.predicted_us is not None for op in records["lios"].operators)
    assert records["lios"].predicted_us == pytest.approx(
        max(op.predicted_us[1] for op in records["lios"].operators if op.predicted_us)
    )


@pytest.mark.parametrize("shown", ["greedy", "lios", "over GPUs"])
def test_the_graph_overlaps_nowhere(
    records: dict[str, Record], over_gpus: tvm_interop.Artifact, shown: str
) -> None:
    layout = lay_out({**records, "over GPUs": planned(over_gpus, "net")}[shown])
    for (x1, y1), (x2, y2) in itertools.combinations(layout.boxes, 2):
        assert abs(x1 - x2) >= BOX_WIDTH or abs(y1 - y2) >= BOX_HEIGHT
    for corners in layout.lines.values():
        for (x1, y1), (x2, y2) in itertools.pairwise(corners):
            for x, y in layout.boxes:
                inside_across = min(x1, x2) < x + BOX_WIDTH and x < max(x1, x2)
                if y1 != y2:
                    inside_across = x < x1 < x + BOX_WIDTH
                inside_down = min(y1, y2) < y + BOX_HEIGHT and y < max(y1, y2)
                if y1 == y2:
                    inside_down = y < y1 < y + BOX_HEIGHT
                assert not (inside_across and inside_down)
    for x, y in layout.boxes:
        assert 0 <= x <= layout.width - BOX_WIDTH
        assert 0 <= y <= layout.height - BOX_HEIGHT


def test_stages_are_columns_of_their_own(records: dict[str, Record]) -> None:
    layout = lay_out(records["greedy"])
    for (_, right), (left, _) in itertools.pairwise(layout.stages):
        assert right <= left
    for op, (x, _) in zip(records["greedy"].operators, layout.boxes, strict=True):
        assert op.stage is not None
        left, right = layout.stages[op.stage]
        assert left <= x <= right - BOX_WIDTH


def test_lines_that_share_a_track_do_not_overlap(records: dict[str, Record]) -> None:
    layout = lay_out(records["lios"])
    trunks: dict[float, list[tuple[int, float, float]]] = {}
    for (source, _), corners in layout.lines.items():
        if len(corners) == 6:
            trunks.setdefault(corners[2][1], []).append((source, corners[2][0], corners[3][0]))
    assert trunks
    for trunk in trunks.values():
        for (a, left_a, right_a), (b, left_b, right_b) in itertools.combinations(trunk, 2):
            assert a == b or right_a <= left_b + BOX_WIDTH or right_b <= left_a + BOX_WIDTH


def test_svg(records: dict[str, Record]) -> None:
    root = ElementTree.fromstring(to_svg(list(records.values())))
    namespace = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{namespace}svg"
    boxes = [e for e in root.iter(f"{namespace}svg") if e.get("class") == "op"]
    measured = sum(len(shown.operators) for shown in records.values())
    # The page draws the measured operators and the predicted operators.
    assert len(boxes) == measured + len(records["lios"].operators)
    waits = [e for e in root.iter(f"{namespace}line") if e.get("class") == "wait"]
    assert len(waits) == sum(shown.num_waits for shown in records.values())


def test_each_gpu_has_its_streams_and_copies_under_its_name(
    over_gpus: tvm_interop.Artifact,
) -> None:
    plan, shown = over_gpus.plan, planned(over_gpus, "net")
    gpus = ("cuda:0", "cuda:1", "cuda:2")
    texts = [(float(t.get("y", "0")), t.text or "") for t in labels(shown).iter("text")]
    named = [text for _, text in sorted(texts) if re.match("cuda|to|stream", text)]
    begins = [named.index(gpu) for gpu in gpus]
    assert begins == sorted(begins)
    of_gpu = {
        gpu: named[begin + 1 : end]
        for gpu, begin, end in zip(gpus, begins, [*begins[1:], None], strict=True)
    }
    for gpu in gpus:
        targets = {
            plan.device_of(op.outputs[0])
            for op in plan.operators
            if op.is_copy and plan.streams[op.stream].device == gpu
        }
        assert targets
        streams = sum(stream.device == gpu for stream in plan.streams) - len(targets)
        assert [row.partition(" ")[0] for row in of_gpu[gpu][:streams]] == ["stream"] * streams
        assert of_gpu[gpu][streams:] == [f"to {target}" for target in sorted(targets)]
    drawn = timeline(shown, shown.makespan_us, 900.0)
    heads = [
        float(line.get("y1", "0")) for line in drawn.iter("line") if line.get("class") == "gpu"
    ]
    boxes = [box for box in drawn.iter("svg") if box.get("class") == "op"]
    assert len(heads) == 3
    assert len(boxes) == len(plan.operators)
    for box in boxes:
        op = plan.operators[int(box.get("data-op", "-1"))]
        above = sum(head < float(box.get("y", "0")) for head in heads)
        assert gpus[above - 1] == plan.streams[op.stream].device
    assert not stage_boxes(drawn)  # Stages of several GPUs do not follow each other.
    page = to_page([shown], "m")
    assert "<dd>cuda:0, cuda:1, cuda:2</dd>" in page
    copies = sum(op.is_copy for op in plan.operators)
    assert f"<dt>copies between them</dt><dd>{copies}</dd>" in page


def test_one_device_needs_no_name(records: dict[str, Record]) -> None:
    shown = records["greedy"]
    assert not any((text.text or "").startswith("cpu") for text in labels(shown).iter("text"))
    assert "copies between" not in to_page([shown], "m")


def test_names_with_control_characters_are_drawn(records: dict[str, Record]) -> None:
    """Names come from models. XML and HTML cannot contain a NUL."""
    shown = records["greedy"]
    odd = "a\x00b\x1b[31m\ufffe<i>&"
    operators = tuple(replace(op, name=f"{odd}{i}") for i, op in enumerate(shown.operators))
    named = replace(shown, title=odd, operators=operators)
    for drawn in (to_svg([named]), to_page([named], odd)):
        assert "\x00" not in drawn
        assert "a\\x00b\\x1b[31m\\ufffe&lt;i&gt;&amp;" in drawn
    ElementTree.fromstring(to_svg([named]))


def test_png(records: dict[str, Record]) -> None:
    pytest.importorskip("resvg_py")
    assert to_png([records["greedy"]]).startswith(b"\x89PNG")


def test_dot(records: dict[str, Record]) -> None:
    text = to_dot(records["greedy"])
    assert text.startswith("digraph")
    assert text.count("fillcolor") == len(records["greedy"].operators)
    assert text.count("->") == sum(len(op.reads) for op in records["greedy"].operators)
    assert text.count("subgraph") == records["greedy"].num_stages


def test_page_needs_no_network(records: dict[str, Record]) -> None:
    page = to_page(list(records.values()), "a machine")
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", page)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "a machine" in page


def test_a_name_cannot_break_the_page(artifacts: dict[str, tvm_interop.Artifact]) -> None:
    artifact = artifacts["greedy"]
    shown = from_profile(artifact, "</script><b>&", in_turn(artifact))
    page = to_page([shown], "m")
    assert "</script><b>" not in page
    assert "&lt;/script&gt;&lt;b&gt;&amp;" in page


def test_chrome_trace(artifacts: dict[str, tvm_interop.Artifact]) -> None:
    artifact = artifacts["lios"]
    events = json.loads(chrome_trace(in_turn(artifact), artifact.plan))["traceEvents"]
    slices = {event["name"]: event for event in events if event["ph"] == "X"}
    assert len(slices) == len(artifact.plan.operators)
    begins = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert len(begins) == len(ends) == sum(len(op.waits) for op in artifact.plan.operators)
    for i, begin in begins.items():
        assert begin["tid"] != ends[i]["tid"]
        assert begin["ts"] < ends[i]["ts"]


def test_kinds() -> None:
    assert kind_of("fused_conv2d_add_relu") == "convolution"
    assert kind_of("fused_matmul_add") == "matrix product"
    assert kind_of("max_pool2d") == "pooling, reduction"
    assert kind_of("fused_concatenate_relu") == "concatenation"
    assert kind_of("fused_max3_reshape") == "pooling, reduction"
    assert kind_of("fused_maximum_minimum") == "element-wise"
    assert kind_of("add2") == "element-wise"
    assert len({kind.fill for kind in KINDS}) == len(KINDS)


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(two_inputs(), tmp_path / "two.onnx")
    out = str(tmp_path / "two.tar")
    assert run_app(["compile", str(tmp_path / "two.onnx"), "-o", out, "--streams", "2"]) == 0
    capsys.readouterr()
    page = tmp_path / "page.html"
    assert run_app(["show", out, "-o", str(page), "--runs", "1"]) == 0
    assert f"wrote {page}" in capsys.readouterr().out
    assert page.read_text().startswith("<!DOCTYPE html>")
    for kind, begin in (("svg", b"<svg"), ("dot", b"digraph"), ("html", b"<!DOCTYPE")):
        target = tmp_path / f"picture.{kind}"
        assert run_app(["show", out, "-o", str(target), "--runs", "1"]) == 0
        assert target.read_bytes().startswith(begin)
    capsys.readouterr()
    named = tmp_path / "no_suffix"
    line = ["show", out, out, "-o", str(named), "--format", "svg", "--runs", "1", "--json"]
    assert run_app(line) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [shown["title"] for shown in facts["records"]] == [f"{out} (1)", f"{out} (2)"]
    assert named.read_bytes().startswith(b"<svg")


def test_show_without_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show --no-run` loads no code of the artifact, so it draws an artifact without valid code."""
    artifact = tvm_interop.compile(two_inputs(), scheduler="lios", streams=2, keep_slower=True)
    out, page = str(tmp_path / "net.tar"), str(tmp_path / "page.html")
    replace(artifact, kernels=b"no library").save(out)
    assert run_app(["show", out, "-o", page]) == 2
    capsys.readouterr()
    assert run_app(["show", out, "-o", page, "--no-run"]) == 0
    assert (
        "ms predicted from the latencies that it was scheduled with, not run"
        in capsys.readouterr().out
    )
    assert "not run" in Path(page).read_text()


def test_a_plan_that_is_not_run(artifacts: dict[str, tvm_interop.Artifact]) -> None:
    foreseen = planned(artifacts["lios"], "net")
    schedule = artifacts["lios"].schedule
    assert schedule.timeline is not None
    took_us = {schedule.op_names[op]: end - start for op, _, start, end in schedule.timeline}
    for op in foreseen.operators:
        assert op.took_us == pytest.approx(took_us[op.name])
        assert all(foreseen.operators[w].end_us <= op.start_us for w in op.waits)
    by_stream = sorted((op.stream, op.start_us, op.end_us) for op in foreseen.operators)
    for (stream, _, end), (next_stream, start, _) in itertools.pairwise(by_stream):
        assert stream != next_stream or end <= start
    alike = planned(artifacts["greedy"], "net")
    assert {op.took_us for op in alike.operators} == {1.0}
    assert alike.time_said == "not run, every operator drawn equally long"


def test_the_fastest_of_several_runs_is_shown(
    artifacts: dict[str, tvm_interop.Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another program took the cores during a run, the run is not drawn."""
    artifact = artifacts["lios"]
    took_us = iter([30.0, 10.0, 500.0, 20.0])

    def profile(module: tvm_interop.GraphModule) -> list[OpProfile]:
        end_us = next(took_us)
        return [
            OpProfile(op.name, op.kernel, op.stream, 0.0, end_us) for op in module.plan.operators
        ]

    monkeypatch.setattr(tvm_interop.GraphModule, "profile", profile)
    seen = record(artifact, "net", runs=4)
    assert seen.makespan_us == 10.0
    assert seen.time_said == "0.010 ms, the fastest of 4 runs"
    assert "0.010 ms, the fastest of 4 runs" in to_svg([seen])
    assert "0.010 ms, the fastest of 4 runs" in to_page([seen], "here")


def test_a_fallback_is_shown_as_it_ran(
    artifacts: dict[str, tvm_interop.Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = replace(artifacts["greedy"], fallback=artifacts["lios"].plan)
    monkeypatch.setattr(tvm_interop.Artifact, "usable_plan", lambda self: self.fallback)
    seen = record(artifact, "net", runs=1)
    streams = {op.name: op.stream for op in artifacts["lios"].plan.operators}
    assert {op.name: op.stream for op in seen.operators} == streams


def test_wrong_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["show"], ["show", "nowhere.tar"], ["show", "a.tar", "b.tar", "--format", "dot"]):
        assert run_app(line) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert run_app(["show", "a.tar", "--format", "gif"]) == 2
    assert "gif" in capsys.readouterr().err
    assert run_app(["show", "a.tar", "-o", "page.xyz"]) == 2
    assert "`page.xyz` ends in none of .html, .svg, .png, .dot" in capsys.readouterr().err


def test_a_stages_number_is_shown_whole_or_not_at_all(
    artifacts: dict[str, tvm_interop.Artifact],
) -> None:
    """If "173" were cut to "17", the text would name another stage."""
    seen = from_profile(artifacts["greedy"], "net", in_turn(artifacts["greedy"]))
    operators = [replace(op, stage=op.stage + 171) for op in seen.operators if op.stage is not None]
    renumbered = replace(seen, operators=operators)
    wide = timeline(renumbered, seen.makespan_us, 1000.0)
    assert any(box.findall("text") for box in stage_boxes(wide))
    for width_px in range(50, 400, 2):
        for box in stage_boxes(timeline(renumbered, seen.makespan_us, float(width_px))):
            for text in box.findall("text"):
                room_px = float(box.get("width", "0").removesuffix("%")) / 100 * width_px
                assert room_px >= 3 + 7 * len(text.text or "")


def stage_boxes(drawing: ElementTree.Element) -> list[ElementTree.Element]:
    return [box for box in drawing.iter("svg") if box.get("class") == "stage"]
