"""Tests the result file and the section of a page that are made from measurements on a machine with
a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu import TORCH_COMPILE
from benchmarks.gpu_table import EAGER, GRAPH, gathered, section, summary

EQUIPMENT = {
    "cpu": "A CPU", "cores": 16, "nvidia-smi": "NVIDIA X, 580.1, 1 MiB", "torch": "2.11.0 13.0",
    "cudnn": "9.1", "cublaslt": "13.1", "nvcc": "13",
}  # fmt: skip
US = {
    "sequential": 1000.0, "sequential, again": 1020.0, "lios": 700.0, "nimble": 800.0,
    "sequential, fastest kernels": 400.0, "lios, fastest kernels": 200.0,
    "nimble, fastest kernels": 300.0, EAGER: 2000.0, GRAPH: 500.0,
}  # fmt: skip
FACTS: dict[str, Any] = {
    "network": "net", "operators": 3, "numbers": "right", "library_numbers": {}, "kernels": {},
    "bits": {"lios": "same"}, "no_graph": {}, "stages_measured": 0, "stages_refused": 0,
    "search_s": {}, "median_us": US, "launch_us": {}, "back_to_back_us": {}, "peer_errors": {},
    "not_run": [], "early_us": {"lios": 0.0},
    "implementations": {"sequential, libraries": {"a": "algorithm 1", "b": "algorithm 1"}},
}  # fmt: skip


def step(found: dict[str, Any], state: str = "done", why: str = "") -> dict[str, Any]:
    return {"state": state, "began_s": 0.0, "seconds": 1.0, "why": why, "found": found}


def visit(path: Path, **steps: Any) -> Path:
    path.write_text(json.dumps({"steps": {k.replace("_", " "): v for k, v in steps.items()}}))
    return path


def report(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    first = visit(folder / "1.json", versions=step(EQUIPMENT), time_net=step({}, "failed"))
    second = visit(
        folder / "2.json",
        time_net=step(facts, "killed", "it took over 9 s"),
        check_small=step(FACTS),
        check_net=step(facts),
        sanitizer=step({}, "done" if facts is FACTS else "failed", "a fault"),
        interfaces_net=step({"session": "same bits" if facts is FACTS else "DIFFERENT bits"}),
        compile_net=step({"compiled_us": {TORCH_COMPILE: 600.0}}),
    )
    return gathered([first, second], "abc")


def test_the_last_file_counts_and_shares_are_right(tmp_path: Path) -> None:
    made = report(tmp_path, FACTS)
    assert made["networks"]["net"]["implementations"] == {
        "sequential, libraries": {"algorithm 1": 2}
    }
    text = "\n".join(section(made))
    assert "differs from the first by at most 2.0%" in text
    assert "| net | 1,000 | 400 | 200 | 0.50 | 2,000 | 500 | 600 | 0.40 |" in text
    assert "| net, TVM's kernels |  | 0.70 | 0.80 |  |  |  |" in text
    assert "| net, fastest kernels |  | 0.50 | 0.75 |  |  |  |" in text
    assert "outputs of 2 of 2" in text
    told = summary(made)
    assert "of the time of sequential execution of the same kernels, was: net (0.50)." in told
    assert told.endswith("As a share of the time of PyTorch in a CUDA graph, it was: net (0.40).")
    assert "`time net` (it took over 9 s)" in text
    assert "memcheck and racecheck find nothing" in text
    assert "give the same bits: session." in text


def test_what_is_wrong_or_missing_is_told(tmp_path: Path) -> None:
    us = {"sequential": 1000.0, "sequential, again": 1000.0}
    facts = FACTS | {"median_us": us, "numbers": "WRONG", "bits": {"lios": "DIFFERENT"}}
    text = "\n".join(section(report(tmp_path, facts)))
    assert "outputs of 1 of 2" in text
    assert "in 1 of them all schedules" in text
    assert "find nothing" not in text
    assert "give the same bits" not in text
    assert "`sanitizer` (a fault)" in text
    assert "| net | 1,000 |  |  |  |  |  | 600 |  |" in text
