"""Measures how much faster schedules of `ios-both` are if each operator may use all cores.

    python -m benchmarks.all_cores FOLDER [NETWORK ...] [--json PATH]

The folder holds networks as ONNX files, such as the files that `benchmarks.zoo_export` writes. Each
network is compiled twice in a process of its own. In the first compilation operators are divided
into parts for all cores, as `tvm_interop.compile` divides them. In the second no operator is
divided (`CompileOptions(parts=1)`), so that each operator of a schedule with several streams runs
on one core. `ios-both` makes a schedule in each compilation. The speed check runs each schedule
against sequential execution of its own compilation. If the schedule is faster, the artifact of the
compilation contains it. If not, the artifact runs sequentially.

Then the artifacts of both compilations run in interleaved rounds: each round runs every contestant
once. Sequential execution with divided operators takes part twice, which shows the noise. A time is
the median of the runs that other programs did not delay (`latency.estimate.undisturbed`). The ratio
of two contestants comes from pairs of runs of the same round, with the 90% interval of a
signed-rank test.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from tvm_interop import Schedule, TVMInteropError
from tvm_interop.compiler.api import new_compilation
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.merging import merged_stages
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.compiler.speed_check import interleaved_rounds
from tvm_interop.latency.estimate import Estimate
from tvm_interop.scheduling.paired_rounds import paired_ratio

from . import machine_state
from .options import add_force, add_json, add_rounds

ALL, ONE, SEQUENTIAL = "all cores", "one core", "sequential"
AGAIN = "sequential, again"


@dataclass
class Row:
    """The results of one network.

    Attributes
    ----------
    refused: why the network could not be compiled. All other attributes are then empty.
    merged: number of merged operators in the schedule of `ios-both`, for each compilation.
    prices_us: the makespan of `ios-both` in each compilation, and of sequential execution with
        divided operators, in microseconds. A makespan is the sum of the latencies of the stages,
        which were measured once more after the search.
    ships: whether the artifact contains the schedule of `ios-both`, by compilation.
    checks: the result of each speed check, by compilation: the time of the schedule over the time
        of sequential execution in the same compilation. There is no entry if `ios-both` chose
        sequential execution.
    us: microseconds of the artifact of each compilation, and of sequential execution twice, in
        undisturbed runs.
    ratios: the time of the artifact with divided operators, over the time of each other contestant,
        from pairs of runs. The entry `sequential, again` has the ratio of sequential execution to
        itself.
    intervals: 90% interval of each ratio.
    """

    network: str
    refused: str | None = None
    merged: dict[str, int] = field(default_factory=dict)
    prices_us: dict[str, float] = field(default_factory=dict)
    ships: dict[str, bool] = field(default_factory=dict)
    checks: dict[str, float] = field(default_factory=dict)
    us: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)


def main() -> int:
    arguments = _arguments()
    machine = machine_state.observe_quiet(arguments.force)
    if machine is None:
        return 2
    rows = []
    paths = [arguments.folder / f"{name}.onnx" for name in arguments.networks]
    for path in paths or sorted(arguments.folder.glob("*.onnx")):
        # Each network gets a new process, which gives back all of its memory when it ends.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            row = pool.submit(compare, path, arguments.latency_db, arguments.rounds).result()
        rows.append(row)
        print(f"{row.network}: {row.refused or _summary(row)}", flush=True)
        if arguments.json is not None:
            found = {"machine": machine.as_dict(), "rows": [asdict(row) for row in rows]}
            arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def compare(path: Path, latency_db: Path, rounds: int) -> Row:
    """Compile one network with and without divided operators, and compare the two artifacts.

    Parameters
    ----------
    latency_db: file of measured latencies.
    rounds: number of rounds in which the contestants run.
    """
    row = Row(path.stem)
    try:
        homes = {
            ALL: new_compilation(str(path), CompileOptions(latency_db=latency_db), {}),
            ONE: new_compilation(str(path), CompileOptions(latency_db=latency_db, parts=1), {}),
        }
        shipped = {name: _shipped(row, name, home) for name, home in homes.items()}
        _run(row, homes, shipped, rounds)
    except TVMInteropError as error:
        row.refused = str(error)
    return row


def _shipped(row: Row, name: str, home: Compilation) -> Schedule:
    """The schedule of `ios-both`, or sequential execution if the schedule is not faster."""
    made, in_turn = home.schedule("ios-both"), home.sequential()
    assert made.makespan is not None
    row.merged[name] = len(merged_stages(made))
    row.prices_us[name] = made.makespan
    if name == ALL:
        # The search of `ios-both` ends with a second measurement of its stages. So the stages of
        # sequential execution need a second measurement too, or the two makespans would not
        # compare.
        in_turn.measure_again(home.graph, home.measured_latency)
        row.prices_us[SEQUENTIAL] = in_turn.simulate(home.graph, home.measured_latency)
    differs = row.merged[name] > 0 or made.streams != in_turn.streams
    row.ships[name] = False
    if differs:
        checked = home.check_speed(made)
        assert checked.paired_ratio is not None
        row.checks[name] = checked.paired_ratio
        row.ships[name] = checked.shipped == "scheduled"
    return made if row.ships[name] else in_turn


def _run(
    row: Row, homes: dict[str, Compilation], shipped: dict[str, Schedule], rounds: int
) -> None:
    in_turn = homes[ALL].sequential()
    contestants = {
        ALL: homes[ALL].realized(shipped[ALL]),
        ONE: homes[ONE].realized(shipped[ONE]),
        SEQUENTIAL: (homes[ALL], in_turn),
        AGAIN: (homes[ALL], in_turn),
    }
    instances = [home.instance(home.plan(made)) for home, made in contestants.values()]
    executors = [instance.executor for instance in instances]
    all_us = np.array(list(islice(interleaved_rounds(executors, homes[ALL].backend.clock), rounds)))
    us = dict(zip(contestants, all_us.T, strict=True))
    row.us = {name: Estimate.of_runs(found * 1e-6).latency_us for name, found in us.items()}
    for name, other in ((ALL, ONE), (ALL, SEQUENTIAL), (AGAIN, SEQUENTIAL)):
        found = paired_ratio(us[name], us[other])
        key = AGAIN if name == AGAIN else other
        row.ratios[key], row.intervals[key] = found.ratio, found.interval


def _summary(row: Row) -> str:
    prices = ", ".join(f"{name} {us:.0f} us" for name, us in row.prices_us.items())
    ships = ", ".join(name for name, is_scheduled in row.ships.items() if is_scheduled) or "none"
    times = ", ".join(f"{name} {us:.0f} us" for name, us in row.us.items())
    ratios = ", ".join(f"{name} {ratio:.3f}" for name, ratio in row.ratios.items())
    return (
        f"makespans: {prices}; artifacts with a schedule: {ships}; times: {times}; "
        f"ratios of times: {ratios}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of NAME.onnx")
    parser.add_argument("networks", nargs="*", metavar="NAME", help="which (default: all)")
    parser.add_argument("--latency-db", type=Path, default=Path("all_cores_latencies.db"))
    add_rounds(parser, 150)
    add_json(parser)
    add_force(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
