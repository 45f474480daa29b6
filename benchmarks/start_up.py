"""Measures the time and the memory from the start of a process to a model's first output.

    python -m benchmarks.start_up FOLDER NAME ...

The folder holds `NAME.onnx` and `NAME.tar`, our compiled model. For each network and contestant, a
process starts, loads the model, and runs it on zeros, 100 times by default. The contestants take
turns, each in a process of its own, after half a second of rest. The first round is left out.

Contestants are our library from C, our `GraphModule` from Python, onnxruntime and OpenVINO. They
run outside of the checkout, so that Python imports the installed package and not the checkout. A
contestant that is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tvm_interop._native.runtime_files import runtime_file

from . import machine_state
from .options import add_force, add_json, add_rounds
from .start_up_table import COLUMNS, MAKING, Sample, summary

REST_S = 0.5
_COMMON = """
import sys, time
def memory_kib(name):
    for line in open("/proc/self/status"):
        if line.startswith(name + ":"):
            return int(line.split()[1])
def go(run):
    import json
    at, peak = [], 0
    for i in range(1, int(sys.argv[2]) + 1):
        run()
        if i == 1:
            peak = memory_kib("VmHWM")
        if i in (1, 2, 5, 20):
            at.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
    print(json.dumps({"at_ns": at, "peak_kib": peak, "steady_kib": memory_kib("VmRSS")}))
"""
_PYTHON = {
    "ours, Python": """
import tvm_interop
module = tvm_interop.GraphModule(tvm_interop.load(sys.argv[1] + ".tar"))
go(module.run)
""",
    "onnxruntime": """
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(
    sys.argv[1] + ".onnx", providers=["CPUExecutionProvider"])
types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32,
         "tensor(bool)": np.bool_}
feeds = {i.name: np.zeros(i.shape, types[i.type]) for i in session.get_inputs()}
go(lambda: session.run(None, feeds))
""",
    "OpenVINO": """
import numpy as np, openvino
core = openvino.Core()
model = core.compile_model(
    sys.argv[1] + ".onnx", "CPU",
    {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"})
request = model.create_infer_request()
feeds = [np.zeros(list(i.shape), i.element_type.to_dtype()) for i in model.inputs]
go(lambda: request.infer(feeds))
""",
}


@dataclass
class Row:
    """The samples of one network, by contestant, in the order of the rounds."""

    network: str
    samples: dict[str, list[Sample]] = field(default_factory=dict)


def build_c_contestant(folder: Path) -> list[str]:
    """Compile `start_up.c` against the installed runtime library, and return its command."""
    library = runtime_file("library")
    program = folder / "start_up"
    subprocess.run(
        [
            "cc", "-O2", str(Path(__file__).with_suffix(".c")), "-o", str(program),
            f"-I{runtime_file('header').parent.parent}", str(library),
            f"-Wl,-rpath,{library.parent}",
        ],
        check=True,
    )  # fmt: skip
    return [str(program)]


def sample(command: Sequence[str], environment: dict[str, str] | None = None) -> Sample:
    """Run one process, and measure from just before its start."""
    time.sleep(REST_S)
    began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")
    if done.returncode != 0:
        raise RuntimeError(f"`{command[0]}` failed: {done.stderr.strip()}")
    found = json.loads(done.stdout.splitlines()[-1])
    at = [(ns - began) / 1e6 for ns in found["at_ns"]]
    mib = (found["peak_kib"] / 1024, found["steady_kib"] / 1024)
    made = {
        name: (ns - began) / 1e6 for name, ns in zip(MAKING, found.get("made_ns", ()), strict=False)
    }
    return made | dict(zip(COLUMNS, (*at, *mib), strict=True))


def contestants(folder: Path, native: list[str], runs: int) -> dict[str, Any]:
    """The command of each contestant, as a function of the network's name."""
    found: dict[str, Any] = {
        "ours, C": lambda name: [*native, str(folder / f"{name}.tar"), str(runs)],
    }
    modules = {"onnxruntime": "onnxruntime", "OpenVINO": "openvino"}
    for label, text in _PYTHON.items():
        module = modules.get(label)
        if module is not None:
            there = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True)
            if there.returncode != 0:
                print(f"{label} is not installed, and is left out")
                continue
        found[label] = lambda name, text=text: [
            sys.executable, "-c", _COMMON + text, str(folder / name), str(runs),
        ]  # fmt: skip
    return found


def measure(
    folder: Path, names: Sequence[str], rounds: int, runs: int, native: list[str]
) -> list[Row]:
    """Measure all contestants in turns."""
    rows = []
    commands = contestants(folder, native, runs)
    for name in names:
        row = Row(name, {label: [] for label in commands})
        for i in range(rounds + 1):
            for label, command in commands.items():
                found = sample(command(name))
                if i > 0:
                    row.samples[label].append(found)
        rows.append(row)
        print(summary([asdict(row)]), flush=True)
    return rows


def main() -> int:
    """Measure, print the table and write the samples."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start_up", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    add_rounds(parser, 20)
    parser.add_argument("--runs", type=int, default=100, help="of each process; at least 20")
    add_json(parser, "the samples")
    add_force(parser)
    given = parser.parse_args()
    state = machine_state.observe_quiet(given.force)
    if state is None:
        return 1
    with tempfile.TemporaryDirectory() as folder:
        native = build_c_contestant(Path(folder))
        rows = measure(given.folder.absolute(), given.names, given.rounds, given.runs, native)
    if given.json is not None:
        document = {"machine": state.as_dict(), "rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
