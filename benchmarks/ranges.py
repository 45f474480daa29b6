"""Runs networks at random sizes of their open dimensions: `python -m benchmarks.ranges FOLDER`.

`python -m benchmarks.open_export FOLDER` writes the networks. For each network a `Session` is made
with the ranges of all open dimensions. Then random sizes are drawn within the ranges, and the
network runs at each size in three engines: the `Session`, onnxruntime and OpenVINO. The last two
run any size. Each engine has a process of its own. At each size the engines take turns, each after
a rest.

For each network the script prints four results. The first is the largest error against onnxruntime,
as a fraction of the largest number of an output. The second is the seconds to make the session. The
third is the seconds of the first run at a size, which compiles if the session cannot pad the
inputs. The last is the time of later runs, divided by the time of onnxruntime and by the time of
OpenVINO.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from .markdown import table
from .options import add_json
from .zoo import relative_error

Sizes = Mapping[str, int]

_REST_S = 0.3
"""Seconds of rest before each turn."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of networks with open dimensions")
    parser.add_argument("networks", nargs="*", metavar="NAME", help="which (default: all)")
    parser.add_argument("--sizes", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=5, help="runs in a turn (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sizes (default: %(default)s)")
    add_json(parser)
    arguments = parser.parse_args()
    names = arguments.networks or sorted(path.stem for path in arguments.folder.glob("*.json"))
    rows = []
    for name in names:
        rows.append(_measured(arguments.folder / name, arguments))
        print(json.dumps(rows[-1]), flush=True)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(_HEADER, [_cells(row) for row in rows]))
    return 0 if all(row["error"] <= _ALLOWED for row in rows) else 1


_ALLOWED = 1e-4
_HEADER = [
    "network", "sizes", "error", "session s", "first run s, median", "largest", "over onnxruntime",
    "over OpenVINO",
]  # fmt: skip


def _cells(row: Mapping[str, Any]) -> list[str]:
    over = [row["over"].get(peer) for peer in ("onnxruntime", "OpenVINO")]
    return [
        row["network"],
        str(row["sizes"]),
        f"{row['error']:.1e}",
        f"{row['session_s']:.1f}",
        f"{row['first_s']:.3f}",
        f"{row['largest_first_s']:.2f}",
        *("" if ratio is None else f"{ratio:.2f}" for ratio in over),
    ]


def _measured(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    told = json.loads(path.with_suffix(".json").read_text())
    rng = random.Random(f"{path.name} {arguments.seed}")
    sizes = [_drawn(told, rng) for _ in range(arguments.sizes)]
    engines = {name: _Process(name, path, told) for name in _ENGINES}
    session_s = engines["here"].prepare_s
    for name in [name for name, engine in engines.items() if engine.prepare_s is None]:
        print(f"{path.name}: {name} is left out: {engines.pop(name).missing}", flush=True)
    errors, firsts = [], []
    logs: dict[str, list[float]] = {name: [] for name in engines if name != "here"}
    for each in sizes:
        turns = list(engines)
        rng.shuffle(turns)
        found = {}
        for name in turns:
            time.sleep(_REST_S)
            found[name] = engines[name].run(each, arguments.runs)
        ours, theirs = found["here"], found["onnxruntime"]
        errors.append(_difference(ours["outputs"], theirs["outputs"]))
        firsts.append(ours["first_s"])
        for name, of_peer in logs.items():
            of_peer.append(float(np.log(ours["median_s"] / found[name]["median_s"])))
    for engine in engines.values():
        engine.close()
    return {
        "network": path.name,
        "sizes": len(sizes),
        "seed": arguments.seed,
        "error": max(errors),
        "session_s": session_s,
        "first_s": statistics.median(firsts),
        "largest_first_s": max(firsts),
        "over": {name: float(np.exp(np.mean(of_peer))) for name, of_peer in logs.items()},
        "worst_over": {name: float(np.exp(max(of_peer))) for name, of_peer in logs.items()},
    }


def _drawn(told: Mapping[str, Any], rng: random.Random) -> dict[str, int]:
    found = {}
    for dimension, (low, high) in told["ranges"].items():
        step = told["multiples"].get(dimension, 1)
        found[dimension] = rng.randrange(-(-low // step) * step, high + 1, step)
    return found


def _feed(told: Mapping[str, Any], sizes: Sizes) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([*sizes.values()])
    feed = {}
    for name, (shape, lowest, below) in told["inputs"].items():
        shape = [sizes[size] if isinstance(size, str) else size for size in shape]
        if below is None:
            feed[name] = rng.standard_normal(shape).astype(np.float32)
        else:
            feed[name] = rng.integers(lowest, below, shape)
    return feed


def _difference(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """The relative error of all outputs; infinite if a shape differs."""
    if any(mine.shape != wanted.shape for mine, wanted in zip(ours, theirs, strict=True)):
        return float("inf")
    return relative_error(ours, theirs)


class _Process:
    """An engine in a process of its own.

    Attributes
    ----------
    prepare_s: the seconds that the engine needed to load the network; None if it is missing.
    missing: why the engine cannot run; None if it can.
    """

    def __init__(self, name: str, path: Path, told: Mapping[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, path, told))
        self._process.start()
        self.prepare_s, self.missing = self._ours.recv()

    def run(self, sizes: Sizes, runs: int) -> dict[str, Any]:
        self._ours.send((sizes, runs))
        answer = self._ours.recv()
        if isinstance(answer, str):
            raise SystemExit(f"{self._process.name} failed at {dict(sizes)}: {answer}")
        return dict(answer)

    def close(self) -> None:
        self._ours.send(None)
        self._process.join()


def _serve(parent: Connection, name: str, path: Path, told: Mapping[str, Any]) -> None:
    """Load a network in an engine, and run it at the sizes that come through the pipe."""
    began = time.perf_counter()
    try:
        run = _ENGINES[name](path.with_suffix(".onnx"), told)
    except ImportError as error:
        parent.send((None, str(error)))
        return
    parent.send((time.perf_counter() - began, ""))
    while (order := parent.recv()) is not None:
        sizes, runs = order
        feed = _feed(told, sizes)
        times = []
        try:
            for _ in range(runs + 1):
                began = time.perf_counter()
                outputs = run(feed)
                times.append(time.perf_counter() - began)
        except Exception as error:  # The parent reports the failure and the sizes.
            parent.send(repr(error))
            return
        median_s = statistics.median(times[1:] or times)
        parent.send({"outputs": outputs, "first_s": times[0], "median_s": median_s})


def _here(path: Path, told: Mapping[str, Any]) -> Any:
    from tvm_interop import Session

    session = Session(path, shapes={n: tuple(ends) for n, ends in told["ranges"].items()})
    return lambda feed: session.run(None, feed)


def _onnxruntime(path: Path, _: Mapping[str, Any]) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, feed)


def _openvino(path: Path, _: Mapping[str, Any]) -> Any:
    import openvino

    core = openvino.Core()
    wanted = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    model = core.compile_model(path, "CPU", wanted)
    return lambda feed: [np.array(array) for array in model(feed).to_tuple()]


_ENGINES = {"here": _here, "onnxruntime": _onnxruntime, "OpenVINO": _openvino}


if __name__ == "__main__":
    sys.exit(main())
