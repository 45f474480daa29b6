"""Writes the figures in `README.md` from result files. In the README two comments enclose them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import gpu_table
from .markdown import geometric, interval, machine, named_machine, table
from .zoo_tables import RESTED, beyond, short

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "README.md"
_BEGIN = "<!-- figures: written by `python -m benchmarks.figures` -->"
_END = "<!-- end of figures -->"


def page() -> str:
    """The text of the README with figures from the current result files."""
    before, rest = PAGE.read_text().split(_BEGIN)
    _, after = rest.split(_END)
    return f"{before}{_BEGIN}\n{_block()}\n{_END}{after}"


def _block() -> str:
    zoo, busy, shipped = _read("zoo"), _read("busy_machine"), _read("shipped_schedules")
    ran = [row for row in zoo["rows"] if row["refused"] is None]
    ratios = {row["network"]: row["ratio"][RESTED] for row in shipped["rows"]}
    faster, slower = beyond(shipped["rows"], RESTED)
    tried, ships = len(shipped["ships"]), sum(shipped["ships"].values())
    named = [
        f"{short(name)} ({ratios[name]:.2f})" for name in sorted(faster, key=lambda n: ratios[n])
    ]
    rows = [_over(ran, name, peer) for name, peer in _PEERS.items()]
    if any(row["bf16_ratios"] for row in ran):
        name = "the same, if ours is compiled with `--precision bf16`"
        rows.append(_over(ran, name, "OpenVINO, as installed", "bf16_ratios"))
    beside = _beside_others(busy)
    return "\n\n".join(
        [
            f"**Beside other runtimes.** We measured {len(ran)} exported networks on "
            f"{machine(zoo)}, at batch 1 in float32. A ratio below 1 means that we are faster:",
            table(["our time over that of", "geometric mean", "least", "most"], rows),
            "Most of our lead over onnxruntime comes from kernels and memory layouts: with "
            "sequential execution of the same kernels, the geometric mean would be "
            f"{_mean_if_sequential(ran):.2f}.",
            "**Schedules beside sequential execution.** These figures are of "
            f"{shipped['machine']['date'][:10]}, from {machine(shipped)}"
            f"{_other_machine(zoo, shipped)}. {tried - ships} of {tried} networks ran "
            f"sequentially, because the speed check found no faster schedule. {ships} ran a "
            f"schedule, and {'all' if len(ratios) == ships else len(ratios)} of these were timed "
            f"again for {shipped['rounds']} rounds. A number in brackets is the time of the "
            "schedule divided by the time of sequential execution. Faster, with a 95% interval of "
            "the ratio below 1: "
            f"{', '.join(named) or 'none'}. Slower, with an interval above 1: "
            f"{', '.join(map(short, slower)) or 'none'}.",
            "**Beside other programs.** One or two other programs computed on the same "
            f"{named_machine(busy['machine'])}. {beside['networks']} networks then took "
            f"{interval(beside['ends'], 2)} times onnxruntime's time (geometric mean "
            f"{beside['mean']:.2f}).",
            gpu_table.summary(_read("h200")),
        ]
    )


def _other_machine(first: dict[str, Any], second: dict[str, Any]) -> str:
    """A warning if two reports are of different machines."""
    same = first["machine"]["cpu"] == second["machine"]["cpu"]
    return "" if same else ", another machine, so do not combine them with the table above"


def _mean_if_sequential(rows: list[dict[str, Any]]) -> float:
    """The geometric mean of our time over onnxruntime's, if every network ran sequentially."""
    return geometric(
        [
            row["ratios"][_PEERS["onnxruntime"]]
            / (row["ratios"]["ours, sequential"] if row["scheduled"] else 1)
            for row in rows
        ]
    )


_PEERS = {
    "onnxruntime": "onnxruntime, sequential",
    "OpenVINO, float32": "OpenVINO, float32",
    "OpenVINO as installed, which computes in bfloat16": "OpenVINO, as installed",
}


def _over(ran: list[dict[str, Any]], name: str, peer: str, of: str = "ratios") -> list[str]:
    """A row of the table.

    Our time is divided by the time of `peer`, from the column `of` of a result.
    """
    ratios = [row[of][peer] for row in ran if peer in row[of]]
    return [name, *(f"{number:.2f}" for number in (geometric(ratios), min(ratios), max(ratios)))]


def _beside_others(report: dict[str, Any]) -> dict[str, Any]:
    medians = {
        (row["network"], row["busy"], row["rhythm"], row["contestant"]): row["median_ms"]
        for row in report["rows"]
    }
    ratios = [
        ms / medians[(*at, "onnxruntime")]
        for (*at, contestant), ms in medians.items()
        if contestant == "scheduled" and at[1] in ("1", "2")
    ]
    return {
        "networks": len({row["network"] for row in report["rows"]}),
        "ends": (min(ratios), max(ratios)),
        "mean": geometric(ratios),
    }


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())
