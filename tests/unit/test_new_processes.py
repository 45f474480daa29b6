"""Tests that an artifact gets a schedule only if the schedule is faster in new processes too."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from multiprocessing import spawn
from pathlib import Path

import msgspec
import numpy as np
import pytest

import tvm_interop
from tests.nets import branches
from tvm_interop.artifact.manifest import SpeedCheck
from tvm_interop.compiler import api, new_processes
from tvm_interop.compiler.api import new_compilation
from tvm_interop.compiler.new_processes import (
    ProcessTimes,
    check_twice,
    confirm_by,
    confirm_in_new_processes,
    to_be_confirmed,
)
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.compiler.speed_check import check_rounds
from tvm_interop.execution.timed_files import time_files
from tvm_interop.python_command import python_command
from tvm_interop.scheduling.budget import Budget

FAST = SpeedCheck(1000.0, 900.0, 1.003, "scheduled", 24, 0.9, (0.88, 0.92))
SLOW = msgspec.structs.replace(FAST, shipped="sequential", paired_ratio=1.1, interval=(1.0, 1.2))


class Processes:
    """Takes the place of new processes: gives their times, and counts them.

    A ratio is the schedule's time over the time of sequential execution in one process.
    """

    def __init__(self, ratios: Iterator[float]) -> None:
        self.ratios, self.started = ratios, 0

    def __iter__(self) -> Iterator[ProcessTimes]:
        for ratio in self.ratios:
            self.started += 1
            yield ProcessTimes(ratio, 1.01, 1000.0, 1000.0 * ratio, 10)


def confirmed(*ratios: float, seconds: float = 60.0) -> tuple[SpeedCheck | None, int]:
    """The speed check by processes whose ratios repeat `ratios`, and the number of processes."""
    processes = Processes(ratios[i % len(ratios)] for i in range(1000))
    return confirm_by(iter(processes), Budget(seconds)), processes.started


def test_the_times_of_a_process_are_those_of_its_rounds() -> None:
    rounds_us = [[100, 102, 50, 51], [200, 204, 100, 102], [100, 102, 90, 91]]
    found = ProcessTimes.of(rounds_us)
    assert found.ratio == pytest.approx(0.5, rel=1e-6)
    assert found.noise_ratio == pytest.approx(1.02)
    assert found.sequential_us == pytest.approx(np.sqrt(100 * 102))
    assert found.scheduled_us == pytest.approx(np.sqrt(90 * 91))
    assert found.rounds == 3
    assert ProcessTimes.of([[0, 1, 1]]).ratio < np.inf


def test_a_clear_gain_takes_six_processes_and_none_takes_four() -> None:
    fast, started = confirmed(0.9, 0.92, 0.88)
    assert fast is not None
    assert (fast.shipped, started, fast.rounds) == ("scheduled", 6, 60)
    assert fast.ratio == pytest.approx(0.9, abs=0.01)
    assert fast.interval is not None
    assert fast.interval[1] < 0.99
    assert fast.noise_ratio == pytest.approx(1.01)
    slow, started = confirmed(1.03, 0.99, 1.04)
    assert slow is not None
    assert (slow.shipped, started, slow.interval) == ("sequential", 4, None)


def test_an_unclear_gain_takes_more_processes() -> None:
    # In two of every seven processes, streams share a core, so the schedule is slower there.
    found, started = confirmed(0.87, 0.86, 1.1, 0.87, 0.88, 0.86, 1.08)
    assert found is not None
    assert (found.shipped, started) == ("scheduled", 12)
    found, started = confirmed(0.96, 1.0)
    assert found is not None
    assert (found.shipped, started) == ("sequential", 20)


def test_a_schedule_that_seems_no_faster_is_given_up_at_the_first_test() -> None:
    found, started = confirmed(0.97, 1.02)
    assert found is not None
    assert (found.shipped, started) == ("sequential", 6)


def test_a_rough_check_passes_what_seems_faster() -> None:
    """A rough check ships a schedule that seems faster, even if the difference is not significant.

    It does not ship any other schedule.
    """
    for us, ships in ((95.0, "scheduled"), (100.0, "sequential")):
        rounds = [np.array([100.0, 100.0, us * (1 + 0.1 * (-1) ** i)]) for i in range(6)]
        assert check_rounds(iter(rounds)).shipped == "sequential"
        assert check_rounds(iter(rounds), rough=True).shipped == ships


def test_nothing_ships_that_no_process_confirmed() -> None:
    assert confirmed(0.5, seconds=0.0) == (None, 0)


def test_a_schedule_without_a_gain_hardly_ever_ships() -> None:
    draw = np.random.default_rng(0)
    shipped = 0
    for _ in range(400):
        found, _ = confirmed(*np.exp(0.03 * draw.standard_normal(20)).tolist())
        assert found is not None
        shipped += found.shipped == "scheduled"
    assert shipped <= 8


@pytest.fixture(scope="module")
def compilation() -> api.Compilation:
    return new_compilation(branches(), CompileOptions(streams=2, latency_db=":memory:"), {})


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_new_processes_run_what_would_ship(compilation: api.Compilation, temporary: Path) -> None:
    made = compilation.schedule("nimble")
    found = confirm_in_new_processes(compilation, made, FAST)
    assert found.rounds >= 8
    assert found != FAST
    assert found.sequential_us > 0
    assert not list(temporary.iterdir()), "the artifacts are removed"
    assert confirm_in_new_processes(compilation, made, SLOW) == SLOW


@pytest.mark.parametrize("largest", [0, 2**30])
def test_large_models_are_not_run_again(
    compilation: api.Compilation, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    """The speed of a large model is checked thoroughly in the process that compiles.

    The speed of a small model is checked roughly in this process, and then new processes decide.
    """

    def check(self: api.Compilation, schedule: tvm_interop.Schedule, rough: bool) -> SpeedCheck:
        assert rough == (largest > 0)
        return FAST

    confirmed_by = msgspec.structs.replace(FAST, rounds=99)
    monkeypatch.setattr(new_processes, "_LARGEST_BYTES", largest)
    monkeypatch.setattr(api.Compilation, "check_speed", check)
    monkeypatch.setattr(new_processes, "confirm_in_new_processes", lambda *_: confirmed_by)
    made = compilation.schedule("nimble")
    assert check_twice(compilation, made) == (confirmed_by if largest else FAST)
    assert to_be_confirmed(compilation, "nimble") == {}
    assert to_be_confirmed(compilation, "auto") == ({"confirm_choice": False} if largest else {})
    artifact = tvm_interop.compile(branches(), scheduler="nimble", streams=2, latency_db=":memory:")
    assert artifact.manifest.speed_check == (confirmed_by if largest else FAST)


def test_a_choice_that_nothing_confirmed_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unchecked choice of `auto` must not ship if no new process can check it.

    This also holds with `confirm_choice=False`.
    """
    slow = msgspec.structs.replace(FAST, shipped="sequential", paired_ratio=1.2)
    asked: list[bool] = []

    def check(self: api.Compilation, schedule: tvm_interop.Schedule, rough: bool) -> SpeedCheck:
        asked.append(rough)
        return slow

    monkeypatch.setattr(new_processes, "_LARGEST_BYTES", 0)
    monkeypatch.setattr(api.Compilation, "check_speed", check)
    monkeypatch.setattr(api, "speed_check_by_auto", lambda schedule: FAST)
    monkeypatch.setattr(api, "_scheduled", lambda compilation, *_: compilation.schedule("nimble"))
    artifact = tvm_interop.compile(
        branches(), streams=2, latency_db=":memory:", confirm_choice=False
    )
    assert asked == [False]
    assert artifact.manifest.speed_check == slow


