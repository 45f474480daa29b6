"""Runs the same artifacts on two releases of this package, and compares their times.

    python -m benchmarks.two_releases OLD_PYTHON ARTIFACT ...

`OLD_PYTHON` is the interpreter of an environment in which the older release is installed. The older
release should have written the artifacts too, because it cannot read newer ones. Three contestants
take turns, each in a process of its own: the new release, the old one, and the old one once more,
which shows the noise. Before each turn they rest for half a second. The inputs are zeros.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import harness, machine_state, two_releases_table
from .options import add_force, add_json, add_rounds

REST_S = 0.5
TURN_S = 0.2
NEW, OLD = "new", "old"
AGAIN = OLD + harness.AGAIN
_WORKER = """
import sys, time, warnings
warnings.simplefilter("ignore")
import tvm_interop
module = tvm_interop.GraphModule(tvm_interop.load(sys.argv[1]))
module.run()
for line in sys.stdin:
    seconds = float(line)
    module.run()
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        began = time.perf_counter()
        module.run()
        times.append(time.perf_counter() - began)
    print(sorted(times)[len(times) // 2], flush=True)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old_python", help="the interpreter that has the older release")
    parser.add_argument("artifacts", type=Path, nargs="+")
    add_rounds(parser, 20)
    add_json(parser)
    add_force(parser)
    arguments = parser.parse_args()
    state = machine_state.observe_quiet(arguments.force)
    if state is None:
        return 2
    rows = []
    for path in arguments.artifacts:
        rows.append(measured(path, arguments.old_python, arguments.rounds))
        print(f"{path.stem}: {rows[-1]['ratio']:.3f}", file=sys.stderr, flush=True)
    print(two_releases_table.rows_table(rows))
    if arguments.json is not None:
        found = {"machine": state.as_dict(), "rounds": arguments.rounds, "rows": rows}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def measured(path: Path, old_python: str, rounds: int) -> dict[str, Any]:
    """The median microseconds of a run on the old release, and the new release's time as a ratio to
    it."""
    programs = {NEW: sys.executable, OLD: old_python, AGAIN: old_python}
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(_worker(python, path)) for name, python in programs.items()
        }
        us: dict[str, list[float]] = {name: [] for name in workers}
        draw = np.random.default_rng(0)
        for _ in range(rounds + 1):
            for name in draw.permutation(list(workers)):
                time.sleep(REST_S)
                us[name].append(_turn(workers[name], path, name))
    # The first turn of each worker only warms it up, so its time is left out.
    times = {name: np.array(found[1:]) for name, found in us.items()}
    compared = harness.summarise(times, OLD)
    return {
        "artifact": path.stem,
        "old_us": compared[OLD].median_us,
        "ratio": compared[NEW].ratio,
        "interval": compared[NEW].ratio_interval,
        "noise": compared[AGAIN].ratio,
    }


@contextlib.contextmanager
def _worker(python: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    # Run outside of the checkout, so that each interpreter imports what is installed in it.
    worker = subprocess.Popen(
        [python, "-c", _WORKER, str(path.resolve())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
    )  # fmt: skip
    try:
        yield worker
    finally:
        worker.kill()
        worker.communicate()


def _turn(worker: subprocess.Popen[str], path: Path, name: str) -> float:
    """The median time of the runs in one turn, in microseconds."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        worker.stdin.write(f"{TURN_S}\n")
        worker.stdin.flush()
    said = worker.stdout.readline()
    if not said:
        raise SystemExit(f"the {name} release cannot run {path}: its process says why above")
    return float(said) * 1e6


if __name__ == "__main__":
    sys.exit(main())
