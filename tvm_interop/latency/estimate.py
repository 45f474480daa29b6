"""Estimates a latency from several runs: their median, their spread and their number.

If another program uses the core during a run, the run takes longer than its work. Such a run does
not count (see `undisturbed`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_DEVIATIONS_IN_SPREAD = 1.349
"""The interquartile range of normally distributed noise, divided by its standard deviation."""
_MEDIAN_OVER_MEAN = 1.2533
"""The standard error of a median, divided by the standard error of a mean."""
_HELD_UP = 1.25
"""A run counts as delayed by other programs if it takes more than this many times as long as the
shortest run.
"""


def undisturbed(
    seconds: Sequence[float] | npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """The times of the runs that take at most a quarter longer than the shortest run, ascending.

    On a quiet machine, the result holds nearly all runs. On a busy machine, most runs may have
    waited for a core, and the median of all runs would include these waits.
    """
    ordered = np.sort(np.asarray(seconds, dtype=np.float64))
    counted: npt.NDArray[np.float64] = ordered[ordered <= _HELD_UP * ordered[0]]
    return counted


def quantile(ascending: npt.NDArray[np.float64], share: float) -> float:
    """The number below which the fraction `share` of the ascending numbers lies, interpolated.

    The result is the same as that of `np.quantile`, which takes far longer for a few numbers. A
    compilation asks for quantiles several times for each stage that it measures.
    """
    place = share * (len(ascending) - 1)
    below = int(place)
    above = min(below + 1, len(ascending) - 1)
    least, most, part = float(ascending[below]), float(ascending[above]), place - below
    if part < 0.5:
        return least + (most - least) * part
    return most - (most - least) * (1 - part)


_LEAST_US = 1e-3
"""Smallest latency of an estimate. Some code divides by a latency, so it must be above 0. Without
this limit it could be negative, because the latency of an empty stage is subtracted from it.
"""


@dataclass(frozen=True)
class Estimate:
    """A latency estimated from several runs of a stage.

    Attributes
    ----------
    latency_us: the median of the runs, in microseconds.
    spread_us: the runs' interquartile range, in microseconds; None for a single run, or if it was
        not recorded.
    samples: the number of runs that other programs did not delay; 0 if it was not recorded.
    """

    latency_us: float
    spread_us: float | None
    samples: int

    @classmethod
    def of_runs(
        cls, seconds: Sequence[float] | npt.NDArray[np.float64], start_us: float = 0.0
    ) -> Estimate:
        """Estimate a latency from one or more runs. Runs that other programs delayed do not count.

        Parameters
        ----------
        start_us: microseconds that the start of a run takes; they are subtracted from each run's
            time.
        """
        counted = undisturbed(seconds)
        lower, median, upper = (1e6 * quantile(counted, share) for share in (0.25, 0.5, 0.75))
        spread_us = upper - lower if len(counted) > 1 else None
        return cls(max(median - start_us, _LEAST_US), spread_us, len(counted))

    @property
    def error_us(self) -> float:
        """Standard error of the median (McGill, Tukey and Larsen 1978); inf if it is not known."""
        if self.spread_us is None:
            return math.inf
        deviation_us = self.spread_us / _DEVIATIONS_IN_SPREAD
        return _MEDIAN_OVER_MEAN * deviation_us / math.sqrt(self.samples)

    def joined(self, earlier: Estimate | None) -> Estimate:
        """Combine two estimates of one latency, each weighted by its number of runs.

        Returns `self` if `earlier` is None, or if the spread of one of the two estimates is not
        known.
        """
        if earlier is None or earlier.spread_us is None or self.spread_us is None:
            return self
        samples = self.samples + earlier.samples
        share = self.samples / samples
        return Estimate(
            share * self.latency_us + (1 - share) * earlier.latency_us,
            share * self.spread_us + (1 - share) * earlier.spread_us,
            samples,
        )
