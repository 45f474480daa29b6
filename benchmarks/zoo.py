"""Exported networks beside onnxruntime and OpenVINO. `python -m benchmarks.zoo FOLDER`.

The folder holds what an exporter wrote: `NAME.onnx`, and beside it `NAME.npz` with the inputs in
the order of the graph's. Each network is compiled, checked against onnxruntime's numbers and timed
beside it, in turns. onnxruntime takes part twice: how far it is from itself is the noise.

Compiling takes far longer than measuring. What is compiled is kept in the folder `--artifacts` as
`NAME.tar`, and taken from there where it is; `--compile-only` stops after that. `--before FOLDER`
lets artifacts that were compiled earlier take part too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import onnx

import tvm_interop
from tvm_interop import GraphModule, TVMInteropError

from . import harness, machine_state
from .peers import Feed, OnnxRuntime, OpenVino, Peer, Runner, read_in_place, thread_choices

OURS, BEFORE = "ours", "ours, before"
ONNXRUNTIME = "onnxruntime, sequential"
OPENVINO = "OpenVINO, float32"


@dataclass
class Row:
    """One network.

    Attributes
    ----------
    refused: why it could not be compiled; then all else is empty.
    error: largest difference to onnxruntime's outputs over the largest absolute value of each.
    compile_s: seconds to compile it; None where an artifact was there already.
    median_us: of each contestant, microseconds.
    ratios: our time over each contestant's.
    noise: onnxruntime's time over its own.
    settings: of each contestant that has any.
    """

    network: str
    refused: str | None = None
    error: float | None = None
    compile_s: float | None = None
    median_us: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    noise: float | None = None
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """An exported network.

    Attributes
    ----------
    path: of the ONNX file.
    """

    path: Path

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    def model(self) -> onnx.ModelProto:
        """The network itself."""
        return onnx.load(self.path)

    def feed(self, model: onnx.ModelProto) -> Feed:
        """The inputs that were exported with it, by name."""
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
            print(row.network, row.refused or f"{row.compile_s or 0:.1f} s", flush=True)
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
            found = {"machine": machine.as_dict(), "rows": [asdict(row) for row in rows]}
            arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    print(table(rows))
    print(means(rows))
    return 0


def find(folder: Path, names: Sequence[str]) -> list[Network]:
    """The networks of `folder`, all or those named."""
    paths = [folder / f"{name}.onnx" for name in names] or sorted(folder.glob("*.onnx"))
    missing = [path for path in paths if not path.with_suffix(".npz").exists()]
    if missing or not paths:
        told = ", ".join(f"`{path.with_suffix('.npz')}`" for path in missing) or f"in `{folder}`"
        raise SystemExit(f"there are no inputs {told}: export a network there first")
    return [Network(path) for path in paths]


def relative_error(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """The largest difference over the largest absolute value wanted, of the worst output."""
    return max(
        float(np.abs(np.float64(a) - b).max() / max(np.abs(np.float64(b)).max(), 1e-30))
        for a, b in zip(got, wanted, strict=True)
    )


def table(rows: Sequence[Row]) -> str:
    """In Markdown; a ratio above 1 is time that we take longer."""
    others = list(dict.fromkeys(name for row in rows for name in row.ratios))
    lines = [
        f"| | ours ms | {' | '.join(f'over {name}' for name in others)} | noise | error |",
        f"|---{'|--:' * (len(others) + 3)}|",
    ]
    for row in rows:
        if row.refused is not None:
            lines.append(f"| {row.network} | refused: {row.refused} |")
            continue
        ratios = [f"{row.ratios[name]:.2f}" if name in row.ratios else "" for name in others]
        lines.append(
            f"| {row.network} | {row.median_us[OURS] / 1e3:.2f} | {' | '.join(ratios)} "
            f"| {row.noise:.2f} | {row.error:.0e} |"
        )
    return "\n".join(lines)


def means(rows: Sequence[Row]) -> str:
    """The geometric mean of our time over each other's."""
    by_other: dict[str, list[float]] = {}
    for row in rows:
        for name, ratio in row.ratios.items():
            by_other.setdefault(name, []).append(ratio)
    return "\n".join(
        f"over {name}, geometric mean of {len(ratios)}: {np.exp(np.log(ratios).mean()):.3f}"
        for name, ratios in by_other.items()
    )


def _ready(network: Network, arguments: argparse.Namespace) -> Row:
    """Have an artifact of the network, compiled now if need be."""
    row = Row(network.name)
    path = _artifact_path(network, arguments.artifacts)
    if path.exists():
        return row
    began = time.perf_counter()
    try:
        tvm_interop.compile(str(network.path), scheduler=arguments.scheduler, out=path)
    except TVMInteropError as error:
        row.refused = str(error)
    row.compile_s = time.perf_counter() - began
    return row


def _artifact_path(network: Network, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{network.name}.tar"


def _measure(network: Network, row: Row, arguments: argparse.Namespace) -> None:
    model = network.model()
    feed = network.feed(model)
    runners = _runners(network, model, feed, row, arguments)
    row.error = relative_error(runners[OURS](), runners[ONNXRUNTIME]())
    times = harness.measure(runners, ONNXRUNTIME, arguments.rounds)
    found = harness.summarise(times, ONNXRUNTIME)
    row.noise = found[ONNXRUNTIME + harness.AGAIN].ratio
    row.median_us = {name: summary.median_us for name, summary in found.items()}
    row.ratios = {
        name: row.median_us[OURS] / row.median_us[name] for name in runners if name != OURS
    }


def _runners(
    network: Network, model: onnx.ModelProto, feed: Feed, row: Row, arguments: argparse.Namespace
) -> Mapping[str, Runner]:
    runners = {OURS: _our_runner(network, feed, arguments.artifacts)}
    if arguments.before is not None and _artifact_path(network, arguments.before).exists():
        runners[BEFORE] = _our_runner(network, feed, arguments.before)
    peers: list[Peer] = [
        OnnxRuntime(parallel=False, threads=thread_choices()),
        OpenVino(float32=True),
        OpenVino(float32=False),
    ]
    for peer in peers:
        why = peer.missing()
        if why is None:
            runners[peer.name] = peer.prepare(model, feed)
            row.settings[peer.name] = peer.setting
        else:
            print(f"{peer.name} does not take part: {why}", file=sys.stderr)
    return runners


def _our_runner(network: Network, feed: Feed, folder: Path) -> Runner:
    module = GraphModule(tvm_interop.load(_artifact_path(network, folder)))
    return read_in_place(module, feed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of NAME.onnx and NAME.npz")
    parser.add_argument("networks", nargs="*", metavar="NAME", help="which (default: all)")
    parser.add_argument("--scheduler", default="auto", help="ours (default: %(default)s)")
    parser.add_argument("--artifacts", type=Path, default=Path("zoo_artifacts"))
    parser.add_argument("--before", type=Path, help="artifacts that were compiled earlier")
    parser.add_argument("--compile-only", action="store_true", help="measure nothing")
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="write what was found there")
    parser.add_argument("--force", action="store_true", help="measure on a busy machine too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
