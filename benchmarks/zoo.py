"""Compares exported networks with onnxruntime, OpenVINO and PyTorch.

    python -m benchmarks.zoo FOLDER

The folder holds the files that `benchmarks.zoo_export` or any other exporter wrote for each
network: `NAME.onnx`, and `NAME.npz` with its inputs in the order of the graph. A file `NAME.pt2` is
optional. PyTorch takes part only in networks with this file.

Each network is compiled in a process of its own, once as `compile` does it by default and once for
sequential execution of the same kernels. Then each contestant starts in a process of its own, and
its outputs are compared with onnxruntime's. All contestants run in turns, as in `tvm-interop perf`.
Each turn begins with a rest of half a second, in which the threads of the contestant before go to
sleep. A ratio is the geometric mean over rounds. onnxruntime takes part twice, and its ratio to
itself is the noise.

Compiling takes far longer than measuring. So the folder `--artifacts` keeps `NAME.tar`,
`NAME.sequential.tar` and `NAME.json` (time and memory of compiling), and later runs use them.
`--compile-only` stops after compiling. `--before FOLDER` adds artifacts that were compiled earlier
as contestants.

With `--bf16`, our artifact of `--precision bf16` (`NAME.bf16.tar`) takes part too. A second table
then has its time over the time of each contestant. A third table has the error of each contestant
relative to onnxruntime in float32.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tvm_interop
from tvm_interop import TVMInteropError
from tvm_interop.compiler.api import new_compilation
from tvm_interop.compiler.new_processes import check_twice, to_be_confirmed
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.compiler.speed_check import speed_check_by_auto
from tvm_interop.perf import contest
from tvm_interop.perf.contestant import Contestant, Load, peak_mib
from tvm_interop.perf.engines import Artifact

from . import harness, machine_state
from .options import add_force, add_json, add_rounds
from .peers import Feed, OnnxRuntime, OpenVino, Peer, Torch, thread_choices

OURS, SEQUENTIAL, BEFORE = "ours", "ours, sequential", "ours, before"
BF16, BF16_KIND = "ours, bf16", ".bf16"
ONNXRUNTIME = "onnxruntime, sequential"
OPENVINO = "OpenVINO, float32"
AGAIN = ONNXRUNTIME + harness.AGAIN


@dataclass
class Row:
    """The results of one network.

    Attributes
    ----------
    refused: why the network could not be compiled. All other attributes are then empty.
    error: largest difference of our outputs to onnxruntime's, over the largest absolute value of
        the output.
    compile_s: seconds to compile the network, with the search for a schedule.
    compile_peak_mib: peak memory of the process that compiled it, in MiB.
    scheduled: whether the artifact runs a schedule other than sequential execution.
    median_us: median microseconds of each contestant.
    ratios: our time over the time of each contestant.
    intervals: 95% confidence interval of each ratio; empty if there was one round.
    noise: ratio of the times of two measurements of onnxruntime.
    settings: settings of each contestant that has any, such as its number of threads.
    errors: relative error of each contestant's outputs, computed like `error`.
    bf16_ratios: our time in bf16 over the time of each contestant.
    bf16_compile_s: seconds to compile the network in bf16 and to measure the error.
    """

    network: str
    refused: str | None = None
    error: float | None = None
    compile_s: float | None = None
    compile_peak_mib: float | None = None
    scheduled: bool | None = None
    median_us: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    noise: float | None = None
    settings: dict[str, str] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    bf16_ratios: dict[str, float] = field(default_factory=dict)
    bf16_compile_s: float | None = None


@dataclass(frozen=True)
class Network:
    """An exported network.

    Attributes
    ----------
    path: path of the ONNX file.
    """

    path: Path

    @property
    def name(self) -> str:
        """The name of the file without its ending."""
        return self.path.stem

    def model(self) -> onnx.ModelProto:
        """The network as an ONNX model."""
        return onnx.load(self.path)

    def feed(self, model: onnx.ModelProto) -> Feed:
        """The inputs that were exported with the network, by name."""
        weights = {w.name for w in model.graph.initializer}
        names = [v.name for v in model.graph.input if v.name not in weights]
        with np.load(self.path.with_suffix(".npz")) as arrays:
            return dict(zip(names, arrays.values(), strict=True))


def main() -> int:
    arguments = _arguments()
    networks = find(arguments.folder, arguments.networks)
    if arguments.compile_only:
        for network in networks:
            row = _ready(network, arguments)
            print(row.network, row.refused or f"{row.compile_s:.1f} s", flush=True)
        return 0
    machine = machine_state.observe_quiet(arguments.force)
    if machine is None:
        return 2
    rows = []
    for network in networks:
        row = _ready(network, arguments)
        if row.refused is None:
            _measure(network, row, arguments)
        rows.append(row)
        print(table([row]).splitlines()[-1], file=sys.stderr, flush=True)
        if arguments.json is not None:
            found = {
                "machine": machine.as_dict(),
                "openvino_inputs": "set once",  # See `perf/engines.py`.
                "rows": [asdict(row) for row in rows],
            }
            arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    print(table(rows))
    print(means([ratios_of_schedules(row) for row in rows]))
    if arguments.bf16:
        print(f"\nTime of {BF16} over the time of each other contestant\n")
        print(columns(rows, lambda row: row.bf16_ratios, "{:.2f}"))
        print(means([row.bf16_ratios for row in rows]))
        print("\nerrors to onnxruntime's float32\n")
        print(columns(rows, lambda row: row.errors, "{:.0e}"))
    if arguments.chart is not None:
        chart(rows, arguments.chart)
    wrong = [row.network for row in rows if is_wrong(row.errors)]
    if wrong:
        print(f"WRONG outputs, unlike other runtimes': {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def is_wrong(errors: Mapping[str, float]) -> bool:
    """Whether our outputs in float32 are far from onnxruntime's, and OpenVINO's are not.

    Parameters
    ----------
    errors: relative error of each contestant to onnxruntime.
    """
    ours = max((errors[name] for name in (OURS, SEQUENTIAL) if name in errors), default=0.0)
    return ours > _FAR * max(errors.get(OPENVINO, 0.0), 1e-5)


_FAR = 20


def find(folder: Path, names: Sequence[str]) -> list[Network]:
    """The networks in `folder` with these names, or all of them if `names` is empty.

    Raises
    ------
    SystemExit: there is no network, or a network has no inputs.
    """
    paths = [folder / f"{name}.onnx" for name in names] or sorted(folder.glob("*.onnx"))
    missing = [path for path in paths if not path.with_suffix(".npz").exists()]
    if missing or not paths:
        told = ", ".join(f"`{path.with_suffix('.npz')}`" for path in missing) or f"in `{folder}`"
        raise SystemExit(f"there are no inputs {told}: export a network there first")
    return [Network(path) for path in paths]


def relative_error(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """The largest relative error of all outputs.

    The error of an output is its largest difference from `wanted`, over the largest absolute value
    of `wanted`.
    """
    return max(
        float(np.abs(np.float64(a) - b).max() / max(np.abs(np.float64(b)).max(), 1e-30))
        for a, b in zip(got, wanted, strict=True)
    )


def table(rows: Sequence[Row]) -> str:
    """The results as a Markdown table. A ratio above 1 means that we are slower.

    The column `ships` says which artifacts run sequentially. For these, `over ours, sequential`
    compares a program with itself.
    """
    others = list(dict.fromkeys(name for row in rows for name in row.ratios))
    lines = [
        f"| | ships | ours ms | {' | '.join(f'over {name}' for name in others)} "
        "| noise | error | compile s | MiB |",
        f"|---{'|--:' * (len(others) + 6)}|",
    ]
    for row in rows:
        if row.refused is not None:
            lines.append(f"| {row.network} | refused: {row.refused} |")
            continue
        ratios = [f"{row.ratios[name]:.2f}" if name in row.ratios else "" for name in others]
        lines.append(
            f"| {row.network} | {'a schedule' if row.scheduled else 'sequential'} "
            f"| {row.median_us[OURS] / 1e3:.2f} | {' | '.join(ratios)} "
            f"| {row.noise:.2f} | {row.error:.0e} | {row.compile_s:.1f} "
            f"| {row.compile_peak_mib:.0f} |"
        )
    return "\n".join(lines)


def columns(rows: Sequence[Row], of: Callable[[Row], Mapping[str, float]], form: str) -> str:
    """A Markdown table with a column for each contestant.

    Parameters
    ----------
    of: function that returns the numbers of a row, by contestant.
    form: format of a number, for `str.format`.
    """
    names = list(dict.fromkeys(name for row in rows for name in of(row)))
    lines = [f"| | {' | '.join(names)} |", f"|---{'|--:' * len(names)}|"]
    for row in rows:
        found = of(row)
        cells = [form.format(found[name]) if name in found else "" for name in names]
        lines.append(f"| {row.network} | {' | '.join(cells)} |")
    return "\n".join(lines)


def means(ratios: Sequence[Mapping[str, float]]) -> str:
    """Text with the geometric mean of our time over the time of each contestant.

    Parameters
    ----------
    ratios: the ratios of each network, by contestant.
    """
    by_other: dict[str, list[float]] = {}
    for of_network in ratios:
        for name, ratio in of_network.items():
            by_other.setdefault(name, []).append(ratio)
    return "\n".join(
        f"over {name}, geometric mean of {len(ratios)}: {np.exp(np.log(ratios).mean()):.3f}"
        for name, ratios in by_other.items()
    )


def ratios_of_schedules(row: Row) -> dict[str, float]:
    """The ratios of a network.

    If our artifact runs sequentially, the ratio to sequential execution is left out, because it
    would compare a program with itself.
    """
    return {name: v for name, v in row.ratios.items() if name != SEQUENTIAL or row.scheduled}


def chart(rows: Sequence[Row], path: Path) -> None:
    """Draw bars of our time over the time of each contestant, with a row for each network."""
    from matplotlib.figure import Figure

    shown = [row for row in rows if row.refused is None]
    ratios = [ratios_of_schedules(row) for row in shown]
    others = [
        name for name in dict.fromkeys(n for found in ratios for n in found) if name != BEFORE
    ]
    figure = Figure(figsize=(8, 0.16 * len(shown) * len(others) + 1.5), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(others)
    for k, name in enumerate(others):
        places = [i + (k - (len(others) - 1) / 2) * height for i in range(len(shown))]
        axes.barh(places, [found.get(name, 0) for found in ratios], height, label=name)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(shown)), [row.network for row in shown])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("our time over theirs: left of 1 we are faster")
    axes.legend(fontsize="small")
    figure.savefig(path)


def _ready(network: Network, arguments: argparse.Namespace) -> Row:
    """Compile the artifacts of the network if they are missing, and return its row."""
    folder = arguments.artifacts
    folder.mkdir(parents=True, exist_ok=True)
    row = Row(network.name)
    found = _told(network, folder, _compile, arguments.scheduler, "")
    for name, value in found.items():
        setattr(row, name, value)
    if arguments.bf16 and row.refused is None:
        in_bf16 = _told(network, folder, _compile_in_bf16, arguments.scheduler, BF16_KIND)
        if "refused" in in_bf16:
            raise SystemExit(f"{network.name} in bf16: {in_bf16['refused']}")
        row.bf16_compile_s = in_bf16["compile_s"]
    return row


def _told(
    network: Network,
    folder: Path,
    compiler: Callable[[Network, Path, str], dict[str, Any]],
    scheduler: str,
    kind: str,
) -> dict[str, Any]:
    """Return the time and memory of compiling one artifact.

    Time and memory are read from a file. If the file is missing, the artifact is compiled first,
    and the file is written.

    Parameters
    ----------
    compiler: compiles the artifact and returns the figures.
    kind: part of the file names that tells the artifacts of a network apart, such as `.bf16`.
    """
    told = folder / f"{network.name}{kind}.json"
    if told.exists():
        found: dict[str, Any] = json.loads(told.read_text())
        return found
    # Use a new process, so that its peak memory is that of compiling this network alone.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(compiler, network, folder, scheduler).result()
    if "refused" not in found:
        told.write_text(json.dumps(found) + "\n")
    return found


def _compile_in_bf16(network: Network, folder: Path, scheduler: str) -> dict[str, Any]:
    """Write the artifact in bf16. Its error is measured on the network's own inputs."""
    began = time.perf_counter()
    try:
        artifact = tvm_interop.compile(
            str(network.path),
            scheduler=scheduler,
            out=_artifact_path(network, folder, BF16_KIND),
            precision="bf16",
            inputs=network.feed(network.model()),
        )
    except TVMInteropError as error:
        return {"refused": str(error)}
    precision = artifact.manifest.precision
    return {
        "compile_s": time.perf_counter() - began,
        "error": None if precision is None else precision.error,
    }


