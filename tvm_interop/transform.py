"""Relax passes: lowering to units, scheduling kernels, taking units out, scheduling them."""

from .compiler.inter_op_schedule import InterOpSchedule
from .kernels.cpu_schedule import DefaultCPUSchedule
from .lowering.extract import extract
from .lowering.lower import LowerToUnits

__all__ = ["DefaultCPUSchedule", "InterOpSchedule", "LowerToUnits", "extract"]
