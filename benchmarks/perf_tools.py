"""Compares `tvm-interop perf` with the benchmark tools of other engines.

    python -m benchmarks.perf_tools FOLDER NAME ...

The folder holds `NAME.onnx`, and `NAME.npz` with its inputs in the order of the graph. In each
round, `perf` measures onnxruntime and OpenVINO; then a bare loop calls onnxruntime's `session.run`,
and OpenVINO's `benchmark_app` measures the same model. Each tool runs in a process of its own. A
ratio is the median latency that `perf` measures, divided by the median latency that the bare loop
or `benchmark_app` measures. It is near 1 if `perf` adds no time of its own. The noise of a tool is
its largest median of all rounds, divided by its smallest.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tvm_interop

from .markdown import table
from .options import add_rounds

BARE_LOOP = """
import sys, time
import numpy as np, onnxruntime
model, inputs, threads, seconds = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(threads)
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
feed = dict(np.load(inputs))
times, end = [], time.perf_counter() + 1.0
while time.perf_counter() < end:  # The warm-up.
    session.run(None, feed)
end = time.perf_counter() + float(seconds)
while time.perf_counter() < end:
    begin = time.perf_counter()
    session.run(None, feed)
    times.append(time.perf_counter() - begin)
print(np.median(times) * 1e6)
"""
"""A program that times onnxruntime without any code of ours."""


@dataclass(frozen=True)
class Round:
    """Median latencies of one round, in microseconds.

    Attributes
    ----------
    perf_onnxruntime, perf_openvino: measured by `tvm-interop perf`.
    bare_loop: onnxruntime, measured by `BARE_LOOP`.
    benchmark_app: OpenVINO, measured by its own tool.
    """

    perf_onnxruntime: float
    bare_loop: float
    perf_openvino: float
    benchmark_app: float


def main() -> None:
    """Print a table with a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", metavar="NAME")
    add_rounds(parser, 5)
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of each measurement")
    given = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.names:
            artifact = Path(folder, f"{name}.tar")
            model, inputs = given.folder / f"{name}.onnx", Path(folder, f"{name}.npz")
            plan = tvm_interop.compile(str(model), scheduler="sequential", out=artifact).plan
            arrays = np.load(given.folder / f"{name}.npz").values()
            named = zip((plan.values[v].name for v in plan.inputs), arrays, strict=True)
            np.savez(inputs, **dict(named))
            rounds = [_round(artifact, model, inputs, given.seconds) for _ in range(given.rounds)]
            lines.append((name, *_cells(rounds)))
            print(f"{name}: {rounds}", file=sys.stderr)
    loop, app = "perf over a bare loop of onnxruntime", "perf over benchmark_app"
    headings = ("network", loop, "noise", app, "noise")
    print(table(headings, lines))


def _round(artifact: Path, model: Path, inputs: Path, seconds: float) -> Round:
    asked = ["--inputs", inputs, "--model", model, "--duration", seconds]
    peers = ["--against", "onnxruntime,openvino", "--json"]
    perf = json.loads(_output(["tvm-interop", "perf", artifact, *asked, *peers]))
    found = {one["name"]: one for one in perf["contestants"]}
    runtime = found["onnxruntime, sequential"]
    threads = str(runtime["setting"]).split()[0]
    bare = _output([sys.executable, "-c", BARE_LOOP, model, inputs, threads, seconds])
    hints = ["-hint", "latency", "-api", "sync", "-infer_precision", "f32"]
    app = _output(["benchmark_app", "-m", model, *hints, "-t", max(1, round(seconds))])
    median = re.search(r"Median:\s+([\d.]+) (ms|us)", app)
    if median is None:
        raise SystemExit(f"benchmark_app printed no median latency:\n{app}")
    return Round(
        runtime["percentiles_us"]["p50"],
        float(bare),
        found["OpenVINO, float32"]["percentiles_us"]["p50"],
        float(median[1]) * (1e3 if median[2] == "ms" else 1),
    )


def _output(command: list[object]) -> str:
    """Run a command that is installed beside this Python, and return what it printed."""
    program = str(command[0])
    beside = Path(sys.executable).parent / program
    found = program if Path(program).is_absolute() else shutil.which(beside) or program
    done = subprocess.run([found, *map(str, command[1:])], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"`{program}` failed:\n{done.stderr or done.stdout}")
    return done.stdout


def _cells(rounds: list[Round]) -> tuple[str, ...]:
    """Return the ratios for onnxruntime and for OpenVINO, each with its noise."""
    pairs = (
        [(one.perf_onnxruntime, one.bare_loop) for one in rounds],
        [(one.perf_openvino, one.benchmark_app) for one in rounds],
    )
    cells: list[str] = []
    for pair in pairs:
        logs = np.log(pair)
        ratio = np.exp((logs[:, 0] - logs[:, 1]).mean())
        noise = np.exp((logs.max(axis=0) - logs.min(axis=0)).max())
        cells += [f"{ratio:.3f}", f"{noise:.3f}"]
    return tuple(cells)


if __name__ == "__main__":
    main()
