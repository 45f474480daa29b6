"""Random prices in place of measured ones, to find tests whose verdict hangs on a clock.

What a compiler chooses depends on what it measured, and so on whatever else the machine did. A test
must hold for each of these choices, or say by prices of its own which it is about. `pytest
--random-prices SEED` times nothing: every stage and every schedule runs, and then gets a time that
was drawn. Whatever fails then would fail on some machine, on some day.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_FEWEST_US, _MOST_US = 1.0, 1000.0


def random_clock(seed: int, run: Callable[[Any], None]) -> Callable[..., list[list[float]]]:
    """In the place of `measure_interleaved`, by which all latencies on a CPU are measured.

    Each executor gets a typical time, spread evenly over orders of magnitude, and its runs lie
    around it as on a busy machine.

    Parameters
    ----------
    run: runs an executor once, as it would be run to be timed, so that its errors are found.
    """
    rng = np.random.default_rng(seed)

    def measure_interleaved(
        executors: Sequence[Any],
        warmup: int,
        repeats: int,
        seed: int = 0,
        primed: bool = False,
    ) -> list[list[float]]:
        for executor in executors:
            run(executor)
        ends = np.log([_FEWEST_US, _MOST_US])
        typical_us = np.exp(rng.uniform(*ends, size=(len(executors), 1)))
        noise = np.exp(np.abs(rng.standard_normal((len(executors), repeats))) * 0.3)
        times: list[list[float]] = (typical_us * noise * 1e-6).tolist()
        return times

    return measure_interleaved
