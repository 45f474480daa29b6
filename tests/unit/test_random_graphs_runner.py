"""Tests random graphs whose process hangs or ends early."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.random_graphs import __main__ as runner

# This program runs in place of the process that judges graphs. Its behaviour depends on the last
# digit of the seed.
CHILD = """
import os, pathlib, signal, sys, time
first, last, log = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[4])
for seed in range(first, last):
    signal.setitimer(signal.ITIMER_PROF, 0.3)
    signal.alarm(60)
    if seed % 10 == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    while seed % 10 == 5:
        pass
    if seed % 10 == 6:
        time.sleep(0.6)  # Waits for a processor, as on a busy machine.
    if seed % 10 == 8:
        os.kill(os.getpid(), signal.SIGALRM)
    if seed % 10 == 9:
        raise ImportError("no such module")
    with log.open("a") as file:
        file.write('{"seed": %d, "s": 0.0}\\n' % seed)
"""


@pytest.fixture
def _played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    monkeypatch.setattr(runner, "CHILD", (sys.executable, str(script)))


def outcomes(first: int, last: int, log: Path) -> dict[int, dict[str, object]]:
    seeds = list(range(first, last))
    while seeds:
        seeds = seeds[runner.run(seeds, log, until=float("inf")) :]
    return {record["seed"]: record for record in runner.read(log)}


@pytest.mark.usefixtures("_played")
def test_each_end_costs_one_graph_and_is_told(tmp_path: Path) -> None:
    found = outcomes(0, 12, tmp_path / "log")
    assert found[3] == {"seed": 3, "crash": "SIGSEGV"}
    assert "processor time" in str(found[5]["slow"])
    assert "hangs" in str(found[8]["slow"])
    assert found[9] == {"seed": 9, "crash": "exit code 1: ImportError: no such module"}
    assert sorted(found) == list(range(12))
    fine = [seed for seed, record in found.items() if "s" in record]
    assert fine == [0, 1, 2, 4, 6, 7, 10, 11]


@pytest.mark.usefixtures("_played")
def test_when_the_time_is_up_the_rest_is_left_out(tmp_path: Path) -> None:
    seeds = list(range(5, 8))  # The graph of seed 5 would compute forever.
    assert runner.run(seeds, tmp_path / "log", until=time.monotonic() - 1) == 3
    assert runner.read(tmp_path / "log") == []
