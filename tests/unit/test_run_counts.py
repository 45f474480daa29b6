"""Tests how runs of models with ranges are counted: in Python, in C, and by the server."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import tvm_interop
from tests.masked_nets import encoder, feed_of_encoder
from tests.native_runtime import NativeModel, RuntimeLibraryError
from tests.nets import Net
from tvm_interop.artifact.artifact import Artifact, load
from tvm_interop.artifact.manifest import SpeedCheck
from tvm_interop.cli.app import run_app
from tvm_interop.errors import InputError
from tvm_interop.execution.graph_module import GraphModule
from tvm_interop.execution.instance import PlanInstance
from tvm_interop.execution.open_instance import Shapes
from tvm_interop.execution.size_counts import RunCounts, SizeCounts
from tvm_interop.serving import make_policy
from tvm_interop.serving.server.executor import Executor
from tvm_interop.serving.server.metrics import Metrics
from tvm_interop.serving.server.model import Model

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}
REQUESTS = ((1, 1), (3, 2), (4, 8), (1, 5), (2, 1), (4, 8))
EXPECTED = {
    (1, 1): (1, 0, 1, 1),
    (1, 8): (0, 1, 5, 8),
    (4, 1): (0, 1, 2, 4),
    (4, 8): (2, 1, 6 + 32 + 32, 3 * 32),
}
"""For each compiled size: the exact and filled runs, and the rows given and computed."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    net = Net()
    net.op("MatMul", [net.input("x", ["n", "m", 4]), net.weight(4, 3)], "wide")
    net.op("Relu", ["wide"], "y")
    ranges, path = {"n": (1, 4), "m": (1, 8)}, tmp_path_factory.mktemp("counts") / "model.tar"
    return tvm_interop.compile(net.model("y"), shapes=ranges, most_sizes=4, out=path, **QUICK)


def _x(n: int, m: int) -> np.ndarray:
    return np.ones((n, m, 4), np.float32)


def _plain(counts: dict[tuple[int, ...], RunCounts]) -> dict[tuple[int, ...], tuple[int, ...]]:
    return {size: astuple(each) for size, each in counts.items()}


@pytest.mark.parametrize("from_file", [True, False])
def test_a_module_counts_exact_and_filled_runs_and_their_rows(
    made: Artifact, from_file: bool
) -> None:
    assert made.path is not None
    module = GraphModule(load(made.path) if from_file else made)
    for request in REQUESTS:
        module.run(x=_x(*request))
    with pytest.raises(InputError, match="have n 5"):
        module.run(x=_x(5, 1))
    module.profile()
    assert _plain(module.run_counts) == EXPECTED
    assert module.runs_by_size == {size: sum(each[:2]) for size, each in EXPECTED.items()}
    assert module.run_counts[4, 8].filled_share == pytest.approx(1 - 70 / 96)
    assert module.sizes == {"n": 4, "m": 8}


def test_a_program_in_c_counts_alike(made: Artifact) -> None:
    assert made.path is not None
    models = [NativeModel(made.path, shape) for shape in range(4)]
    sizes = list(EXPECTED)
    for request in REQUESTS:
        model = models[models[0].find_sizes(*request)]
        model.run_sizes(request, _x(*request), outputs=[np.empty((*request, 3), np.float32)])
    for shape, model in enumerate(models):
        with pytest.raises(RuntimeLibraryError, match="number of rows of `n`"):
            model.run_sizes((9, 1), _x(9, 1), outputs=[None])
        model.profile()
        found = model.run_counts(shape)
        told = (found.exact, found.filled_up, found.rows_given, found.rows_computed)
        assert told == EXPECTED[sizes[shape]]
    models[3].run(_x(4, 8))  # (4, 8) is a compiled shape.
    assert models[3].run_counts(3).exact == 3
    assert models[3].run_counts(0).exact == 0, "each loaded model counts its own runs"


def test_counts_in_c_need_a_shape_and_a_size(made: Artifact) -> None:
    assert made.path is not None
    model = NativeModel(made.path)
    with pytest.raises(RuntimeLibraryError, match="no shape 4; the model has 4 shapes"):
        model.run_counts(4)
    with pytest.raises(RuntimeLibraryError, match=r"set it to sizeof\(tvi_run_counts\)"):
        model.run_counts(0, struct_size=8)


def test_the_server_counts_alike_and_exports_it(made: Artifact) -> None:
    model = Model("net", made)
    with Executor([model], lambda: make_policy("sequential")) as executor:
        for request in REQUESTS:
            executor.infer("net", {"x": _x(*request)})
        metrics = Metrics()
        metrics.watch(executor)
        text = metrics.text().decode()
    assert _plain(model.run_counts) == EXPECTED, "warm-up runs must not be counted"
    of = 'model="net",size="n=4,m=8"'
    assert f'tvm_interop_size_runs_total{{kind="exact",{of}}} 2.0' in text
    assert f'tvm_interop_size_runs_total{{kind="filled_up",{of}}} 1.0' in text
    assert f'tvm_interop_rows_total{{kind="given",{of}}} 70.0' in text
    assert f'tvm_interop_rows_total{{kind="computed",{of}}} 96.0' in text


