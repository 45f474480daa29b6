"""The Relax passes of this package, with which users can build their own pipelines.

One pass lowers a module to calls of fused kernels. Another pass chooses the loops of these kernels
for a CPU. Further passes extract the calls as a `Program`, and schedule them as operators that run
side by side.
"""

from .compiler.inter_op_schedule import InterOpSchedule
from .kernels.cpu_schedule import DefaultCPUSchedule
from .lowering.extract import extract
from .lowering.lower import LowerToUnits

__all__ = ["DefaultCPUSchedule", "InterOpSchedule", "LowerToUnits", "extract"]
