"""Makes the section about the whole of TOP on `docs/serving_results.md` from the cells' files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.markdown import table

_STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Factors of the standard error for an interval of 95%, by the number of seeds."""
_LOADS = {
    "clients": "clients that wait for each answer",
    "poisson": "Poisson arrivals at 1.5 times the throughput of one instance at a time",
    "bursts": "bursts at 0.8 times the throughput of one instance at a time",
}
_COLUMNS = {
    "throughput": "requests /s", "mix": "of the mix /s", "p99_ms": "99th percentile, ms",
    "goodput": "goodput /s",
}  # fmt: skip


def section(cells: dict[str, Any]) -> list[str]:
    """The parts of the section on the whole of TOP in Markdown, one part for each table.

    The list is empty if there are no cells.

    Parameters
    ----------
    cells: results of the cells by name.
    """
    if not cells:
        return []
    parts = ["## The whole of TOP: GPG inside the agents\n\n" + _introduction(cells)]
    for device, mix in sorted({(row["device"], row["mix"]) for row in cells.values()}):
        here = [row for row in cells.values() if (row["device"], row["mix"]) == (device, mix)]
        parts += [_part(device, mix, load, here) for load in _LOADS]
    return parts


def contestants(rows: Sequence[dict[str, Any]], load: str) -> dict[str, list[dict[str, float]]]:
    """The figures of each contestant with one load, one entry for each seed."""
    found: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        for name, served in row["served"].items():
            told = name
            if "config" in row:
                told = f"TOP, `{row['config']}`, {row['steps']} steps, {name}"
            elif name == "hill climbing":
                told = f"hill climbing, {row['calls']} calls"
            found.setdefault(told, []).append(served[load])
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean and half the width of the interval of 95% over seeds; nan with a single seed."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    squares = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, _STUDENT[len(values)] * math.sqrt(squares / len(values))


def wins(cells: dict[str, Any]) -> bool:
    """Whether trained agents serve clearly more requests of the mix than `auto` in any setting.

    Agents serve clearly more than `auto` if the intervals of the two do not overlap.
    """
    for place in {(row["device"], row["mix"]) for row in cells.values()}:
        here = [row for row in cells.values() if (row["device"], row["mix"]) == place]
        for load in _LOADS:
            found = contestants(here, load)
            if "auto" not in found:
                continue
            auto, width = interval([row["mix"] for row in found["auto"]])
            for name, rows in found.items():
                mean, own = interval([row["mix"] for row in rows])
                if name.startswith("TOP, ") and mean - own > auto + width:
                    return True
    return False


def _introduction(cells: dict[str, Any]) -> str:
    trained = [row for row in cells.values() if "agents_seconds" in row]
    runs = []
    for config in sorted({row["config"] for row in trained}):
        rows = [row for row in trained if row["config"] == config]
        steps = sorted({(row["steps"], row["gpg_steps"], row["share"]) for row in rows})
        told = " and ".join(
            f"{agents} steps of the agents and {gpg} of GPG ({share:.0%} of the configured steps)"
            for agents, gpg, share in steps
        )
        count = f"{len(rows)} training{'s' if len(rows) > 1 else ''}"
        runs.append(f"`{config}` had {count}, of {told}.")
    hours = sum(row["agents_seconds"] + row["gpg_seconds"] for row in trained) / 3600
    return (
        "Simulated by `python -m benchmarks.top_whole`, at an interference of 0.03. *All of it* "
        "is the whole of TOP: agents decide, and a GPG that was trained on blocks of the same "
        "models and device makes the stages of each combined block. *Greedy stages* are the same "
        "agents with `greedy` in the place of GPG. The agents learn among clients that wait for "
        f"answers, and queues go on from step to step. {' '.join(runs)} The trainings took "
        f"{hours:.2f} hours of processor time. The agents of `paper` are as large as in the "
        "paper. Hill climbing calls the simulator as many times as `ours` has steps. A request "
        "counts for the goodput if it took at most ten times its model's latency alone. Numbers "
        "after ± are half the width of a 95% interval over the seeds of the arrivals. A row "
        "without ± has a single seed. The arrivals of clients have no seed. All rows of one "
        "training have the same seed of the agents, with any seed of the arrivals."
    )


def _part(device: str, mix: str, load: str, rows: Sequence[dict[str, Any]]) -> str:
    found = contestants(rows, load)
    order = sorted(found, key=lambda name: -interval([row["mix"] for row in found[name]])[0])
    lines = [
        [
            name,
            str(len(found[name])),
            *(_cell([row[key] for row in found[name]]) for key in _COLUMNS),
        ]
        for name in order
    ]
    head = ["policy", "seeds of arrivals", *_COLUMNS.values()]
    return f"### {device}, {mix}: {_LOADS[load]}\n\n{table(head, lines)}"


def _cell(values: Sequence[float]) -> str:
    if any(map(math.isnan, values)):
        return "none served"
    mean, width = interval(values)
    digits = 0 if mean >= 20 else 1
    return f"{mean:.{digits}f}" + (
        "" if math.isnan(width) or not width else f" ± {width:.{digits}f}"
    )
