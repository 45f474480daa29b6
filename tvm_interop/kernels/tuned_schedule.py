"""Schedules kernels by MetaSchedule's tuning records.

A tuning record is used only if its schedule makes the kernel faster than our default schedule does.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir.transform import PassContext, module_pass

from ..machine.cpu_features import vector_registers
from .cpu_schedule import schedule_kernel
from .loops import SCHEDULED
from .tuning_records import TuningRecords, as_workload

_log = logging.getLogger(__name__)

_PLACE_STORAGE = tvm.transform.Sequential(
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
    ]
)
"""Passes that are applied to a tuned kernel. TVM runs them again when it compiles.

The second pass moves the allocation of each buffer close to the code that uses the buffer.
"""


@module_pass(opt_level=0, name="TunedSchedule")
class TunedSchedule:
    """Schedule the kernels of a module whose best tuning record beats our default schedule.

    The kernels that are scheduled are marked as scheduled. All other kernels stay unchanged, so
    that `DefaultCPUSchedule` can schedule them later. A record says whether its schedule or our
    default schedule was faster (see `kernel_tuning`). So nothing is measured here, and the same
    records always give the same kernels. The pass makes a new module.

    Parameters
    ----------
    folder
        The folder of tuning records.
    target
        The target that the kernels are compiled for.

    Raises
    ------
    InputError
        There are no records in `folder`, they cannot be read, or they are for another target.
    """

    def __init__(self, folder: str | os.PathLike[str], target: Any) -> None:
        self._records = TuningRecords(folder, target)

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Schedule the kernels of `mod`; called by TVM's pass machinery."""
        scheduled = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                scheduled.update_func(var, self._faster(func, var.name_hint))
        return scheduled

    def _faster(self, func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
        record = self._records.best(func)
        if record is None:
            return func
        tuned = tuned_kernel(func, record)
        registers = vector_registers(self._records.target)
        compared = self._records.compared(tuned, schedule_kernel(func, registers, name))
        if compared is None or compared.tuned_us >= compared.default_us:
            _log.debug("kernel `%s` keeps our default schedule", name)
            return func
        return tuned


def tuned_kernel(func: tirx.PrimFunc, record: Any) -> tirx.PrimFunc:
    """`func` with the schedule of the tuning record `record`, marked as scheduled."""
    schedule = s_tir.Schedule(as_workload(func))
    record.trace.apply_to_schedule(schedule, remove_postproc=False)
    # MetaSchedule allocates the buffers of tiles for the whole kernel. They are moved into the loop
    # that uses them, so that each thread, or each share of the kernel, has its own buffers.
    placed = _PLACE_STORAGE(schedule.mod)["main"]
    named = placed.with_attr(SCHEDULED, True)
    if func.attrs is not None:
        for key, value in func.attrs.items():
            named = named.with_attr(key, value)
    return named
