"""Measures how much a second core gains.

    python -m benchmarks.two_cores FOLDER --artifacts ARTIFACTS

The artifacts come from `benchmarks.zoo`, which must run first. Each network runs
sequentially with one thread and with two, in turns. With two threads, each operator is divided over
both cores. onnxruntime and OpenVINO run in the same way. The efficiency is the time on one core
over twice the time on two. 1 is perfect, and 0.5 means that the second core gains nothing.

Then our operators are profiled on one core and on two, and the output names the operators with the
largest losses. In the run on two cores, the time of both cores is charged to the running operators.
If two operators run, each is charged half of it. If one operator runs, it is charged all of it. The
loss of an operator is the core time charged to it on two cores, less its time on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

import tvm_interop
from tvm_interop import GraphModule
from tvm_interop.execution.operator_profile import OpProfile
from tvm_interop.program.part_names import whole_name

from . import harness, machine_state
from .options import add_force, add_json, add_rounds
from .peers import OnnxRuntime, OpenVino, Runner, read_in_place
from .zoo import Network, find

OURS, ONNXRUNTIME, OPENVINO = "ours", "onnxruntime", "OpenVINO, float32"
CORES = (1, 2)
SPOILERS = 5
_PROFILES = 60


@dataclass
class Spoiler:
    """An operator with a large loss: on two cores it takes much more core time than on one core.

    Attributes
    ----------
    one_core_us: microseconds of the operator on one core.
    lost_us: microseconds of core time that the operator takes on two cores, less `one_core_us`.
    share: the loss as a share of the core time of all operators in a run on two cores.
    """

    operator: str
    one_core_us: float
    lost_us: float
    share: float


@dataclass
class Row:
    """The results of one network.

    Attributes
    ----------
    median_us: median microseconds on one core and on two, by contestant.
    efficiency: time on one core over twice the time on two cores, by contestant.
    """

    network: str
    median_us: dict[str, tuple[float, float]]
    efficiency: dict[str, float]
    spoilers: list[Spoiler]


def main() -> int:
    arguments = _arguments()
    machine = machine_state.observe_quiet(arguments.force)
    if machine is None:
        return 2
    if machine.cores < max(CORES):
        raise SystemExit(f"this machine has {machine.cores} core(s), and {max(CORES)} are needed")
    rows = []
    for network in find(arguments.folder, arguments.networks):
        rows.append(_measured(network, arguments))
        print(_line(rows[-1]), file=sys.stderr, flush=True)
    print(table(rows))
    if arguments.json is not None:
        found = {"machine": machine.as_dict(), "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def charged(profile: Iterable[OpProfile], cores: int) -> dict[str, float]:
    """Microseconds of core time that are charged to each whole operator, from the profile of a run.

    While n operators run, each is charged `cores / n` times the time that passes. The names of
    parts, such as `NAME[1/2]`, tell to which operator they belong.
    """
    rows = list(profile)
    times = sorted({at for row in rows for at in (row.start_us, row.end_us)})
    begins, ends = defaultdict(list), defaultdict(list)
    for i, row in enumerate(rows):
        if row.end_us > row.start_us:
            begins[row.start_us].append(i)
            ends[row.end_us].append(i)
    found: dict[str, float] = defaultdict(float)
    running: set[int] = set()
    for at, until in pairwise(times):
        running.update(begins[at])
        running.difference_update(ends[at])
        for i in running:
            found[whole_name(rows[i].name)] += cores * (until - at) / len(running)
    return dict(found)


def spoilers(
    on_one: dict[str, float], on_two: dict[str, float], most: int = SPOILERS
) -> list[Spoiler]:
    """The operators that take most core time in addition on two cores, compared with one core.

    The largest loss comes first. Operators that take no additional core time are left out.

    Parameters
    ----------
    on_one, on_two: result of `charged` for one core and for two.
    most: largest number of operators.
    """
    total_us = sum(on_two.values())
    found = [
        Spoiler(name, one_us, us - one_us, (us - one_us) / total_us)
        for name, us in on_two.items()
        if us > (one_us := on_one.get(name, 0.0))
    ]
    return sorted(found, key=lambda s: -s.lost_us)[:most]


def table(rows: Iterable[Row]) -> str:
    """The results as a Markdown table."""
    head = f"| | {OURS} | {ONNXRUNTIME} | {OPENVINO} | our largest losses: share of both cores |"
    return "\n".join([head, "|---|--:|--:|--:|---|", *map(_line, rows)])


def _line(row: Row) -> str:
    cells = [f"{row.efficiency[name]:.2f}" for name in (OURS, ONNXRUNTIME, OPENVINO)]
    spoil = ", ".join(f"{s.operator} {s.share:.1%}" for s in row.spoilers if s.share >= 0.01)
    return f"| {row.network} | {' | '.join(cells)} | {spoil} |"


def _measured(network: Network, arguments: argparse.Namespace) -> Row:
    model = network.model()
    feed = network.feed(model)
    module = GraphModule(tvm_interop.load(arguments.artifacts / f"{network.name}.sequential.tar"))
    run = read_in_place(module, feed)
    runners: dict[str, Runner] = {}
    for cores in CORES:
        runners[f"{OURS} {cores}"] = _with_threads(run, cores)
        runtime = OnnxRuntime(parallel=False, threads=(cores,))
        runners[f"{ONNXRUNTIME} {cores}"] = runtime.prepare(model, feed)
        vino = OpenVino(float32=True, threads=cores)
        runners[f"{OPENVINO} {cores}"] = vino.prepare(model, feed)
    baseline = f"{OURS} {CORES[-1]}"
    times = harness.measure(
        runners, baseline, arguments.rounds, lead_in=arguments.lead_in, in_a_row=5
    )
    names = (OURS, ONNXRUNTIME, OPENVINO)
    median_us = {
        name: (float(np.median(times[f"{name} 1"])), float(np.median(times[f"{name} 2"])))
        for name in names
    }
    lost = spoilers(*(_charged_in_median(module, run, cores) for cores in CORES))
    tvm_interop.set_num_threads(CORES[-1])
    efficiency = {name: one / (2 * two) for name, (one, two) in median_us.items()}
    return Row(network.name, median_us, efficiency, lost)


def _with_threads(run: Callable[[], list[np.ndarray]], threads: int) -> Runner:
    def runner() -> list[np.ndarray]:
        if tvm_interop.num_threads() != threads:
            tvm_interop.set_num_threads(threads)
        return run()

    return runner


def _charged_in_median(module: GraphModule, run: Runner, threads: int) -> dict[str, float]:
    tvm_interop.set_num_threads(threads)
    time.sleep(harness.REST_S)
    for _ in range(5):
        run()
    found = [charged(module.profile(), threads) for _ in range(_PROFILES)]
    # An operator that took no time in a run is missing from the profile of that run. Count it as 0.
    names = dict.fromkeys(name for each in found for name in each)
    return {name: float(np.median([each.get(name, 0.0) for each in found])) for name in names}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of NAME.onnx and NAME.npz")
    parser.add_argument("networks", nargs="*", metavar="NAME", help="which (default: all)")
    parser.add_argument("--artifacts", type=Path, required=True, help="NAME.sequential.tar")
    add_rounds(parser, 9)
    parser.add_argument("--lead-in", type=int, default=3, help="default: %(default)s")
    add_json(parser)
    add_force(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
