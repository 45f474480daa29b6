"""Latencies of stages whose groups slow each other down by more than shared cores and bandwidth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import LatencyError
from ..plain_data import is_finite
from .base import LatencyModel, LatencyOver
from .batch import StageBatch

Floats = npt.NDArray[np.float64]


class InterferingLatency(LatencyOver):
    """Makes the stages of another latency model slower, by a fraction for each concurrent group.

    The latency that `base` gives for a stage is multiplied by 1 + `interference` * others. Here
    `others` is the mean number of other groups that run while the longest group runs. To compute
    it, the sum of the groups' latencies (each alone) is divided by the longest group's latency, and
    1 is subtracted. So for two equal groups `others` is 1, and a short group beside a long one adds
    little. The simulation of serving applies the same rule to instances of models
    (`serving.models.ServingDevice`).

    On simulated GPUs, kernels share only cores and bandwidth. On real GPUs they also compete for
    caches. `benchmarks.interference` fits the parameter `interference` to published times.

    Parameters
    ----------
    interference: the fraction of its latency by which each concurrent group slows a stage down, 0
        or more.

    Raises
    ------
    LatencyError: `interference` is negative or not a number.
    """

    def __init__(self, base: LatencyModel, interference: float) -> None:
        if not is_finite(interference) or interference < 0:
            raise LatencyError(
                f"`interference` is {interference!r}; it must be a finite number, 0 or more"
            )
        super().__init__(base)
        self._interference = float(interference)

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """The latency of a stage in microseconds, slowed down by its concurrent groups."""
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> Floats:
        """The latencies of stages in microseconds, slowed down by concurrent groups."""
        batch = StageBatch.from_stages(stages)
        us: Floats = np.asarray(super().stages(batch), dtype=np.float64)
        others = [self._others(groups) for groups in batch]
        slowed: Floats = us * (1 + self._interference * np.array(others, dtype=np.float64))
        return slowed

    def _others(self, groups: Sequence[Sequence[int]]) -> float:
        alone_us = [sum(self.op(op) for op in ops) for ops in groups]
        longest_us = max(alone_us, default=0.0)
        return sum(alone_us) / longest_us - 1 if longest_us else 0.0
