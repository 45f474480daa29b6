"""Tests the benchmark harness on a simulated clock: which differences it finds, and which it must
not find."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tvm_interop
from benchmarks import bench, harness, machine_state
from benchmarks.machine_state import MachineState
from benchmarks.report import Report


class FakeMachine:
    """A clock that contestants advance. Each run has some noise, and the machine's speed drifts."""

    def __init__(self, seed: int, noise: float = 0.02, drift: float = 0.0) -> None:
        self.now = 0.0
        self.order: list[str] = []
        self._rng = np.random.default_rng(seed)
        self._noise = noise
        self._drift = drift

    def contestant(self, name: str, seconds: float) -> Callable[[], object]:
        def run() -> None:
            self.order.append(name)
            slow = 1 + self._drift * self.now
            self.now += seconds * slow * self._rng.lognormal(0, self._noise)

        return run

    def measure(self, contestants: dict[str, float], rounds: int = 101) -> dict[str, np.ndarray]:
        return harness.measure(
            {name: self.contestant(name, s) for name, s in contestants.items()},
            baseline=next(iter(contestants)),
            rounds=rounds,
            lead_in=0,
            clock=lambda: self.now,
            sleep=lambda seconds: None,
        )


def verdicts(machine: FakeMachine, contestants: dict[str, float]) -> dict[str, bool]:
    baseline = next(iter(contestants))
    found = harness.summarise(machine.measure(contestants), baseline)
    return {n: found[n].differs(found[baseline + harness.AGAIN]) for n in contestants}


def test_a_planted_slowdown_is_seen_and_none_is_not() -> None:
    wrong = 0
    for seed in range(40):
        seen = verdicts(FakeMachine(seed), {"plain": 1.0, "same": 1.0, "slower": 1.05})
        assert seen["slower"], seed
        wrong += seen["same"]
    # A 95% interval gives at most one false verdict in twenty, which is 2 in these 40 runs.
    assert wrong <= 2


def test_drift_falls_on_all_alike() -> None:
    """The ratio of two contestants stays the same although the machine becomes three times slower
    while they are measured."""
    machine = FakeMachine(0, drift=0.005)
    found = harness.summarise(machine.measure({"plain": 1.0, "half": 0.5}), "plain")
    assert found["half"].ratio == pytest.approx(0.5, rel=0.1)


def test_only_the_last_call_of_a_turn_is_timed() -> None:
    machine = FakeMachine(0, noise=0.0)
    calls = {"a": machine.contestant("a", 1.0)}
    times = harness.measure(
        calls, "a", 3, warmup=0, lead_in=2, clock=lambda: machine.now, sleep=lambda s: None
    )
    assert len(machine.order) == 2 * 3 * 3  # Each round has three calls of `a` and of `a (again)`.
    assert times["a"] == pytest.approx([1e6] * 3)


def test_a_turn_counts_by_its_median_call() -> None:
    seconds = iter([9.0, 1.0, 5.0, 2.0] * 4)  # A turn: one untimed call, three timed calls.
    machine = FakeMachine(0)

    def run() -> None:
        machine.now += next(seconds)

    times = harness.measure(
        {"a": run}, "a", 2, warmup=0, in_a_row=3, clock=lambda: machine.now, sleep=lambda s: None
    )
    assert times["a"] == pytest.approx([2e6] * 2)


def test_rounds_are_interleaved_and_warm_up_is_not_counted() -> None:
    machine = FakeMachine(0)
    times = machine.measure({"a": 1.0, "b": 2.0}, rounds=10)
    assert {name: len(found) for name, found in times.items()} == {
        "a": 10,
        "a (again)": 10,
        "b": 10,
    }
    rounds = [machine.order[i : i + 3] for i in range(0, len(machine.order), 3)]
    assert len(rounds) == 12
    assert all(sorted(r) == ["a", "a", "b"] for r in rounds)
    assert len(set(map(tuple, rounds))) > 1


def test_summary_figures() -> None:
    times = {"a": np.arange(1.0, 101.0), "b": np.arange(1.0, 101.0) * 2}
    found = harness.summarise({**times, "a (again)": times["a"]}, "a")
    assert found["a"].median_us == 50.5
    assert found["a"].p90_us == pytest.approx(90.1)
    assert found["a"].p99_us == pytest.approx(99.01)
    assert found["b"].ratio == 2
    low, high = found["a"].median_interval_us
    assert 35 < low < 50.5 < high < 66


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    held = 0
    for seed in range(100):
        times = {"a": np.random.default_rng(seed).lognormal(0, 0.1, 61)}
        low, high = harness.summarise(times, "a", seed)["a"].median_interval_us
        held += low <= 1 <= high
    assert 88 <= held <= 100


def report(forced: bool) -> Report:
    times = {"ours": np.linspace(1e3, 1.1e3, 30), "theirs": np.linspace(2e3, 2.1e3, 30)}
    summaries = harness.summarise({**times, "ours (again)": times["ours"]}, "ours")
    machine = MachineState("some CPU", 2, "Linux", "3.11", 0.5 if forced else 0.0, (0, 0, 0), 2.0)
    return Report(
        "net", "ours", machine, forced, summaries, skipped={"TensorRT": "there is no GPU"}
    )


def test_report(tmp_path: Path) -> None:
    paths = report(forced=False).write(tmp_path)
    assert [p.name for p in paths] == ["net.md", "net.json", "net.png", "net.svg"]
    table = paths[0].read_text()
    assert "| theirs | 2.050 |" in table
    assert "slower" in table
    assert "TensorRT did not take part: there is no GPU." in table
    assert "not quiet" not in table
    assert "(again) |" not in table
    facts = json.loads(paths[1].read_text())
    assert facts["machine"]["quiet"]
    assert facts["contestants"]["theirs"]["differs"]
    assert all(p.stat().st_size > 1000 for p in paths[2:])


def test_a_forced_report_says_so() -> None:
    assert "not quiet" in report(forced=True).table()
    assert report(forced=True).as_dict()["forced"]


def test_what_cores_do_at_once_is_found_without_moving_the_caller() -> None:
    allowed = os.sched_getaffinity(0)
    assert machine_state.observe(0.1).cores_at_once > 0
    assert os.sched_getaffinity(0) == allowed


def test_what_users_get_by_default_takes_part() -> None:
    default = inspect.signature(tvm_interop.compile).parameters["scheduler"].default
    assert default in bench.SCHEDULERS
    ours = [*bench.SCHEDULERS, *bench.MORE_SCHEDULERS]
    assert set(ours) <= set(tvm_interop.schedulers())
    assert len(set(ours)) == len(ours)
