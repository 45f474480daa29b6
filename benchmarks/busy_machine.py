"""Measures how fast models run while other programs compute, with our runtime and with others.

    python -m benchmarks.busy_machine prepare FOLDER [NETWORK ...]
    python -m benchmarks.busy_machine measure FOLDER [--busy 0 1 2 bursts] [--json PATH]
                                                     [--before PYTHON]

`prepare` writes each model and three artifacts of it into FOLDER: scheduled, sequential, and for
one thread. `measure` runs each contestant, an artifact or another runtime, in a process of its own.
The contestants take turns, in a new random order each round.

While a contestant runs, 0, 1 or 2 other programs compute without pause. With `bursts`, two other
programs compute for 20 ms and rest for 30 ms, again and again. Each contestant runs rested (after
10 ms without work) and back to back. The output has the median and the 95th percentile of each
contestant's times in milliseconds, and their ratios to onnxruntime's.

`--before` is the Python interpreter of an environment with an earlier release of this package.
Artifacts that this release made are in FOLDER/before. They take turns with the other contestants,
under names such as `before: scheduled`.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.options import add_json

NETWORKS = ("light:squeezenet", "light:shufflenet", "light:inception_v1", "resnet50")
OURS = ("scheduled", "sequential", "one thread")
BEFORE = "before: "
PEERS = ("onnxruntime", "openvino f32", "openvino")
REST_S = 0.01
RUNS_A_TURN = {"rested": 3, "back to back": 8}
LOADS = {
    "busy": "while True: pass",
    "bursts": (
        "import time\n"
        "while True:\n"
        "    end = time.perf_counter() + 0.02\n"
        "    while time.perf_counter() < end: pass\n"
        "    time.sleep(0.03)"
    ),
}
Runner = Callable[[], Any]


def prepare(folder: Path, networks: list[str]) -> None:
    """Compile every network for each contestant in `OURS`, and save model and artifacts."""
    import onnx

    from tvm_interop.compiler.compilation import Compilation
    from tvm_interop.compiler.options import CompileOptions
    from tvm_interop.models.source import read_onnx

    folder.mkdir(parents=True, exist_ok=True)
    for network in networks:
        name = Path(network.replace("light:", "")).stem
        model = read_onnx(network)
        onnx.save(model, str(folder / f"{name}.onnx"))
        whole = Compilation(model, CompileOptions())
        alone = Compilation(model, CompileOptions(streams=1, threads=1, parts=1))
        schedule = whole.schedule("auto")
        for of_ours, artifact in (
            ("scheduled", whole.artifact(schedule)),
            ("sequential", whole.artifact(whole.sequential())),
            ("one thread", alone.artifact(alone.sequential())),
        ):
            artifact.save(folder / f"{name}.{of_ours.replace(' ', '_')}.tar")
        print(f"prepared {name}", flush=True)


def feed_of(model_path: Path) -> dict[str, np.ndarray]:
    """The inputs of a model by name.

    The values come from the `.npz` file beside the model, which has them in the model's order.
    Without such a file they are random float32 numbers.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model_path), providers=["CPUExecutionProvider"])
    inputs = session.get_inputs()
    stored = model_path.with_suffix(".npz")
    if stored.exists():
        with np.load(stored) as arrays:
            return dict(zip([i.name for i in inputs], arrays.values(), strict=True))
    rng = np.random.default_rng(0)
    return {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in inputs}


def our_runner(artifact: Path, feed: dict[str, np.ndarray]) -> Runner:
    """A function that runs our artifact once. The inputs are set beforehand."""
    import tvm_interop

    module = tvm_interop.GraphModule(tvm_interop.load(artifact))
    names, _ = module.get_input_info()
    module.set_input(**{name: feed[name] for name in names})
    return module.run


def onnxruntime_runner(model: Path, feed: dict[str, np.ndarray]) -> Runner:
    """A function that runs the model once in onnxruntime, with its default options."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feed)


def openvino_runner(model: Path, feed: dict[str, np.ndarray], precision: str | None) -> Runner:
    """A function that runs the model once in OpenVINO.

    Parameters
    ----------
    precision: type in which OpenVINO computes, such as "f32"; None lets OpenVINO choose.
    """
    import openvino

    config = {"PERFORMANCE_HINT": "LATENCY"}
    if precision is not None:
        config["INFERENCE_PRECISION_HINT"] = precision
    compiled = openvino.Core().compile_model(str(model), "CPU", config)
    request = compiled.create_infer_request()
    inputs = {i.get_any_name(): feed[i.get_any_name()] for i in compiled.inputs}
    return lambda: request.infer(inputs)


def serve(folder: Path, name: str, contestant: str) -> None:
    """Answer requests from standard input until it ends: the main loop of a contestant's process.

    A request is a JSON list of two numbers: the number of runs, and the seconds of rest before each
    run. The answer is a JSON list of the seconds that each run took.
    """
    model = folder / f"{name}.onnx"
    feed = feed_of(model)
    if contestant.startswith(BEFORE):
        folder, contestant = folder / "before", contestant.removeprefix(BEFORE)
    if contestant in OURS:
        run = our_runner(folder / f"{name}.{contestant.replace(' ', '_')}.tar", feed)
    elif contestant == "onnxruntime":
        run = onnxruntime_runner(model, feed)
    else:
        run = openvino_runner(model, feed, "f32" if contestant == "openvino f32" else None)
    for _ in range(10):
        run()
    print("ready", flush=True)
    for request in sys.stdin:
        runs, rest_s = json.loads(request)
        seconds = []
        if rest_s == 0:
            run()
        for _ in range(runs):
            if rest_s > 0:
                time.sleep(rest_s)
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
        print(json.dumps(seconds), flush=True)


class Contestant:
    """The process of one contestant. `python` is the interpreter that runs it."""

    def __init__(self, folder: Path, network: str, name: str, python: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, __file__, "serve", str(folder), network, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        """Return once the process has loaded its model and run it."""
        self._answer("ready")

    def seconds(self, runs: int, rest_s: float) -> list[float]:
        """Run the model `runs` times, and return the seconds that each run took.

        Before each run, the process rests for `rest_s` seconds.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([runs, rest_s]) + "\n")
        self._process.stdin.flush()
        seconds: list[float] = json.loads(self._answer(None))
        return seconds

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _answer(self, expected: str | None) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # Libraries may print lines of their own: skip these.
            if (line.strip() == expected) if expected else line.startswith("["):
                return line
        raise RuntimeError(f"{self.name} ended: {self._process.wait()}")


