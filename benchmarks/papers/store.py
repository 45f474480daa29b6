"""Keeps the results of experiments in `benchmarks/results/papers`, one file for each paper."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import machine_state
from .record import Record, record_from
from .registry import Experiment

FOLDER = Path(__file__).parents[1] / "results" / "papers"


def run(found: Experiment, folder: Path = FOLDER) -> Record:
    """Run one experiment, and write its result into the file of its paper.

    The entry of an experiment says when, on what machine, at which commit, by what command and in
    how many seconds it was made.
    """
    state = machine_state.observe(0.5)
    began = time.perf_counter()
    record = replace(found.run(), busy=state.busy)
    seconds = time.perf_counter() - began
    stored = read(found.paper, folder)
    # The experiments in the file may come from several commands. So name the one command that runs
    # all experiments of the paper.
    command = f"python -m benchmarks.papers {found.paper}"
    stored["machine"] = {**state.as_dict(), "command": command}
    stored.setdefault("experiments", {})[found.name] = {
        "title": found.title,
        "slow": found.slow,
        "made": {
            "date": state.date,
            "commit": state.commit,
            "command": f"python -m benchmarks.papers {found.paper} --only '{found.name}'",
            "seconds": round(seconds, 2),
            "cpu": state.cpu.split(" [")[0],
            "cores": state.cores,
            "busy": state.busy,
        },
        "record": record.as_dict(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{found.paper}.json").write_text(json.dumps(stored, indent=1) + "\n")
    return record


def read(paper: str, folder: Path = FOLDER) -> dict[str, Any]:
    """The results of a paper; an empty dictionary if there are none."""
    path = folder / f"{paper}.json"
    loaded: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return loaded


def records(paper: str, folder: Path = FOLDER) -> dict[str, tuple[dict[str, Any], Record]]:
    """For each experiment of a paper that was run: its whole entry, and its record."""
    return {
        name: (entry, record_from({**entry["record"], "busy": entry["made"]["busy"]}))
        for name, entry in read(paper, folder).get("experiments", {}).items()
    }
