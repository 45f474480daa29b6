"""Times artifacts against each other, in a process that does nothing else.

`compiler.new_processes` starts processes that run this module. They import neither TVM nor a
scheduler, so they run an artifact like a user's process. The module does not use
`measure_interleaved`, because that needs tvm-ffi, whose import takes longer than all measurements.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Sequence

import numpy as np

from ..artifact.artifact import load
from .graph_module import GraphModule

_FEWEST_ROUNDS, _MOST_ROUNDS = 2, 200


def time_files(paths: Sequence[str], seconds: float, seed: int) -> list[list[float]]:
    """Time the artifacts `paths` against each other, in rounds.

    Each timed round runs every instance once, in a new random order. One untimed round comes first.

    Parameters
    ----------
    paths: files of artifacts with equal inputs. Each entry gets its own instance; a file that is
        named twice is loaded once. The inputs are zeros.
    seconds: about how long the rounds may take. There are at least 2 rounds and at most 200.

    Returns
    -------
    For each round, the times of the instances in microseconds, in the order of `paths`.
    """
    # The parent process has just written the files, so they have no signatures to check.
    artifacts = {path: load(path, trusted_keys=()).at_home() for path in paths}
    modules = [GraphModule(artifacts[path]) for path in paths]
    draw = np.random.default_rng(seed)
    with warnings.catch_warnings():
        # Leave out the warning of `GraphModule` that no inputs were set and that they are zeros.
        warnings.simplefilter("ignore", RuntimeWarning)
        _round(modules, draw)
    first_us = _round(modules, draw)
    rounds = int(seconds * 1e6 / max(sum(first_us), 1.0))
    more = min(max(rounds, _FEWEST_ROUNDS), _MOST_ROUNDS) - 1
    return [first_us, *(_round(modules, draw) for _ in range(more))]


def _round(modules: Sequence[GraphModule], draw: np.random.Generator) -> list[float]:
    times_us = [0.0] * len(modules)
    for i in draw.permutation(len(modules)):
        started = time.perf_counter()
        modules[i].run()
        times_us[i] = (time.perf_counter() - started) * 1e6
    return times_us


def main() -> None:
    """Print a line once all modules are imported. Then read the arguments of `time_files` from the
    standard input, and print its result."""
    print("started", flush=True)
    print(json.dumps(time_files(**json.load(sys.stdin))))