def test_the_server_counts_joined_batches(tmp_path: Path) -> None:
    net = Net()
    net.op("Relu", [net.input("x", ["n", 3])], "y")
    made = tvm_interop.compile(
        net.model("y"), batch_sizes=[1, 4], out=tmp_path / "net.tar", **QUICK
    )
    model = Model("net", made)
    with Executor([model], lambda: make_policy("sequential")) as executor:
        for rows in (1, 3, 4):
            executor.infer("net", {"x": np.ones((rows, 3), np.float32)})
    assert model.dimensions == ("batch",)
    assert _plain(model.run_counts) == {(1,): (1, 0, 1, 1), (4,): (1, 1, 7, 8)}


def test_a_session_tells_its_counts(made: Artifact) -> None:
    with tvm_interop.Session(made.path, instances=2) as session:
        for request in REQUESTS:
            session.run(None, {"x": _x(*request)})
        assert _plain(session.run_counts) == EXPECTED
        lines = session.run_lines()
        one = "runs without padding: 2, with padding: 1 (27.1% of all rows were padding)"
        assert lines[3] == f"n 4, m 8: {one}"
        every = "runs without padding: 3, with padding: 3 (28.4% of all rows were padding)"
        assert lines[4] == f"all runs: {every}"
        assert session.runs_as_data()[1] == {
            "sizes": {"n": 1, "m": 8},
            "exact": 0, "filled_up": 1, "rows_given": 5, "rows_computed": 8,
        }  # fmt: skip


def test_no_first_run_of_a_size_makes_an_instance(
    made: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    really = Shapes.open

    def noted(self: Shapes, shape: int) -> PlanInstance:
        opened.append(shape)
        return really(self, shape)

    monkeypatch.setattr(Shapes, "open", noted)
    with tvm_interop.Session(made.path, instances=2) as session:
        before = list(opened)
        assert sorted(before) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert before.index(3) < before.index(1), "the largest size must be opened first"
        for request in REQUESTS:
            session.run(None, {"x": _x(*request)})
        assert opened == before


def test_a_run_that_cannot_be_filled_up_counts_at_its_own_size() -> None:
    options: dict[str, Any] = {"scheduler": "sequential", "time_budget": 0}
    options |= {"shapes": {"seq": (1, 8)}, "most_sizes": 2, "latency_db": ":memory:"}
    with tvm_interop.Session(encoder(1, layers=1), **options) as session:
        feed = feed_of_encoder(5, 1)
        session.run(None, feed)
        feed["attention_mask"][:] = 0  # The mask excludes all positions, so a softmax has no score.
        session.run(None, feed)
        assert _plain(session.run_counts) == {
            (1,): (0, 0, 0, 0), (8,): (0, 1, 5, 8), (5,): (1, 0, 5, 5)
        }  # fmt: skip


def test_run_tells_where_the_request_ran(
    made: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "x.npz", x=_x(3, 2))
    command = ["run", str(made.path), "-i", str(tmp_path / "x.npz")]
    assert run_app(command) == 0
    said = "sizes: n 3, m 2: runs at n 4, m 8, 81.2% of the run is padding"
    assert said in capsys.readouterr().out
    assert run_app([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["request"]
    assert (found["request"], found["runs_at"]["sizes"]) == ({"n": 3, "m": 2}, {"n": 4, "m": 8})


def test_the_time_over_a_run_of_the_own_size_is_interpolated(made: Artifact) -> None:
    assert made.path is not None
    one = load(made.path)
    for each, us in zip((one, *one.others), (10.0, 24.0, 16.0, 100.0), strict=True):
        checked = SpeedCheck(us, us + 1, 1.0, "sequential")
        each.manifest = msgspec.structs.replace(each.manifest, speed_check=checked)
    ranges = one.ranges
    assert ranges is not None
    at_1 = ranges.cost_of({"n": 1, "m": 5})
    assert at_1.own_us == pytest.approx(10 + (24 - 10) * 4 / 7)
    assert at_1.over_own == pytest.approx(24 / 18)
    assert "about 1.33 times as long as a run of the request's own sizes" in str(at_1)
    assert ranges.cost_of({"n": 2, "m": 8}).own_us == pytest.approx(24 + (100 - 24) / 3)
    between = ranges.cost_of({"n": 2, "m": 5}).own_us
    assert between == pytest.approx((18 * 2 + (16 + 84 * 4 / 7)) / 3)
    exact = ranges.cost_of({"n": 4, "m": 8})
    assert (exact.over_own, "times as long" in str(exact)) == (1.0, False)
    one.others[0].manifest = msgspec.structs.replace(one.others[0].manifest, speed_check=None)
    missing = one.cost_of({"n": 1, "m": 5})
    assert (missing.own_us, missing.over_own) == (None, None)


def test_counts_forget_and_add() -> None:
    counts = SizeCounts([(8,)])
    counts.count((3,), (8,))
    counts.count((5,), (5,))
    assert counts.runs() == {(8,): 1, (5,): 1}
    counts.forget((5,))
    counts.forget((7,))
    assert counts.counts() == {(8,): RunCounts(0, 1, 3, 8)}
    assert RunCounts().filled_share == 0
