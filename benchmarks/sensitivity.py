"""Tests whether the harness detects a small slowdown, and reports none between equal programs.

A network runs against itself, and against two copies that wait busily after each run. The first
copy waits for 0% of the median time, and the second copy for 5% of it. The harness must find a
difference for the second copy only.

    python -m benchmarks.sensitivity [--planted 5] [--rounds 101]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

import tvm_interop
from tvm_interop.models import light

from . import harness, machine_state
from .bench import random_feed
from .options import add_rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--planted", type=float, default=5.0, help="slowdown of the slower copy, in per cent"
    )
    add_rounds(parser, 101)
    parser.add_argument("--trials", type=int, default=3)
    arguments = parser.parse_args()
    state = machine_state.observe()
    print(f"{state.cpu}, {state.busy:.0%} busy with other programs")
    run = runner()
    median_s = float(np.median([timed(run) for _ in range(15)]))
    planted = f"{arguments.planted:g}% slower"
    failures = 0
    for trial in range(arguments.trials):
        contestants = {
            "plain": run,
            "0% slower": slowed(run, 0.0),
            planted: slowed(run, median_s * arguments.planted / 100),
        }
        times = harness.measure(contestants, "plain", arguments.rounds, seed=trial)
        found = harness.summarise(times, "plain", seed=trial)
        noise = found["plain" + harness.AGAIN]
        for name in ("0% slower", planted):
            sees = found[name].differs(noise)
            failures += sees != (name == planted)
            low, high = found[name].ratio_interval
            print(
                f"trial {trial}: {name:12s} ratio {found[name].ratio:.4f} "
                f"({low:.4f} to {high:.4f}), noise {noise.ratio:.4f}: "
                f"{'a difference' if sees else 'no difference'}"
            )
    print("as it should be" if not failures else f"WRONG {failures} times")
    return min(failures, 1)


def runner() -> Callable[[], object]:
    """A function that runs SqueezeNet once, sequentially."""
    model = light.build("squeezenet")
    module = tvm_interop.GraphModule(tvm_interop.compile(model, scheduler="sequential"))
    module.set_input(**random_feed(model))
    return module.run


def slowed(run: Callable[[], object], extra_s: float) -> Callable[[], object]:
    """A function that calls `run` and then waits busily for `extra_s` seconds."""

    def slower() -> None:
        run()
        until = time.perf_counter() + extra_s
        while time.perf_counter() < until:
            pass

    return slower


def timed(run: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
