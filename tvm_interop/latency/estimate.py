"""What several runs say of a latency: their median, how far apart they are, and how many.

Other programs may take the core away in the midst of a run. Such runs say how busy the machine was,
not how long the work takes, so they do not count: see `undisturbed`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_DEVIATIONS_IN_SPREAD = 1.349
"""An interquartile range has so many standard deviations, where noise is normal."""
_MEDIAN_OVER_MEAN = 1.2533
"""The standard error of a median, over that of a mean."""
_HELD_UP = 1.25
"""A run that took longer than the shortest by more than this factor was held up."""


def undisturbed(
    seconds: Sequence[float] | npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """The runs that take at most a quarter longer than the shortest, shortest first.

    On a quiet machine these are all but a few. On a busy one most runs may have waited for a core,
    and a median of all would compare waits.
    """
    ordered = np.sort(np.asarray(seconds, dtype=np.float64))
    counted: npt.NDArray[np.float64] = ordered[ordered <= _HELD_UP * ordered[0]]
    return counted


_LEAST_US = 1e-3
"""An empty stage that was held up may take longer than a stage. No latency is 0, or less: others
are divided by it."""


@dataclass(frozen=True)
class Estimate:
    """A latency by several runs.

    Attributes
    ----------
    latency_us: their median, in microseconds.
    spread_us: their interquartile range; None where nobody wrote that down, or for a single run.
    samples: how many runs, without those that were held up; 0 where nobody wrote that down.
    """

    latency_us: float
    spread_us: float | None
    samples: int

    @classmethod
    def of_runs(
        cls, seconds: Sequence[float] | npt.NDArray[np.float64], start_us: float = 0.0
    ) -> Estimate:
        """The estimate from one run or more; runs that were held up do not count.

        Parameters
        ----------
        start_us: what starting a run takes, which is taken off.
        """
        counted = undisturbed(seconds)
        lower, median, upper = np.percentile(counted, [25, 50, 75]) * 1e6
        spread_us = float(upper - lower) if len(counted) > 1 else None
        return cls(max(float(median) - start_us, _LEAST_US), spread_us, len(counted))

    @property
    def error_us(self) -> float:
        """The standard error of the median (McGill, Tukey and Larsen 1978); inf if not known."""
        if self.spread_us is None:
            return math.inf
        deviation_us = self.spread_us / _DEVIATIONS_IN_SPREAD
        return _MEDIAN_OVER_MEAN * deviation_us / math.sqrt(self.samples)

    def joined(self, earlier: Estimate | None) -> Estimate:
        """This one and an earlier one of the same, each weighed by its runs."""
        if earlier is None or earlier.spread_us is None or self.spread_us is None:
            return self
        samples = self.samples + earlier.samples
        share = self.samples / samples
        return Estimate(
            share * self.latency_us + (1 - share) * earlier.latency_us,
            share * self.spread_us + (1 - share) * earlier.spread_us,
            samples,
        )
