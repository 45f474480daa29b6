"""How long operators and stages take, in microseconds: measured, predicted or given."""

from .base import LatencyModel, LatencyTable
from .batch import StageBatch

__all__ = ["LatencyModel", "LatencyTable", "StageBatch"]