def test_without_new_processes_the_model_runs_sequentially(
    compilation: api.Compilation,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = compilation.schedule("nimble")
    for program, reason in (
        ("/bin/false", "code 1"),
        ("/bin/true", "printed no times"),
        ("/nowhere/python", "No such file"),
        ("", "does not know which Python"),
    ):
        monkeypatch.setattr(spawn, "_python_exe", program)
        with caplog.at_level(logging.WARNING, "tvm_interop"):
            found = confirm_in_new_processes(compilation, made, FAST)
        assert found.shipped == "sequential"
        assert reason in caplog.messages[-1]
        assert "runs sequentially" in caplog.messages[-1]
    assert not list(temporary.iterdir())


def test_processes_start_together_and_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process notes when it starts and when it runs. The test ends the last process."""
    (tmp_path / "noting.py").write_text(
        "import os, sys\n"
        "def note(what):\n"
        f"    with open({str(tmp_path / 'notes')!r}, 'a') as file:\n"
        "        print(what, os.getpid(), file=file, flush=True)\n"
        "def main():\n"
        "    note('started')\n"
        "    print('started', flush=True)\n"
        "    sys.stdin.read()\n"
        "    note('runs')\n"
        "    print([[2.0, 2.0, 1.0]])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(new_processes, "python_command", lambda _: python_command("noting"))
    monkeypatch.setattr(new_processes, "num_threads", lambda: 2)
    with contextlib.closing(new_processes._processes([])) as processes:
        assert [next(processes).ratio for _ in range(3)] == [0.5] * 3
    notes = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    two = ["started", "started", "runs", "runs"]
    assert [what for what, _ in notes] == [*two, *two[:3]]
    for _, number in notes:
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)


def test_compile_ships_what_the_new_processes_confirm(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: api.Compilation, schedule: tvm_interop.Schedule, rough: bool) -> SpeedCheck:
        return FAST

    monkeypatch.setattr(api.Compilation, "check_speed", check)
    for ratio, ships in ((0.9, "scheduled"), (1.0, "sequential")):

        def processes(paths: list[str], ratio: float = ratio) -> Iterator[ProcessTimes]:
            assert all(Path(path).stat().st_size > 0 for path in paths)
            yield from Processes(ratio for _ in range(20))

        monkeypatch.setattr(new_processes, "_processes", processes)
        artifact = tvm_interop.compile(
            branches(), scheduler="nimble", streams=2, latency_db=":memory:"
        )
        checked = artifact.manifest.speed_check
        assert checked is not None
        assert checked.shipped == ships
        assert checked.ratio == ratio
        assert (len(artifact.plan.streams) > 1) == (ships == "scheduled")


def test_files_are_timed_in_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No file is signed here, and `time_files` must accept that even if keys are set.
    monkeypatch.setenv("TVM_INTEROP_TRUSTED_KEYS", str(tmp_path / "key"))
    path = str(tmp_path / "model.tar")
    tvm_interop.compile(branches(), scheduler="sequential", out=path, latency_db=":memory:")
    rounds_us = np.array(time_files([path, path, path], 0.01, seed=3))
    assert rounds_us.shape[1] == 3
    assert 2 <= len(rounds_us) <= 200
    assert (rounds_us > 0).all()
    assert len(time_files([path], 0.0, seed=0)) == 2