def _compile(network: Network, folder: Path, scheduler: str) -> dict[str, Any]:
    """Write the scheduled and the sequential artifact. Return time and memory of compiling."""
    began = time.perf_counter()
    try:
        compilation = new_compilation(str(network.path), CompileOptions(), {})
        schedule = compilation.schedule(scheduler, **to_be_confirmed(compilation, scheduler))
        checked = check_twice(compilation, schedule, speed_check_by_auto(schedule))
        artifact = compilation.artifact(schedule, checked)
    except TVMInteropError as error:
        return {"refused": str(error)}
    artifact.save(_artifact_path(network, folder))
    took = time.perf_counter() - began
    in_turn = compilation.artifact(compilation.sequential())
    in_turn.save(_artifact_path(network, folder, ".sequential"))
    return {
        "compile_s": took,
        "compile_peak_mib": peak_mib(),
        "scheduled": checked.shipped == "scheduled",
    }


def _artifact_path(network: Network, folder: Path, kind: str = "") -> Path:
    return folder / f"{network.name}{kind}.tar"


def _measure(network: Network, row: Row, arguments: argparse.Namespace) -> None:
    model = network.model()
    contestants = _contestants(network, model, arguments)
    timing = contest.Timing(
        warmup_s=arguments.turn, duration_s=arguments.rounds * arguments.turn, turn_s=arguments.turn
    )
    with contest.started(contestants, network.feed(model), Load()) as failed:
        able = [one for one in contestants if one.name not in failed]
        outputs = {one.name: one.outputs() for one in able}
        contest.take_turns(able, timing, failed)
    for name, why in failed.items():
        print(f"{network.name}: {name} does not take part: {why}", file=sys.stderr)
    by_name = {one.name: one for one in contestants if one.name not in failed}
    if not {ONNXRUNTIME, AGAIN} <= by_name.keys():
        raise SystemExit(f"{network.name}: install onnxruntime, to which all times are compared")
    wanted = outputs[ONNXRUNTIME]
    row.errors = {name: relative_error(outputs[name], wanted) for name in by_name if name != AGAIN}
    row.error = row.errors[OURS]
    row.settings = {name: one.setting for name, one in by_name.items() if one.setting}
    row.median_us = {
        name: float(np.median(contest.latencies_of(one))) for name, one in by_name.items()
    }
    row.noise = contest.ratio_of(by_name[AGAIN], by_name[ONNXRUNTIME]).value
    for name, one in by_name.items():
        if name not in (OURS, BF16, AGAIN):
            found = contest.ratio_of(by_name[OURS], one)
            row.ratios[name] = found.value
            if found.interval is not None:
                row.intervals[name] = found.interval
        if BF16 in by_name and name not in (BF16, AGAIN):
            row.bf16_ratios[name] = contest.ratio_of(by_name[BF16], one).value


