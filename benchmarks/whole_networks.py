"""IOS on whole networks: how good its stages are, after how long, against cheaper schedulers.

    python -m benchmarks.whole_networks [FAMILY ...] [--seeds N] [--seconds S ...]
                                        [--latencies L ...] [--devices table gpu]
                                        [--as NAME] [--out FILE]

Each graph of `scheduling_graphs` is scheduled by greedy, LIOS and IOS. Everything is simulated: a
table where operators never slow each other down, and a GPU that they share. Times are those of the
whole call. `--as NAME` keeps what IOS finds under another name in the file that `--out` gives, so
that versions of the package can be compared: rows of other names stay as they are.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tvm_interop
from tvm_interop import Schedule
from tvm_interop.atomic_file import replacing
from tvm_interop.machine.cpu_name import cpu_model
from tvm_interop.scheduling.ios import ios
from tvm_interop.scheduling.simulation import simulate

from .scheduling_graphs import FAMILIES, LATENCIES, Subject, subject

GROUPS = LIOS_STREAMS = 8
"""As many as IOS has groups in a stage."""


@dataclass(frozen=True)
class Row:
    """What one scheduler found for one graph.

    Attributes
    ----------
    makespan_us: the stages' prices together; of LIOS the simulated run of its streams.
    stats: what IOS says of its search.
    """

    graph: str
    device: str
    operators: int
    contestant: str
    makespan_us: float
    seconds: float
    stats: dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*", default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--latencies", nargs="*", default=["uniform"], choices=list(LATENCIES))
    parser.add_argument("--devices", nargs="*", default=["table", "gpu"])
    parser.add_argument("--seconds", nargs="*", type=float, default=[1, 5])
    parser.add_argument("--as", dest="name", default="ios")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    rows = read(options.out) if options.out else {}
    for family in options.families:
        for latencies in options.latencies:
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                for device in options.devices:
                    found = compare(
                        subject(family, latencies, device, seed), options.name, options.seconds
                    )
                    rows |= {(row.graph, row.device, row.contestant): row for row in found}
                    print(line(found), flush=True)
        if options.out:
            facts = {"machine": cpu_model(), "rows": [asdict(row) for row in rows.values()]}
            with replacing(options.out) as path:
                Path(path).write_text(json.dumps(facts, indent=1))


def read(path: Path) -> dict[tuple[str, str, str], Row]:
    """The rows of a file, by graph, device and contestant; none where there is no file yet."""
    if not path.exists():
        return {}
    rows = [Row(**row) for row in json.loads(path.read_text())["rows"]]
    return {(row.graph, row.device, row.contestant): row for row in rows}


def compare(on: Subject, name: str, seconds: Sequence[float]) -> list[Row]:
    """Greedy, LIOS, and IOS with its defaults and with each of some seconds."""
    rows = [
        run(on, "greedy", "greedy", max_groups=GROUPS),
        run(on, "lios", "lios", streams=LIOS_STREAMS),
    ]
    rows.append(run(on, name, "ios"))
    if "time_budget_s" not in inspect.signature(ios).parameters:
        return rows
    rows.append(run(on, f"{name}, cut by start", "ios", beam=False))
    rows += [run(on, f"{name} {s:g} s", "ios", time_budget_s=s) for s in seconds]
    return rows


def run(on: Subject, contestant: str, scheduler: str, **options: Any) -> Row:
    """One schedule, and its predicted makespan by the model that it was made for."""
    started = time.perf_counter()
    made = tvm_interop.schedule(on.graph, scheduler, on.latency, **options)
    seconds = time.perf_counter() - started
    stats = {
        k: v for k, v in made.stats.items() if isinstance(v, (int, float)) and math.isfinite(v)
    }
    return Row(
        on.name, on.device, on.graph.num_ops, contestant, predicted_us(on, made), seconds, stats
    )


def predicted_us(on: Subject, made: Schedule) -> float:
    """What the stages take one after the other, or the streams together."""
    if made.is_staged or on.contention is None:
        return made.simulate(on.graph, on.latency)
    return simulate(on.graph, made, on.latency, on.contention).makespan_us


def line(rows: Sequence[Row]) -> str:
    """One graph's contestants over greedy."""
    greedy = next(row for row in rows if row.contestant == "greedy")
    bounds = [row.stats["lower_bound_us"] for row in rows if "lower_bound_us" in row.stats]
    found = [
        f"{row.contestant} {row.makespan_us / greedy.makespan_us:.3f} ({row.seconds:.1f} s)"
        for row in rows
        if row is not greedy
    ]
    if bounds:
        found.append(f"lower bound {max(bounds) / greedy.makespan_us:.3f}")
    return f"{greedy.graph} {greedy.device}: " + ", ".join(found)


if __name__ == "__main__":
    main()
