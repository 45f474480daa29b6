"""Relax passes that lower a module to units, schedule kernels, and extract and schedule units."""

from .compiler.inter_op_schedule import InterOpSchedule
from .kernels.cpu_schedule import DefaultCPUSchedule
from .lowering.extract import extract
from .lowering.lower import LowerToUnits

__all__ = ["DefaultCPUSchedule", "InterOpSchedule", "LowerToUnits", "extract"]
