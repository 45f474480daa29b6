"""Tests `tvm-interop perf`: the load that it makes, the turns of engines, processes and figures."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

import tvm_interop
from tests.nets import branches, feeds
from tvm_interop.cli.app import run_app
from tvm_interop.errors import ExecutionError
from tvm_interop.perf.contest import Timing, found_of, hold, ratio_of
from tvm_interop.perf.contestant import Contestant, Load
from tvm_interop.perf.engines import Artifact, Engine, Feed, OnnxRuntime, Runner, best_of
from tvm_interop.perf.load import Turn, arrival_times, closed_loop, open_loop
from tvm_interop.viz.percentiles import percentiles_svg


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("perf")
    onnx.save(branches(), folder / "net.onnx")
    tvm_interop.compile(branches(), scheduler="sequential", out=folder / "net.tar")
    return folder


def test_closed_loop_asks_again_at_once() -> None:
    seen: list[int] = []

    def run() -> None:
        seen.append(threading.get_ident())
        time.sleep(0.005)

    turn = closed_loop([run, run], 0.1)
    assert len(set(seen)) == 2
    assert len(turn.latencies_us) == len(seen) >= 4
    assert min(turn.latencies_us) >= 5000
    assert turn.wall_s >= 0.1
    assert turn.cpu_s < turn.wall_s  # Sleeping runners use no CPU time.
    assert len(closed_loop([run], 0.0).latencies_us) == 1


def test_open_loop_counts_the_wait_for_those_before() -> None:
    """Ten runs take 20 ms each, and a run is due every 10 ms. So the last run waits for 90 ms."""
    turn = open_loop([lambda: time.sleep(0.02)], 0.1, 100, "uniform")
    assert len(turn.latencies_us) == 10
    assert turn.latencies_us[-1] >= 100e3
    assert turn.latencies_us[0] < 60e3


def test_arrivals() -> None:
    assert arrival_times(1.0, 4, "uniform", 0) == [0.0, 0.25, 0.5, 0.75]
    drawn = arrival_times(100.0, 50, "poisson", 0)
    assert drawn == arrival_times(100.0, 50, "poisson", 0) != arrival_times(100.0, 50, "poisson", 1)
    assert 4700 < len(drawn) < 5300
    assert np.std(np.diff(drawn)) == pytest.approx(1 / 50, rel=0.1)
    assert arrival_times(0.001, 1, "poisson", 0) == [0.0]


def test_the_best_setting_is_found() -> None:
    fast: list[Runner] = [lambda: [], lambda: []]
    slow: list[Runner] = [lambda: [], lambda: time.sleep(0.01) or []]
    assert best_of({"slow": slow, "fast": fast}) == "fast"


def test_the_best_setting_of_a_small_model_is_found_despite_slow_first_calls() -> None:
    """Five calls are too few for a model of less than a millisecond.

    The first calls wake its threads.
    """

    def slow_at_first(microseconds: float) -> list[Runner]:
        calls = itertools.count()
        return [lambda: time.sleep(0.002 if next(calls) < 10 else microseconds / 1e6) or []]

    def steady(microseconds: float) -> list[Runner]:
        return [lambda: time.sleep(microseconds / 1e6) or []]

    assert best_of({"steady": steady(1000), "slow at first": slow_at_first(50)}) == "slow at first"


def turns_of(*medians_us: float) -> Contestant:
    made = Contestant(OnnxRuntime(), "")
    made.turns = [Turn([us, us, us], 3 * us / 1e6, 6 * us / 1e6) for us in medians_us]
    return made


def test_figures() -> None:
    found = found_of(turns_of(100.0, 300.0))
    assert found.runs == 6
    assert found.mean_us == 200.0
    assert found.percentiles_us[50] == 200.0
    assert found.throughput == pytest.approx(5000)
    assert found.cpu_s_per_run == pytest.approx(400e-6)
    ratio = ratio_of(turns_of(100.0, 300.0, 50.0), turns_of(200.0, 600.0, 100.0))
    assert ratio.value == pytest.approx(0.5)
    assert ratio.interval == pytest.approx((0.5, 0.5))
    assert ratio_of(turns_of(100.0), turns_of(200.0)).interval is None


class Quits(Engine):
    """An engine whose process ends in the middle of a run."""

    name = "quits"

    def lanes(self, model: Any, feed: Feed, number: int) -> list[Runner]:
        return [lambda: os._exit(3)]


class Refuses(Engine):
    """An engine that cannot run the model."""

    name = "refuses"

    def lanes(self, model: Any, feed: Feed, number: int) -> list[Runner]:
        raise ValueError("no such operator")


def test_why_an_engine_cannot_run_a_model() -> None:
    """OpenVINO's message begins with places in its source code, which do not help a user."""
    from tvm_interop.perf.contestant import _reason

    error = RuntimeError(
        "Exception from src/inference/src/cpp/core.cpp:132:\n"
        "Check 'false' failed at src/frontends/report.cpp:151:\n"
        "FrontEnd API failed with OpConversionFailure:\n"
        "The loop has 10 inputs\n\nSummary:\n-- 1\n"
    )
    wanted = "FrontEnd API failed with OpConversionFailure: The loop has 10 inputs"
    assert _reason(error) == wanted
    assert _reason(ValueError("only this:")) == "only this:"
    assert _reason(ValueError()) == "ValueError"


