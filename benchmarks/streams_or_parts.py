"""Compares two ways to use two cores: `python -m benchmarks.streams_or_parts`.

Two convolutions of the same size run either side by side, with one stream each, or one after the
other, with each divided over both streams. Which way is faster depends on how well an operator can
be divided. The comparison is made for many sizes, first on a quiet machine, then while another
process keeps one core busy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_interop._native import cpu as _runtime
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.scheduling import Schedule

from . import machine_state
from .options import add_force

CHANNELS = (16, 32, 64, 128, 256)
SIZES = (7, 14, 28, 56)
_ROUNDS = 41


@dataclass(frozen=True)
class Row:
    """The results of two 3x3 convolutions of one size.

    Attributes
    ----------
    channels, size: number of input and output channels, and height and width of the image.
    side_by_side_us, one_after_another_us: median microseconds of each way.
    ratio: time side by side over time one after the other; below 1, side by side is faster.
    noise: ratio of the times of two measurements of the convolutions one after the other.
    """

    channels: int
    size: int
    side_by_side_us: float
    one_after_another_us: float
    ratio: float
    noise: float


def main() -> int:
    arguments = _arguments()
    machine = machine_state.observe_quiet(arguments.force)
    if machine is None:
        return 2
    found = {}
    for setting, load in (("quiet", None), ("one core taken", 0)):
        print(f"\n{setting}: time side by side over time one after the other")
        print("| channels | " + " | ".join(f"{size}x{size}" for size in SIZES) + " |")
        print("|--:|" + "--:|" * len(SIZES))
        with _one_core_taken(load):
            rows = [[compare(channels, size) for size in SIZES] for channels in CHANNELS]
        for channels, row in zip(CHANNELS, rows, strict=True):
            cells = (f"{r.ratio:.2f} ({r.side_by_side_us:.0f} us)" for r in row)
            print(f"| {channels} | " + " | ".join(cells) + " |", flush=True)
        found[setting] = [r for row in rows for r in row]
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        data = {name: [asdict(row) for row in rows] for name, rows in found.items()}
        path = arguments.out / "streams_or_parts.json"
        path.write_text(json.dumps({"machine": machine.as_dict(), **data}, indent=1) + "\n")
        _draw(found, machine.cpu, arguments.out / "streams_or_parts.svg")
    return 0


def compare(channels: int, size: int) -> Row:
    """Measure two convolutions of one size, side by side and one after the other."""
    compilation = Compilation(_two_convolutions(channels, size), CompileOptions(streams=2))
    program = compilation.program
    wholes = list(dict.fromkeys(op.whole or op.name for op in program.operators))
    stream_of = {whole: s for s, whole in enumerate(wholes)}
    streams: list[list[int]] = [[], []]
    for i, op in enumerate(program.operators):
        streams[stream_of[op.whole or op.name] % 2].append(i)
    at_once = Schedule("side by side", compilation.graph.names, streams=streams)
    in_turn = compilation.sequential()
    instances = [compilation.instance(compilation.plan(s)) for s in (at_once, in_turn, in_turn)]
    executors = [instance.executor for instance in instances]
    times = _runtime.measure_interleaved(executors, 3, _ROUNDS)
    first, second, again = (float(np.median(t)) * 1e6 for t in times)
    return Row(channels, size, first, second, first / second, again / second)


def _two_convolutions(channels: int, size: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    shape = [1, channels, size, size]
    nodes, weights, outputs = [], [], []
    for name in ("a", "b"):
        weight = rng.standard_normal((channels, channels, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"{name}_w"))
        nodes.append(
            helper.make_node("Conv", ["x", f"{name}_w"], [name], name=name, pads=[1, 1, 1, 1])
        )
        outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    graph = helper.make_graph(
        nodes,
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        outputs,
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@contextmanager
def _one_core_taken(core: int | None) -> Iterator[None]:
    """Keep a core busy with another process for as long as the context lasts.

    Parameters
    ----------
    core: number of the core; None to keep none busy.
    """
    if core is None:
        yield
        return
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as hog:
        try:
            yield
        finally:
            hog.kill()


def _draw(found: dict[str, list[Row]], cpu: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(found), figsize=(10, 4), layout="constrained", sharey=True
    )
    for panel, (setting, rows) in zip(axes, found.items(), strict=True):
        for extent, marker in zip(SIZES, "osD^", strict=True):
            mine = [row for row in rows if row.size == extent]
            panel.plot(
                [row.channels for row in mine],
                [row.ratio for row in mine],
                marker=marker,
                label=f"{extent}x{extent}",
            )
        panel.axhline(1, color="#888888", linewidth=0.8)
        panel.set_xscale("log", base=2)
        panel.set_xlabel("channels of two 3x3 convolutions")
        panel.set_title(setting, fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("side by side / one after the other")
    axes[0].legend(title="image", fontsize=8)
    figure.suptitle(f"Below 1, side by side is faster; {cpu.split(' [')[0]}", fontsize=10)
    figure.savefig(path)
    pyplot.close(figure)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=None, help="folder for JSON and the plot")
    add_force(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
