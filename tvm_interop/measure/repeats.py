"""Decides how often each of several stages is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..latency.estimate import Estimate, undisturbed

Measure = Callable[[Sequence[int], int], Sequence[Sequence[float]] | npt.NDArray[np.float64]]
"""`measure(indices, repeats)` runs the stages of these indices, interleaved, `repeats` times each.
It returns their times in seconds, shape (len(indices), repeats)."""

_STAGE_BUDGET_S = 0.025
"""About how many seconds a stage is run, within the limits of `REPEATS`. Half of that is spent in
untimed runs, one before each timed one."""
REPEATS = (5, 10, 20, 30)
"""How often a stage may be run. There are only a few choices, so that many stages run interleaved
in the same rounds."""
_LONG_S = 0.5
"""A stage that takes longer than this many seconds is run only once. A library's kernel may be a
thousand times slower than other kernels, if it is not made for the operator. Its exact latency does
not matter."""
_ENOUGH = 3
"""A short stage runs again until this many of its runs were not held up, up to `REPEATS[-1]` times
in all."""
_KNOWN_WELL = 0.01
"""A stage needs no further runs if the standard error of its latency is at most this share of the
latency."""
_TO_TELL = REPEATS[1]
"""The standard error counts only if at least this many runs were not held up. The spread of fewer
runs says too little."""


def run_repeatedly(measure: Measure, count: int) -> list[list[float]]:
    """Run `count` stages against each other; returns the seconds of each run of each stage.

    Every stage first runs `REPEATS[0]` times, or once if it takes very long. The median of these
    runs decides how often the stage runs in all (`repeats_for`). Each stage has its own median, so
    one long stage does not reduce the runs of other stages. The median leaves out runs that were
    held up, so a stage that was held up does not count as slow.

    A stage runs more often than `repeats_for` says if nearly all its runs were held up. It runs
    less often if its runs agree: on a quiet machine nearly all stages are known to a percent after
    10 runs. To tell apart two stages whose latencies differ by less than a percent, measure them
    again.
    """
    runs = [list(times) for times in measure(range(count), 1)]
    short = [i for i in range(count) if runs[i][0] <= _LONG_S]
    if short:
        for i, times in zip(short, measure(short, REPEATS[0] - 1), strict=True):
            runs[i] += list(times)
    wanted = [repeats_for(float(np.median(undisturbed(times)))) for times in runs]
    for done, repeats in pairwise(REPEATS):
        going_on = [
            i
            for i in short
            if len(undisturbed(runs[i])) < _ENOUGH
            or (wanted[i] >= repeats and not _is_known_well(runs[i]))
        ]
        if going_on:
            more = measure(going_on, repeats - done)
            for i, times in zip(going_on, more, strict=True):
                runs[i] += list(times)
    return runs


def _is_known_well(seconds: Sequence[float]) -> bool:
    found = Estimate.of_runs(seconds)
    return found.samples >= _TO_TELL and found.error_us <= _KNOWN_WELL * found.latency_us


def repeats_for(median_s: float) -> int:
    """How often to run a stage that takes `median_s` seconds."""
    affordable = _STAGE_BUDGET_S / 2 / max(median_s, 1e-9)
    return next((repeats for repeats in REPEATS if repeats >= affordable), REPEATS[-1])
