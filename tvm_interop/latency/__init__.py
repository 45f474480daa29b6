"""Models that say how long operators and stages take, in microseconds. The times are measured,
predicted or given.

A stage consists of groups of operators. The groups of a stage run side by side. The operators of a
group run one after the other.
"""

from .base import LatencyModel, LatencyTable
from .batch import StageBatch
from .transfers import Link

__all__ = ["LatencyModel", "LatencyTable", "Link", "StageBatch"]
