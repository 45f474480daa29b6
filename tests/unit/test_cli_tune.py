"""Tests the files and the output of `tvm-interop tune`: at its end, after Ctrl-C, and after a
kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.nets import inception_like
from tvm_interop import Schedule
from tvm_interop.cli import tune
from tvm_interop.cli.app import run_app
from tvm_interop.measure.active import Round
from tvm_interop.measure.store import LatencyStore

pytest.importorskip("xgboost", reason="xgboost is not installed (extra `learned`)")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tune") / "net.onnx"
    onnx.save(inception_like(), path)
    return path


@pytest.fixture(scope="module")
def heavy_net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network for which a round of the search takes long, so a test can stop it half-way."""
    path = tmp_path_factory.mktemp("tune") / "heavy.onnx"
    onnx.save(inception_like(size=112, channels=64), path)
    return path


def arguments(net: Path, folder: Path, *more: str) -> list[str]:
    return [
        "tune", str(net), "-o", str(folder / "schedule.json"), "--streams", "2",
        "--latency-db", str(folder / "latency.db"), "--providers", "tvm", *more,
    ]  # fmt: skip


def test_tune_and_compile_with_it(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(arguments(net, tmp_path, "--max-measurements", "40")) == 0
    captured = capsys.readouterr()
    assert "round 1: best" in captured.err
    assert "wrote" in captured.out
    schedule = Schedule.from_json((tmp_path / "schedule.json").read_text())
    assert schedule.scheduler == "ios"
    assert run_app([
        "compile", str(net), "-o", str(tmp_path / "net.tar"), "--json", "--keep-slower",
        "--schedule", str(tmp_path / "schedule.json"), "--providers", "tvm",
    ]) == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out)["stages"] == len(schedule.stages)


def test_json_and_going_on(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(arguments(net, tmp_path, "--json", "--max-measurements", "30")) == 0
    captured = capsys.readouterr()
    first = json.loads(captured.out)
    assert captured.err == ""
    assert first["stages_measured"] == 30
    assert not first["interrupted"]
    assert [r["round"] for r in first["rounds"]] == list(range(1, len(first["rounds"]) + 1))
    assert first["rounds"][-1]["mape"] > 0
    known = []
    for _ in range(2):
        assert run_app(arguments(net, tmp_path, "--json", "--max-measurements", "0")) == 0
        known.append(json.loads(capsys.readouterr().out))
        assert (known[-1]["stages_measured"], known[-1]["rounds"]) == (0, [])
    assert known[0]["best_us"] == known[1]["best_us"], "nothing is measured again"


def test_ctrl_c_writes_the_best_so_far(
    net: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stopped(tune.Tuning):
        def after_round(self, done: Round) -> None:
            super().after_round(done)
            raise KeyboardInterrupt

    monkeypatch.setattr(tune, "Tuning", Stopped)
    assert run_app(arguments(net, tmp_path, "--json")) == 130
    facts = json.loads(capsys.readouterr().out)
    assert facts["interrupted"]
    assert len(facts["rounds"]) == 1
    written = Schedule.from_json((tmp_path / "schedule.json").read_text())
    assert written.makespan == facts["best_us"] == facts["rounds"][-1]["best_us"]


def test_ctrl_c_before_there_is_a_schedule(
    net: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tvm_interop.compiler.api.Compilation", stop)
    assert run_app(arguments(net, tmp_path)) == 130
    assert "no schedule yet" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_wrong_requests(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["tune", str(net), "-o", str(tmp_path / "no" / "s.json")]) == 2
    assert "no folder" in capsys.readouterr().err
    assert run_app(arguments(net, tmp_path, "--max-measurements", "-1")) == 2
    assert "--max-measurements" in capsys.readouterr().err
    out = str(tmp_path / "net.tar")
    assert run_app(["compile", str(net), "-o", out, "--latency", "guessed"]) == 2
    assert "`guessed`" in capsys.readouterr().err
    lios = ["--scheduler", "lios", "--time-budget", "3"]
    assert run_app(["schedule", str(net), "-o", out, *lios]) == 2
    assert "time_budget_s" in capsys.readouterr().err


def test_without_xgboost_the_extra_is_named(
    net: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    assert run_app(arguments(net, tmp_path)) == 2
    assert "tvm-interop[learned]" in capsys.readouterr().err


def start(net: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tvm_interop", *arguments(net, folder, *more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
        preexec_fn=_begin_search,
    )


def _begin_search() -> None:
    # If a shell runs the tests in the background, they ignore Ctrl-C, and the search would ignore
    # it too.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The test is going to stop the search. So on a busy machine, the search should run more slowly
    # than the test. Otherwise the search could end before it is stopped, and the next search would
    # have nothing to do.
    os.nice(10)


def wait_for_a_round(search: subprocess.Popen[str]) -> None:
    """Wait until a search prints its first round."""
    assert search.stderr is not None
    line = search.stderr.readline()
    assert "round" in line, f"it ended with {search.wait()}: {line}{search.communicate()}"


@pytest.mark.slow
def test_killed_twice_it_goes_on(heavy_net: Path, tmp_path: Path) -> None:
    """A search that SIGKILL ends while it measures continues from its stored measurements."""
    before: dict[str, float] = {}
    for _ in range(2):
        with start(heavy_net, tmp_path) as search:
            wait_for_a_round(search)
            search.send_signal(signal.SIGKILL)
        assert search.returncode == -signal.SIGKILL
        store = LatencyStore(tmp_path / "latency.db")
        assert store.get(before) == before, "nothing committed is lost"
        after = {record.key: record.latency_us for record in store.records()}
        assert len(after) > len(before), "the search continued"
        before = after
        Schedule.from_json((tmp_path / "schedule.json").read_text())
    with start(heavy_net, tmp_path) as search:
        out, _ = search.communicate()
    assert search.returncode == 0
    assert "wrote" in out


@pytest.mark.slow
def test_ctrl_c_as_a_person_would(heavy_net: Path, tmp_path: Path) -> None:
    with start(heavy_net, tmp_path) as search:
        wait_for_a_round(search)
        search.send_signal(signal.SIGINT)
        out, err = search.communicate()
    assert search.returncode == 130
    assert "stopped" in out
    assert "Traceback" not in err
    Schedule.from_json((tmp_path / "schedule.json").read_text())


@pytest.mark.slow
def test_two_searches_share_a_database(net: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    running = []
    for folder in (first, second):
        folder.mkdir()
        running.append(start(net, folder, "--latency-db", str(tmp_path / "shared.db")))
    for search in running:
        out, err = search.communicate()
        assert search.returncode == 0, err
        assert "wrote" in out
    best = [
        Schedule.from_json((folder / "schedule.json").read_text()) for folder in (first, second)
    ]
    records = LatencyStore(tmp_path / "shared.db").records()
    assert all(record.groups for record in records)
    assert len(records) > len(best[0].op_names)