def _contestants(
    network: Network, model: onnx.ModelProto, arguments: argparse.Namespace
) -> list[Contestant]:
    """The contestants for a network. Our artifact is the first."""
    artifacts = {
        OURS: _artifact_path(network, arguments.artifacts),
        SEQUENTIAL: _artifact_path(network, arguments.artifacts, ".sequential"),
    }
    if arguments.bf16:
        artifacts[BF16] = _artifact_path(network, arguments.artifacts, BF16_KIND)
    if arguments.before is not None and _artifact_path(network, arguments.before).exists():
        artifacts[BEFORE] = _artifact_path(network, arguments.before)
    again = OnnxRuntime(parallel=False)
    again.name = AGAIN
    peers: list[tuple[Peer, Any]] = [
        (OnnxRuntime(parallel=False), network.path),
        (again, network.path),
        (OpenVino(float32=True), network.path),
        (OpenVino(float32=False), network.path),
    ]
    program = network.path.with_suffix(".pt2")
    modes = {"none": (), "eager": (False,), "both": (False, True)}[arguments.torch]
    if program.exists():
        peers += [(Torch(compiled, thread_choices(), program), model) for compiled in modes]
    missing = {peer.name: why for peer, _ in peers if (why := peer.missing()) is not None}
    for name, why in missing.items():
        print(f"{name} does not take part: {why}", file=sys.stderr)
    ours = [Contestant(Artifact(name), str(path)) for name, path in artifacts.items()]
    return ours + [Contestant(peer, given) for peer, given in peers if peer.name not in missing]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of NAME.onnx and NAME.npz")
    parser.add_argument("networks", nargs="*", metavar="NAME", help="which (default: all)")
    parser.add_argument("--scheduler", default="auto", help="ours (default: %(default)s)")
    parser.add_argument("--artifacts", type=Path, default=Path("zoo_artifacts"))
    parser.add_argument("--before", type=Path, help="artifacts that were compiled earlier")
    parser.add_argument("--bf16", action="store_true", help="ours in bf16 takes part too")
    parser.add_argument("--compile-only", action="store_true", help="measure nothing")
    parser.add_argument(
        "--torch",
        choices=("none", "eager", "both"),
        default="both",
        help="PyTorch as it is, and compiled, which takes a minute a network (default: both)",
    )
    parser.add_argument("--chart", type=Path, help="draw the ratios there, as SVG or PNG")
    add_rounds(parser, 15)
    parser.add_argument(
        "--turn", type=float, default=0.2, help="seconds of a turn (default: %(default)s)"
    )
    add_json(parser)
    add_force(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