@contextmanager
def load(kind: str) -> Iterator[None]:
    """Run other programs that compute for as long as the context lasts.

    Parameters
    ----------
    kind: how many programs compute without pause, such as "1"; or "bursts", two programs that
        compute in bursts.
    """
    program, count = (LOADS["bursts"], 2) if kind == "bursts" else (LOADS["busy"], int(kind))
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(count)]
    time.sleep(0.3 if processes else 0.0)
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(
    folder: Path, network: str, contestants: dict[str, str], loads: list[str], runs: int
) -> list[dict[str, Any]]:
    """Measure one network: a row for each load, rhythm (rested, back to back) and contestant.

    Parameters
    ----------
    contestants: the Python interpreter of each contestant, by name.
    loads: the other programs that run during the measurements. Each entry is a `kind` for `load`.
    runs: least number of timed runs for each row of the result.
    """
    running = [Contestant(folder, network, *each) for each in contestants.items()]
    rows = []
    try:
        for contestant in running:
            contestant.wait_until_ready()
        for kind in loads:
            with load(kind):
                for rhythm, each in RUNS_A_TURN.items():
                    rest_s = REST_S if rhythm == "rested" else 0.0
                    seconds: dict[str, list[float]] = {name: [] for name in contestants}
                    order = list(running)
                    drawn = random.Random(0)
                    for _ in range(-(-runs // each)):
                        drawn.shuffle(order)
                        for contestant in order:
                            seconds[contestant.name] += contestant.seconds(each, rest_s)
                    rows += [
                        {
                            "network": network,
                            "busy": kind,
                            "rhythm": rhythm,
                            "contestant": name,
                            "runs": len(found),
                            "median_ms": float(np.median(found)) * 1e3,
                            "p95_ms": float(np.percentile(found, 95)) * 1e3,
                        }
                        for name, found in seconds.items()
                    ]
    finally:
        for contestant in running:
            contestant.end()
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text, one line each. If onnxruntime took part, a line also has ratios to it."""
    base = {
        (row["network"], row["busy"], row["rhythm"]): row
        for row in rows
        if row["contestant"] == "onnxruntime"
    }
    lines = []
    for row in rows:
        line = "{network:22s}{busy:>7s} {rhythm:13s}{contestant:22s}".format(**row)
        line += f"{row['median_ms']:9.2f} ms ({row['p95_ms']:.2f})"
        peer = base.get((row["network"], row["busy"], row["rhythm"]))
        if peer is not None:
            line += f"{row['median_ms'] / peer['median_ms']:9.2f} x"
            line += f" ({row['p95_ms'] / peer['p95_ms']:.2f})"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["prepare", "measure", "serve"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--busy", nargs="+", default=["0", "1", "2", "bursts"])
    parser.add_argument("--contestants", nargs="+", default=[*OURS, *PEERS])
    parser.add_argument(
        "--before", metavar="PYTHON", help="Python interpreter of an earlier release"
    )
    parser.add_argument(
        "--before-name", default="", help="name of the earlier release in the report"
    )
    parser.add_argument("--runs", type=int, default=60)
    add_json(parser)
    arguments = parser.parse_args()
    if arguments.what == "prepare":
        prepare(arguments.folder, arguments.networks or list(NETWORKS))
    elif arguments.what == "serve":
        serve(arguments.folder, *arguments.networks)
    else:
        from tvm_interop.machine.cpu_name import cpu_model

        contestants = dict.fromkeys(arguments.contestants, sys.executable)
        if arguments.before is not None:
            ours = [name for name in arguments.contestants if name in OURS]
            contestants |= {BEFORE + name: arguments.before for name in ours}
        networks = arguments.networks or sorted(p.stem for p in arguments.folder.glob("*.onnx"))
        rows = []
        for network in networks:
            found = measure(arguments.folder, network, contestants, arguments.busy, arguments.runs)
            print(table(found), flush=True)
            rows += found
            # Write after each network, so that the results so far outlive an interruption.
            if arguments.json is not None:
                record = {
                    "machine": cpu_model(),
                    "runs": arguments.runs,
                    "before": arguments.before_name,
                    "rows": rows,
                }
                arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
