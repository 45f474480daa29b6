"""Compares policies that serve many models on one device, in simulation.

    python -m benchmarks.serving [--json FILE] [--quick | --figures | --seconds S] [--go-on]

The comparison is a grid of devices, interferences, loads, mixes of models and patterns of arrival.
In each cell of the grid, the policy `auto` is compared with the best of the other policies.

- `--figures` makes the figures of the TOP paper instead, and the table of its claims, in
  `benchmarks/results/serving`.
- `--quick` runs a part of the grid in under three minutes. It also checks the simulator against
  this CPU on one network. The last line of the output is one JSON object,
  `{"rows": [...], "validation": [...]}`.
- `--go-on` keeps the cells that FILE has already.

`auto` was first developed on other loads, mixes and devices than those of this grid. Later, some
cells of the grid showed faults of `auto`, and the faults were mended. One fault was mended on the
seeds of this grid: `auto` took random variation for a change of load. All other faults were mended
on other seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.options import add_json
from benchmarks.serving_cells import CONTESTANTS, Cell, programs_on, run_cell, verdict

_QUICK_S = 100.0
"""After this many seconds, `--quick` begins no further cell. Then it checks the simulator."""
_KEPT = ("device", "interference", "load", "policy", "throughput", "p99_ms", "backlog_variance")
RESULTS = Path(__file__).parent / "results" / "serving"
_OTHER_DEVICES: dict[str, tuple[tuple[str, float], ...]] = {
    "a100": (("bytes_a_us", 1000e3), ("launch_us", 5.0), ("cores", 80)),
    "xavier-nx": (("flops_a_us", 3.4e6), ("cores", 8)),
}
"""Changes that make a device differ from its data sheet, by device."""


def quick_cells() -> Iterator[Cell]:
    """A part of the grid, with the cells of most interest first."""
    for load, device, interference in itertools.product(
        (2.0, 0.6), ("a100", "xavier-nx"), (0.0, 0.03, 0.1)
    ):
        yield Cell(device, interference, load, seed=101, requests=2000)


def full_cells() -> Iterator[Cell]:
    """The cells of the whole grid, in a random order with a fixed seed."""
    cells = [
        Cell(device, interference, load, seed=1211)
        for device, interference, load in itertools.product(
            ("a100", "xavier-nx", "tx2", "nano"), (0.0, 0.03, 0.1), (0.3, 0.8, 1.5, 3.0)
        )
    ]
    for mix, interference in itertools.product(((1, 1, 1), (4, 1, 1), (0, 1, 9)), (0.0, 0.03, 0.1)):
        cells.append(Cell("a100", interference, 1.3, mix, seed=1307))
    for arrivals, load, device in itertools.product(
        ("on_off", "periodic"), (0.6, 2.2), ("a100", "tx2")
    ):
        cells.append(Cell(device, 0.03, load, arrivals=arrivals, seed=1401))
    # The order is random, so that a run that is out of time leaves out cells of every kind.
    random.Random(0).shuffle(cells)
    yield from cells


def compare(
    cells: Sequence[Cell], seconds: float | None = None, before: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Run every policy in every cell, and compare `auto` with the best of the others.

    Parameters
    ----------
    seconds: no cell begins after this time; None for no limit.
    before: earlier results. Their cells are kept and not run again.
    """
    rows: list[dict[str, Any]] = list(before["rows"]) if before else []
    verdicts = list(before["auto"]) if before else []
    had = {_identity(found) for found in verdicts}
    began = time.perf_counter()
    left_out = 0
    for cell in cells:
        if _identity(asdict(cell)) in had:
            continue
        if seconds is not None and time.perf_counter() - began > seconds:
            left_out += 1
            continue
        here = [run_cell(cell, policy)[1] for policy in CONTESTANTS]
        rows += here
        verdicts.append(verdict(here))
        print(_line(verdicts[-1]), flush=True)
    return {"rows": rows, "auto": verdicts, "cells_left_out": left_out}


def _identity(found: dict[str, Any]) -> tuple[Any, ...]:
    """A key that identifies a cell. `found` is the cell as a dictionary, or its results."""
    names = ("device", "interference", "load", "arrivals", "seed")
    return (*(found[name] for name in names), *found["mix"])


