"""One process that tries inputs. `__main__` starts it, and sees how it ends."""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
from pathlib import Path

import hypothesis

from .inputs import STRATEGIES
from .remade import remade
from .targets import TARGETS

_STRATEGIES = {**STRATEGIES, "remade": remade}
CPU_SECONDS = 30
"""An input that computes for longer than this, in seconds, counts as a hang and is stopped."""
_WALL_SECONDS = 300
"""An input that takes longer than this, in seconds, also counts as a hang.

The limit is long, because the machine may be busy.
"""
_MORE_MEMORY = 6 * 2**30


def main() -> None:
    """Try the requested number of inputs of a kind, or the input in a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=TARGETS)
    parser.add_argument("--inputs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--current", type=Path, help="file for the input that is being tried")
    parser.add_argument("--replay", type=Path)
    given = parser.parse_args()
    os.environ["TVM_INTEROP_LATENCY_DB"] = str(Path(f"{given.current or given.replay}.db"))
    if given.replay is not None:
        print("taken" if TARGETS[given.kind](given.replay.read_bytes()) else "refused")
        return
    _limit_memory()
    print(json.dumps(try_inputs(given.kind, given.inputs, given.seed, given.current)))


def try_inputs(kind: str, inputs: int, seed: int, current: Path) -> dict[str, int]:
    """Return how many inputs were tried, and how many were accepted."""
    counts = {"tried": 0, "taken": 0}

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(_STRATEGIES[kind]())
    def try_one(data: bytes) -> None:
        current.write_bytes(data)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.alarm(_WALL_SECONDS)
        counts["tried"] += 1
        counts["taken"] += TARGETS[kind](data)

    try_one()
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    return counts


def _limit_memory() -> None:
    """Limit the memory of this process. An input that needs more then raises a MemoryError."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MORE_MEMORY, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
