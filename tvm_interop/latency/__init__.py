"""Models that say how long operators and stages take, in microseconds. The times are measured,
predicted or given.

A stage consists of groups of operators. Groups run side by side, and the operators of a group run
one after the other.
"""

from .base import LatencyModel, LatencyTable
from .batch import StageBatch
from .transfers import Link

__all__ = ["LatencyModel", "LatencyTable", "Link", "StageBatch"]
