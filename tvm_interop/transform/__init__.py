"""Relax passes: lowering to units, scheduling kernels, taking units out, scheduling them."""

from .cpu_schedule import DefaultCPUSchedule
from .extract import extract
from .inter_op_schedule import InterOpSchedule
from .lower import LowerToUnits

__all__ = ["DefaultCPUSchedule", "InterOpSchedule", "LowerToUnits", "extract"]
