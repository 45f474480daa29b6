"""Compares IOS on whole networks with faster schedulers: makespan and search time.

    python -m benchmarks.whole_networks [FAMILY ...] [--seeds N] [--first-seed N]
                                        [--seconds S ...] [--latencies L ...]
                                        [--devices table gpu] [--as NAME] [--out FILE]

Greedy, LIOS and IOS schedule each graph of `scheduling_graphs`. Everything is simulated, on two
devices: a table in which operators never slow each other down, and a GPU that they share. Seconds
and time budgets are processor time, so the results are the same on a busy machine. New rows
are added to the rows in FILE, so the table can be made piece by piece. `--as NAME` stores the
results of IOS under another name, to compare versions of the package.

The last lines have the mean and the worst ratio of each contestant to greedy. The program fails if
the worst ratio of IOS with beams is above 1. The table in `benchmarks/results` is made by
    out=benchmarks/results/whole_networks.json
    python -m benchmarks.whole_networks --seconds 1 5 30 --out $out
    python -m benchmarks.whole_networks layered_200 layered_1000 --seeds 40 --seconds 1 --out $out
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tvm_interop
from tvm_interop import Schedule
from tvm_interop.atomic_file import replacing
from tvm_interop.machine.cpu_name import cpu_model
from tvm_interop.scheduling import budget
from tvm_interop.scheduling.simulation import simulate

from .scheduling_graphs import FAMILIES, LATENCIES, Subject, subject

GROUPS = LIOS_STREAMS = 8
"""Largest number of groups in a stage of greedy, and number of streams of LIOS. It is the default
number of groups of IOS."""
KEPT = ("lower_bound_us", "optimal", "transitions", "stages_priced", "blocks", "blocks_left")
"""The statistics of a search that are kept."""
_ROUNDING = 1e-9
"""Largest relative difference between sums of the same latencies in another order."""


@dataclass(frozen=True)
class Row:
    """The result of one scheduler for one graph.

    Attributes
    ----------
    makespan_us: sum of the latencies of the stages; for LIOS the simulated time of its streams.
    seconds: processor time of the whole call.
    stats: statistics of the search by IOS; empty for other schedulers.
    """

    graph: str
    device: str
    operators: int
    contestant: str
    makespan_us: float
    seconds: float
    stats: dict[str, Any]


Rows = dict[tuple[str, str, str], Row]
"""Rows by graph, device and contestant."""


def main(arguments: Sequence[str] | None = None) -> int:
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
    budget.now_s = time.process_time
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
                        write(options.out, rows)
    return summary(rows)


def read(path: Path) -> Rows:
    """The rows in a file; empty if there is no file yet."""
    if not path.exists():
        return {}
    rows = [Row(**row) for row in json.loads(path.read_text())["rows"]]
    return {(row.graph, row.device, row.contestant): row for row in rows}


def write(path: Path, rows: Rows) -> None:
    """Write all rows to a file, with a line for each."""
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows.values())
    with replacing(path) as half_done:
        Path(half_done).write_text(
            f'{{"machine": {json.dumps(cpu_model())}, "rows": [\n{lines}\n]}}\n'
        )


def compare(on: Subject, name: str, seconds: Sequence[float]) -> list[Row]:
    """Run greedy, LIOS and IOS on a graph.

    IOS runs with its defaults, without beam search, and with each time budget in `seconds`.

    Parameters
    ----------
    name: name of IOS in the results.
    """
    return [
        run(on, "greedy", "greedy", max_groups=GROUPS),
        run(on, "lios", "lios", streams=LIOS_STREAMS),
        run(on, name, "ios"),
        run(on, f"{name}, cut by start", "ios", beam=False),
        *(run(on, f"{name} {s:g} s", "ios", time_budget_s=s) for s in seconds),
    ]


def run(on: Subject, contestant: str, scheduler: str, **options: Any) -> Row:
    """Run one scheduler, and predict the makespan by the latency model that it used."""
    started = time.process_time()
    made = tvm_interop.schedule(on.graph, scheduler, on.latency, **options)
    seconds = time.process_time() - started
    stats = {key: made.stats[key] for key in KEPT if key in made.stats}
    return Row(
        on.name, on.device, on.graph.num_ops, contestant, predicted_us(on, made), seconds, stats
    )


def predicted_us(on: Subject, made: Schedule) -> float:
    """The predicted makespan of a schedule of stages or of streams, in microseconds."""
    if made.is_staged or on.contention is None:
        return made.simulate(on.graph, on.latency)
    return simulate(on.graph, made, on.latency, on.contention).makespan_us


def line(rows: Sequence[Row]) -> str:
    """A line of text with the makespans of one graph's contestants over greedy's makespan."""
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


def over_greedy(rows: Rows) -> dict[str, list[tuple[float, str]]]:
    """Makespan over greedy's makespan on each graph, with the graph's name, by contestant."""
    found: dict[str, list[tuple[float, str]]] = {}
    for (graph, device, contestant), row in rows.items():
        ratio = row.makespan_us / rows[graph, device, "greedy"].makespan_us
        found.setdefault(contestant, []).append((ratio, f"{graph} {device}"))
    return found


def summary(rows: Rows) -> int:
    """Print the mean and the worst ratio of each contestant to greedy.

    Returns
    -------
    1 if the makespan of IOS with beams was above greedy's on any graph, else 0.
    """
    above = 0
    for contestant, ratios in over_greedy(rows).items():
        if contestant == "greedy":
            continue
        worst, where = max(ratios)
        mean = math.exp(sum(math.log(ratio) for ratio, _ in ratios) / len(ratios))
        print(
            f"{contestant}: {len(ratios)} graphs, {mean:.3f} of greedy, worst {worst:.3f}, {where}"
        )
        # Only IOS with beam search must not be slower than greedy. IOS without beam search may be
        # slower. LIOS may be slower too, because its schedules have streams and not stages.
        if contestant != "lios" and not contestant.endswith("cut by start"):
            above += worst > 1 + _ROUNDING
    if above:
        print("IOS was above greedy", file=sys.stderr)
    return int(above > 0)


if __name__ == "__main__":
    sys.exit(main())
