"""Decides how often each of several stages is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..latency.estimate import Estimate, quantile, undisturbed

Measure = Callable[[Sequence[int], int], Sequence[Sequence[float]] | npt.NDArray[np.float64]]
"""`measure(indices, repeats)` runs the stages of these indices, interleaved, `repeats` times each.
It returns their times in seconds, shape (len(indices), repeats)."""

REPEATS = (3, 5, 10, 20, 30)
"""The possible numbers of runs of a stage. They are few, so that many stages have the same number
of runs and can run in turns.
"""
_HOPELESS_S = 0.5
"""A stage that takes longer than this many seconds is run only once. Such a stage may have a
library's kernel that is a thousand times slower than other kernels, because it is not made for the
operator. The exact latency of this kernel does not matter."""
_LONG_S = 1e-3
"""A stage that takes longer than this many seconds counts as long. Its runs take much time and vary
little. So half as many runs are enough, if their times differ by half as much.
"""
_ENOUGH = 3
"""A stage runs until this many of its runs were not delayed by other programs. It runs at most
`REPEATS[-1]` times, or `_MOST_OF_LONG` times if it is a long stage.
"""
_MOST_OF_LONG = 10


@dataclass(frozen=True)
class Care:
    """How exactly latencies must be measured.

    Attributes
    ----------
    stage_s: the approximate total time of a stage's runs in seconds, within the limits of
        `REPEATS`. Half of this time is for untimed runs, one before each timed run.
    known_well: a stage needs no further runs if the standard error of its latency is at most this
        fraction of the latency.
    to_tell: the standard error is used only after this many undelayed runs, because fewer runs say
        too little about the spread.
    """

    stage_s: float
    known_well: float
    to_tell: int


QUICK = Care(stage_s=0.01, known_well=0.02, to_tell=5)
"""The exactness for latencies that are compared with very different latencies, or that are measured
again if they matter.
"""
THOROUGH = Care(stage_s=0.025, known_well=0.01, to_tell=10)
"""The exactness for latencies that are compared with latencies that differ by a few percent."""
_SHORT_S = 100e-6
"""A stage that is shorter than this many seconds is always measured as exactly as `THOROUGH` says.
Its runs take little time, and vary more than runs of long stages."""


def run_repeatedly(measure: Measure, count: int, care: Care = THOROUGH) -> list[list[float]]:
    """Run `count` stages in turns, and return the seconds of each run of each stage.

    Every stage first runs `REPEATS[0]` times, or once if it takes very long. The median of its runs
    so far decides how often the stage runs in all (`repeats_for`). Each stage has its own median,
    so one long stage does not reduce the runs of other stages. Runs that other programs delayed are
    not part of the median. So a delay does not make a stage seem slow.

    A stage runs more often than `repeats_for` says if other programs delayed nearly all its runs.
    It runs less often if its runs agree. On a quiet machine nearly all latencies are known to
    within 1% after 10 runs, and to within 2% after 5 runs. Long stages need half as many runs.
    If two latencies differ by less, the stages must be measured again to tell which is faster.
    """
    runs = [list(times) for times in measure(range(count), 1)]
    short = [i for i in range(count) if runs[i][0] <= _HOPELESS_S]
    if short:
        for i, times in zip(short, measure(short, REPEATS[0] - 1), strict=True):
            runs[i] += list(times)
    for done, repeats in pairwise(REPEATS):
        going_on = [i for i in short if len(runs[i]) == done and _goes_on(runs[i], care)]
        if going_on:
            more = measure(going_on, repeats - done)
            for i, times in zip(going_on, more, strict=True):
                runs[i] += list(times)
    return runs


def _goes_on(seconds: Sequence[float], care: Care) -> bool:
    """Whether a stage needs more runs; `seconds` holds the times of its runs so far."""
    counted = undisturbed(seconds)
    median_s = quantile(counted, 0.5)
    if len(counted) < _ENOUGH:
        return median_s < _LONG_S or len(seconds) < _MOST_OF_LONG
    care = _care_for(median_s, care)
    return len(seconds) < repeats_for(median_s, care) and not _is_known_well(seconds, care)


def _care_for(median_s: float, care: Care) -> Care:
    """The exactness for a stage whose median time is `median_s` seconds."""
    if median_s < _SHORT_S:
        return THOROUGH
    if median_s < _LONG_S:
        return care
    return replace(care, known_well=care.known_well / 2, to_tell=(care.to_tell + 1) // 2)


def _is_known_well(seconds: Sequence[float], care: Care) -> bool:
    found = Estimate.of_runs(seconds)
    return found.samples >= care.to_tell and found.error_us <= care.known_well * found.latency_us


def repeats_for(median_s: float, care: Care = THOROUGH) -> int:
    """The number of runs of a stage that takes `median_s` seconds."""
    affordable = care.stage_s / 2 / max(median_s, 1e-9)
    return next((repeats for repeats in REPEATS[1:] if repeats >= affordable), REPEATS[-1])
