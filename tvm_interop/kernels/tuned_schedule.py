"""Gives kernels the loops that MetaSchedule found for them, where those are faster."""

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
"""What TVM does too when it compiles."""


@module_pass(opt_level=0, name="TunedSchedule")
class TunedSchedule:
    """Schedule those kernels of a module whose best tuning record beats our default schedule.

    They are marked as scheduled; all others stay as they are, for `DefaultCPUSchedule`. Whether a
    record is faster was measured when it was made (see `kernel_tuning`): the same records always
    give the same kernels. The module given is not changed.

    Parameters
    ----------
    folder
        Where the records are.
    target
        What the kernels are for.

    Raises
    ------
    InputError
        There are no records in `folder`, or they are for another target.
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
    """`func` with the loops of `record`, marked as scheduled."""
    schedule = s_tir.Schedule(as_workload(func))
    record.trace.apply_to_schedule(schedule, remove_postproc=False)
    # MetaSchedule allocates what tiles need for the whole kernel. Within the loop that uses it,
    # each thread, or whoever runs a share of the kernel, has storage of its own.
    placed = _PLACE_STORAGE(schedule.mod)["main"]
    named = placed.with_attr(SCHEDULED, True)
    if func.attrs is not None:
        for key, value in func.attrs.items():
            named = named.with_attr(key, value)
    return named