def compare_on_others() -> list[dict[str, Any]]:
    """Run all policies on other devices than `auto` assumes.

    The devices differ from their data sheets, and their interference is 0 or 0.1. `auto` assumes
    the data sheets and an interference of 0.03.
    """
    verdicts = []
    for (device, changes), interference, load in itertools.product(
        _OTHER_DEVICES.items(), (0.0, 0.1), (0.7, 2.0)
    ):
        cell = Cell(device, interference, load, seed=1503)
        programs = programs_on(device, interference, sheet_changes=changes)
        believed = programs.device.with_interference(0.03)
        rows = [
            run_cell(cell, policy, programs, **({"believed": believed} if policy == "auto" else {}))
            for policy in CONTESTANTS
        ]
        verdicts.append(verdict([row for _, row in rows]))
        print("told otherwise:", _line(verdicts[-1]), flush=True)
    return verdicts


def summary(verdicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How `auto` compares with the other policies over all cells.

    The entries have the lowest throughput and the highest latency relative to the best other
    policy, and the gains over three simple policies.
    """
    gains = {}
    for name in ("sequential", "pos, skip", "the best fixed streams"):
        ratios = [v["over"][name]["throughput"] for v in verdicts]
        gains[name] = {
            "throughput, geometric mean": statistics.geometric_mean(ratios),
            "throughput, most": max(ratios),
            "p99, geometric mean": statistics.geometric_mean(
                v["over"][name]["p99"] for v in verdicts
            ),
        }
    return {
        "cells": len(verdicts),
        "least throughput over the best": min(v["throughput"] for v in verdicts),
        "cells below 0.99": sum(v["throughput"] < 0.99 for v in verdicts),
        "most p99 over the best": max(v["p99"] for v in verdicts),
        "cells above 1.1": sum(v["p99"] > 1.1 for v in verdicts),
        "cells where no other serves as much": sum(v["is_alone"] for v in verdicts),
        "gains": gains,
    }


def _text(found: dict[str, Any]) -> str:
    """The results as JSON. Each row of a list has its own line, and numbers have five digits."""
    parts = []
    for key, value in found.items():
        if isinstance(value, list):
            rows = ",\n  ".join(json.dumps(_plain(row)) for row in value)
            parts.append(f'"{key}": [\n  {rows}\n ]')
        else:
            parts.append(f'"{key}": {json.dumps(_plain(value))}')
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def _plain(found: Any) -> Any:
    """The value for JSON: numbers have five digits, and nan becomes None.

    JSON has no nan. A latency is nan if nothing was served.
    """
    if isinstance(found, dict):
        return {key: _plain(value) for key, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [_plain(value) for value in found]
    if isinstance(found, float):
        return None if math.isnan(found) else float(f"{found:.5g}")
    return found


def _line(found: dict[str, Any]) -> str:
    return (
        f"{found['device']}, interference {found['interference']}, load {found['load']}, mix "
        f"{found['mix']}, {found['arrivals']}: auto's throughput {found['throughput']:.3f} of "
        f"{found['fastest']}'s, p99 {found['p99']:.3f} of {found['least_p99']}'s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_json(parser, "all results")
    parser.add_argument(
        "--quick", action="store_true", help="run a part of the grid in under three minutes"
    )
    parser.add_argument("--figures", action="store_true", help="make the paper's figures instead")
    parser.add_argument("--seconds", type=float, help="begin no cell after this number of seconds")
    parser.add_argument(
        "--go-on", action="store_true", help="keep the cells that the file of --json has"
    )
    options = parser.parse_args()
    found: dict[str, Any]
    if options.figures:
        from benchmarks.serving_figures import claims_of, figures

        found = {"figures": figures(RESULTS)}
        print(claims_of(found["figures"]))
    elif options.quick:
        from benchmarks.serving_reality import NETWORKS, validate

        found = compare(list(quick_cells()), _QUICK_S)
        # Compilation prints messages. Standard output must have JSON in its last line.
        with contextlib.redirect_stdout(sys.stderr):
            found["validation"] = validate(NETWORKS[:1], 3, 0.2, quick=True)["validation"]
    else:
        before = None
        if options.go_on and options.json is not None and options.json.exists():
            before = json.loads(options.json.read_text())
        found = {"told_otherwise": compare_on_others()}
        found["told_otherwise_summary"] = summary(found["told_otherwise"])
        found |= compare(list(full_cells()), options.seconds, before)
    if "auto" in found:
        found["summary"] = summary(found["auto"])
        print(json.dumps(found["summary"], indent=1))
        if found["cells_left_out"]:
            print(f"{found['cells_left_out']} cells were left out for want of time")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(_text(found))
    if options.quick:
        rows = [{key: row[key] for key in _KEPT} for row in found["rows"]]
        validation = [
            {key: row[key] for key in ("streams", "predicted", "measured", "noise")}
            for row in found["validation"]
        ]
        print(json.dumps(_plain({"rows": rows, "validation": validation})))


if __name__ == "__main__":
    main()