@pytest.mark.slow
def test_turns_in_processes_of_their_own(folder: Path) -> None:
    rests: list[float] = []
    ours = Contestant(Artifact("ours"), str(folder / "net.tar"))
    theirs = Contestant(OnnxRuntime(), str(folder / "net.onnx"))
    quits, refuses = Contestant(Quits(), ""), Contestant(Refuses(), "")
    timing = Timing(warmup_s=0.01, duration_s=0.06, turn_s=0.02, rest_s=0.25)
    done: list[tuple[int, int]] = []
    failed = hold(
        [ours, theirs, quits, refuses],
        feeds(branches()),
        Load(),
        timing,
        progress=lambda *given: done.append(given),
        sleep=rests.append,
    )
    assert set(failed) == {"quits", "refuses"}
    assert "with code 3" in failed["quits"]
    assert "no such operator" in failed["refuses"]
    assert rests == [0.25] * 6
    assert done[-1] == (12, 12)
    for one in (ours, theirs):
        assert len(one.turns) == 3
        assert one.peak_mib > 10
        assert one.setting.endswith("thread(s)")
        assert not one._process.is_alive()
    with pytest.raises(ExecutionError, match="quits: its process ended"):
        hold([quits], {}, Load(), timing, sleep=rests.append)


def test_all_engines_answer_the_same(folder: Path) -> None:
    feed = feeds(branches())
    ours = Artifact("ours").lanes(str(folder / "net.tar"), feed, 2)
    theirs = OnnxRuntime().lanes(str(folder / "net.onnx"), feed, 2)
    assert len(ours) == len(theirs) == 2
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine()[0], other()[0], rtol=1e-4, atol=1e-5)


def test_the_verb(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = folder / "latencies.svg"
    arguments = [
        "perf", str(folder / "net.tar"), "--against", "onnxruntime,torch", "--model",
        str(folder / "net.onnx"), "--duration", "0.1", "--turn", "0.05", "--rest", "0",
        "--warmup", "0.01", "--picture", str(picture),
    ]  # fmt: skip
    assert run_app([*arguments, "--json"]) == 0
    told = capsys.readouterr()
    facts = json.loads(told.out)
    names = [one["name"] for one in facts["contestants"]]
    assert names == ["net.tar", "net.tar (again)", "onnxruntime, sequential"]
    assert all(one["percentiles_us"]["p50"] > 0 for one in facts["contestants"])
    assert set(facts["ratios"]) == set(names[1:])
    assert "runs .pt2 files: give one with --model" in facts["left_out"]["torch"]
    assert "torch does not take part" in told.err
    assert ElementTree.fromstring(picture.read_text()).tag.endswith("svg")
    assert run_app(arguments) == 0
    shown = capsys.readouterr().out
    assert "net.tar over net.tar (again): " in shown
    assert "the noise" in shown
    assert "over onnxruntime, sequential: " in shown


def test_one_that_is_not_installed_is_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    arguments = [
        "perf", str(folder / "net.tar"), "--against", "openvino", "--model",
        str(folder / "net.onnx"), "--duration", "0.02", "--rest", "0", "--warmup", "0", "--rate",
        "200", "--concurrency", "2", "--json",
    ]  # fmt: skip
    assert run_app(arguments) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["left_out"] == {"openvino": "the package `openvino` is not installed"}
    assert (facts["rate_per_s"], facts["concurrency"]) == (200, 2)


def test_wrong_requests(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact, model = str(folder / "net.tar"), str(folder / "net.onnx")
    for arguments, said in (
        (["--against", "tensorrt", "--model", model], "`tensorrt`: there is no such engine"),
        (["--against", "onnxruntime"], "--against and --model go together"),
        (["--model", model], "--against and --model go together"),
        (["--against", "onnxruntime", "--model", "no.onnx"], "no file `no.onnx`"),
        (["--arrivals", "bursts"], "--arrivals is `bursts`"),
        (["--picture", "a.png"], "ends in .svg"),
    ):
        assert run_app(["perf", artifact, *arguments]) == 2
        assert said in capsys.readouterr().err


def test_picture() -> None:
    rng = np.random.default_rng(0)
    latencies = rng.exponential(1000, 5000) + 500
    latencies[0] = 1e6
    drawn = percentiles_svg({"a <b>": latencies, "c": np.full(10, 2000.0), "d": np.ones(1)})
    root = ElementTree.fromstring(drawn)
    lines = [e for e in root.iter() if e.tag.endswith("polyline")]
    assert len(lines) == 3
    xs, ys = zip(
        *(map(float, p.split(",")) for p in lines[0].get("points", "").split()), strict=True
    )
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys, reverse=True)
    # One very slow run must not flatten the lines at the bottom of the plot.
    assert min(ys) < 16 + 300 / 4
    texts = [e.text or "" for e in root.iter() if e.tag.endswith("text")]
    assert {"0", "50", "90", "99", "99.9"} <= set(texts)
    assert "99.99" not in texts
    assert any(text.startswith("a <b>: median ") for text in texts)
