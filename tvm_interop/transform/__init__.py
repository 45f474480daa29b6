"""Relax passes: lowering a model to units, taking the units out of Relax, scheduling them."""

from .extract import extract
from .inter_op_schedule import InterOpSchedule
from .lower import LowerToUnits

__all__ = ["InterOpSchedule", "LowerToUnits", "extract"]
