"""Relax passes: lowering a model to units, and taking the units out of Relax."""

from .extract import extract
from .lower import LowerToUnits

__all__ = ["LowerToUnits", "extract"]
