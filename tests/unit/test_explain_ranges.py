"""Tests the texts of `explain`, `show`, artifacts and sessions about ranges of sizes."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

import tvm_interop
from tests.nets import Net
from tvm_interop.artifact.artifact import Artifact, load
from tvm_interop.artifact.manifest import SpeedCheck
from tvm_interop.cli.app import run_app
from tvm_interop.errors import InputError
from tvm_interop.execution.graph_module import GraphModule
from tvm_interop.execution.open_instance import Shapes
from tvm_interop.explaining.api import explain

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}


def _model() -> onnx.ModelProto:
    net = Net()
    net.op("MatMul", [net.input("x", ["n", "m", 4]), net.weight(4, 3)], "wide")
    net.op("Relu", ["wide"], "y")
    return net.model("y")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    ranges, path = {"n": (1, 4), "m": (1, 8)}, tmp_path_factory.mktemp("ranges") / "model.tar"
    return tvm_interop.compile(_model(), shapes=ranges, most_sizes=4, out=path, **QUICK)


def _x(n: int, m: int) -> np.ndarray:
    return np.ones((n, m, 4), np.float32)


@pytest.mark.parametrize("from_file", [True, False])
def test_an_artifact_tells_its_ranges(made: Artifact, from_file: bool) -> None:
    assert made.path is not None
    ranges = (load(made.path) if from_file else made).ranges
    assert ranges is not None
    first, second = ranges.dimensions
    assert (first.name, first.least, first.most, first.compiled) == ("n", 1, 4, (1, 4))
    assert (second.name, second.least, second.most, second.compiled) == ("m", 1, 8, (1, 8))
    assert (first.inputs, second.inputs) == ({"x": 0}, {"x": 1})
    assert [each.sizes["m"] for each in ranges.compiled] == [1, 8, 1, 8]
    assert {each.latency_us for each in ranges.compiled} == {None}, "nothing was measured"
    assert "the artifact does not say how long" in "\n".join(ranges.lines())


def test_the_cost_of_a_request_is_that_of_its_run(made: Artifact) -> None:
    known, ranges = Shapes(made).row_range, made.ranges
    assert known is not None
    assert ranges is not None
    for n, m in itertools.product(range(1, 5), range(1, 9)):
        found = ranges.cost_of({"m": m, "n": n})
        assert found.shape == known.shape_for((n, m))
        at = found.runs_at.sizes
        assert found.filled_share == pytest.approx(1 - n * m / (at["n"] * at["m"]))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"n": 5, "m": 3}, "`n` 5, and .* compiled for n 1 to 4"),
        ({"n": 2, "m": 0}, "`m` 0, and .* compiled for m 1 to 8"),
        ({"n": 2, "m": True}, "`m` True"),
        ({"n": 2}, "no size of `m`: give one from 1 to 8"),
        ({"n": 2, "m": 3, "k": 1}, "no dimension `k`.*n 1 to 4 and m 1 to 8"),
        ([2, 3], "give sizes by name"),
    ],
)
def test_a_request_out_of_the_ranges_is_refused(
    made: Artifact, request_: Any, message: str
) -> None:
    assert made.ranges is not None
    with pytest.raises(InputError, match=message):
        made.ranges.cost_of(request_)


def test_latencies_come_from_the_speed_check(made: Artifact) -> None:
    assert made.path is not None
    one = load(made.path)
    checked = SpeedCheck(30.0, 20.0, 1.0, "scheduled")
    slower = SpeedCheck(30.0, 40.0, 1.0, "sequential")
    for each, check in zip(one.others, (checked, slower, None), strict=True):
        each.manifest = msgspec.structs.replace(each.manifest, speed_check=check)
    ranges = one.ranges
    assert ranges is not None
    told = [(each.latency_us, each.source) for each in ranges.compiled[1:3]]
    assert told == [(20.0, "measured"), (30.0, "measured")]
    assert "20.0 us, measured when it was compiled" in str(ranges.cost_of({"n": 1, "m": 3}))


def test_runs_are_counted_by_size(made: Artifact) -> None:
    module = GraphModule(made)
    for n, m in ((1, 1), (3, 2), (4, 8), (1, 5)):
        module.run(x=_x(n, m))
    module(_x(2, 1))
    module.start(x=_x(2, 1))
    with pytest.raises(InputError, match="have n 5"):
        module.run(x=_x(5, 1))
    assert module.runs_by_size == {(1, 1): 1, (1, 8): 1, (4, 1): 2, (4, 8): 2}


def test_a_session_counts_the_runs_of_all_threads_and_bindings(made: Artifact) -> None:
    with tvm_interop.Session(made.path, instances=2) as session, ThreadPoolExecutor(4) as threads:
        assert session.ranges == made.ranges
        each = [threads.submit(session.run, None, {"x": _x(1 + i % 2, 3)}) for i in range(40)]
        for run in each:
            run.result()
        session.run_async(None, {"x": _x(1, 1)}).result()
        binding = session.io_binding()
        binding.bind_cpu_input("x", _x(1, 1))
        session.run_with_iobinding(binding)
        assert session.runs_by_size == {(1, 1): 2, (1, 8): 20, (4, 1): 0, (4, 8): 20}


def test_a_model_without_ranges_has_none(tmp_path: Path) -> None:
    shapes = {"x": (2, 3, 4)}
    one = tvm_interop.compile(_model(), input_shapes=shapes, out=tmp_path / "one.tar", **QUICK)
    module = GraphModule(one)
    module.run(x=_x(2, 3))
    assert (one.ranges, module.runs_by_size) == (None, {})
    with pytest.raises(InputError, match=r"one\.tar` was compiled for no range"):
        explain(one, measure=False, request={"n": 2, "m": 3})
    with pytest.raises(InputError, match="`request` is for an artifact"):
        explain(_model(), measure=False, input_shapes=shapes, request={"n": 2, "m": 3})


def test_explain_tells_of_ranges(made: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", str(made.path), "--no-measure"]
    assert run_app(command) == 0
    said = capsys.readouterr().out
    assert "ranges: n 1 to 4 and m 1 to 8" in said
    assert "n: axis of `x`[0]; compiled for 1, 4" in said
    assert "what follows is of n 1, m 1" in said
    assert run_app([*command, "--dim", "n=3,m=2"]) == 0
    said = capsys.readouterr().out
    assert "request: n 3, m 2: runs at n 4, m 8, 81.2% of the run is padding" in said
    assert "what follows is of n 4, m 8" in said
    assert run_app([*command, "--dim", "n=3,m=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ranges"]["dimensions"][1]["compiled"] == [1, 8]
    assert found["request"]["runs_at"]["sizes"] == {"n": 4, "m": 8}
    assert found["request"]["filled_share"] == pytest.approx(1 - 6 / 32)
    assert run_app([*command, "--dim", "n=3,m=9"]) != 0
    assert "`m` 9, and the model was compiled for m 1 to 8" in capsys.readouterr().err
    assert run_app([*command, "--dim", "n=3,m=2", "--operator", "y/Relu"]) != 0
    assert "leave --dim out" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--no-run"]])
def test_show_tells_of_ranges(
    made: Artifact, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["show", str(made.path), "-o", str(tmp_path / "page.html"), *more]
    assert run_app(command) == 0
    said = capsys.readouterr().out
    assert "ranges: n 1 to 4 and m 1 to 8" in said
    assert "drawn: n 1, m 1" in said
    assert run_app([*command, "--dim", "n=3,m=2", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["records"]
    assert record["request"]["runs_at"]["sizes"] == {"n": 4, "m": 8}
    assert record["ranges"]["dimensions"][0]["inputs"] == {"x": 0}
    page = (tmp_path / "page.html").read_text()
    assert "runs at n 4, m 8, 81.2% of the run is padding" in page
    assert run_app([*command, "--dim", "n=0,m=2"]) != 0
    assert "`n` 0, and the model was compiled for n 1 to 4" in capsys.readouterr().err
