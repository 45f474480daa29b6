"""How often each of some stages is run, and in which rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Measure = Callable[[Sequence[int], int], Sequence[Sequence[float]] | npt.NDArray[np.float64]]
"""Runs the stages of these indices against each other in so many rounds: seconds of each."""

_STAGE_BUDGET_S = 0.025
"""A stage is run until about this much time went into it, within the limits below; half of it goes
into untimed runs."""
REPEATS = (5, 10, 20, 30)
"""How often a stage may be run. Few numbers to choose from, so that many stages share a round."""


def run_repeatedly(measure: Measure, count: int) -> list[list[float]]:
    """Run `count` stages against each other, each as often as it deserves; seconds of each run.

    All run `REPEATS[0]` times. By the median of those each goes on until its own time is spent: one
    that takes long leaves no fewer runs to the others, and one that was held up once is not taken
    for slow.
    """
    runs = [list(times) for times in measure(range(count), REPEATS[0])]
    wanted = [repeats_for(float(np.median(times))) for times in runs]
    for done, repeats in pairwise(REPEATS):
        going_on = [i for i in range(count) if wanted[i] >= repeats]
        if going_on:
            more = measure(going_on, repeats - done)
            for i, times in zip(going_on, more, strict=True):
                runs[i] += list(times)
    return runs


def repeats_for(median_s: float) -> int:
    """How often to run a stage that takes `median_s` seconds."""
    affordable = _STAGE_BUDGET_S / 2 / max(median_s, 1e-9)
    return next((repeats for repeats in REPEATS if repeats >= affordable), REPEATS[-1])
