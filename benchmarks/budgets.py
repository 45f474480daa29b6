"""Measures by how much a `time_budget` for compiling makes artifacts slower.

Each built-in network is compiled twice without a budget, and once with each budget. Each
compilation has its own process and its own empty cache folder, which also holds the latency
database. Then the artifacts of a network run in turns in one process, in random order. The two
artifacts without a budget show by how much the times of equal compilations differ.

Run it as ``python -m benchmarks.budgets FOLDER [NETWORK ...]``. The artifacts are kept in the
folder. An artifact that is already there is not compiled again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tvm_interop
from tvm_interop import models

from .bench import random_feed
from .harness import measure, rounds_for

BUDGETS = ("0", "5", "15", "30", "again", "none")
"""The budgets in seconds. `none` and `again` are the two compilations without a budget."""
_NETWORKS = tuple(name for name in models.list() if name != "nasnet_a")
_SECONDS = 8.0
"""How long the artifacts of a network run in turns, in all."""


def compile_one(network: str, budget: str, path: Path) -> None:
    """Compile a network within a budget, save it, and print the seconds that it took."""
    options = {} if budget in ("none", "again") else {"time_budget": float(budget)}
    model = models.build(network)
    began = time.monotonic()
    artifact = tvm_interop.compile(model, **options)
    seconds = time.monotonic() - began
    artifact.save(path)
    print(json.dumps({"s": seconds, "not_tried": len(artifact.manifest.not_tried)}))


def compile_all(network: str, folder: Path) -> None:
    """Compile a network within each budget, each time in a new process with an empty cache."""
    for budget in BUDGETS:
        path = folder / f"{network}-{budget}.tar"
        if path.exists():
            continue
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.budgets", "--one", network, budget, str(path)],
                env={**os.environ, "XDG_CACHE_HOME": cache},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        said = json.loads(done.stdout.splitlines()[-1])
        print(f"{network}, {budget}: {said['s']:.1f} s, left out: {said['not_tried']}")


def ratios(network: str, folder: Path) -> list[float]:
    """The time of each artifact of a network divided by the time of the artifact without a
    budget."""
    feed = random_feed(models.build(network))
    runs: dict[str, Callable[[], object]] = {}
    for budget in BUDGETS:
        module = tvm_interop.GraphModule(tvm_interop.load(folder / f"{network}-{budget}.tar"))
        module.set_input(**feed)
        runs[budget] = module.run
    # Each turn takes the median of several runs, because one run of a small network takes only
    # microseconds.
    rounds = rounds_for([*runs.values()], _SECONDS)
    times_us = measure(runs, "none", rounds, in_a_row=5)
    quartiles = {budget: float(np.quantile(times_us[budget], 0.25)) for budget in BUDGETS}
    return [quartiles[budget] / quartiles["none"] for budget in BUDGETS]


def main() -> None:
    """Compile the networks, run them, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--one", nargs=3, metavar=("NETWORK", "BUDGET", "PATH"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("networks", nargs="*", default=_NETWORKS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        network, budget, path = arguments.one
        compile_one(network, budget, Path(path))
        return
    if arguments.folder is None:
        parser.error("name the folder for the artifacts")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for network in arguments.networks:
        compile_all(network, arguments.folder)
    print("| | " + " | ".join(BUDGETS) + " |")
    print("|---" + "|--:" * len(BUDGETS) + "|")
    rows = []
    for network in arguments.networks:
        rows.append(ratios(network, arguments.folder))
        print(f"| {network} | " + " | ".join(f"{ratio:.3f}" for ratio in rows[-1]) + " |")
    mean = np.exp(np.log(rows).mean(axis=0))
    print("| geometric mean | " + " | ".join(f"{ratio:.3f}" for ratio in mean) + " |")
    worst = np.max(rows, axis=0)
    print("| worst | " + " | ".join(f"{ratio:.3f}" for ratio in worst) + " |")


if __name__ == "__main__":
    main()
