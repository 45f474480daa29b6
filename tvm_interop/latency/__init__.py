"""How long operators and stages take, in microseconds: measured, predicted or given."""

from .base import LatencyModel, LatencyTable
from .batch import StageBatch
from .transfers import Link

__all__ = ["LatencyModel", "LatencyTable", "Link", "StageBatch"]
