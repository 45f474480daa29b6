"""Default loops for kernels on a CPU: vectors along memory, reductions outside of them.

What TVM lowers a model to is one loop nest an operator, exactly as its mathematics is written
down: a convolution sums in its innermost loop, whose iterations wait for one another and cannot
become vector instructions.
"""

from __future__ import annotations

import contextlib
import logging

import tvm
from tvm import s_tir, tirx
from tvm.ir.transform import PassContext, module_pass

_log = logging.getLogger(__name__)

_SCHEDULED = "tirx.is_scheduled"
"""TVM's own mark of a kernel that has its loops already, by hand, by dlight or by tuning."""

_LANES = 16
"""Most elements in a vector: 512 bits of float32; LLVM takes narrower registers two by two."""


@module_pass(opt_level=0, name="DefaultCPUSchedule")
class DefaultCPUSchedule:
    """Schedule each kernel of a module for a CPU.

    A kernel that is marked as scheduled stays as it is, and so does one that these rules do not
    fit. The module given is not changed. Equal kernels get equal schedules, and no sum is split
    between threads, so results do not depend on how many there are.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Schedule the kernels of `mod`; called by TVM's pass machinery."""
        scheduled = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                scheduled.update_func(var, schedule_kernel(func, var.name_hint))
        return scheduled


def schedule_kernel(func: tirx.PrimFunc, name: str = "kernel") -> tirx.PrimFunc:
    """`func` with loops for a CPU; `func` itself where it has some or no rule fits it."""
    if func.attrs is not None and _SCHEDULED in func.attrs:
        return func
    if not isinstance(func.body, s_tir.SBlockRealize):
        _log.debug("kernel `%s` stays unscheduled: it is not made of blocks", name)
        return func
    try:
        # A schedule changes the loops it is given in place: give it some of its own.
        schedule = s_tir.Schedule(s_tir.renew_defs(func), error_render_level="fast")
        _schedule_blocks(schedule)
        return schedule.mod["main"].with_attr(_SCHEDULED, True)
    except Exception as error:
        _log.debug("kernel `%s` stays unscheduled: %s", name, error)
        return func


def _schedule_blocks(schedule: s_tir.Schedule) -> None:
    root = schedule.get_sblock("root")
    for block in schedule.get_child_blocks(root):
        _inline(schedule, block)
    for block in schedule.get_child_blocks(root):
        if _is_reduction(schedule, block):
            _schedule_reduction(schedule, block)


def _inline(schedule: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> None:
    """Compute an element-wise `block` where its values are used, unless that is in a sum.

    There it would be computed over and over, unless it is only a copy.
    """
    if _is_reduction(schedule, block):
        return
    value = schedule.get(block).body.value
    into_sum = any(_is_reduction(schedule, user) for user in schedule.get_consumers(block))
    if not into_sum or isinstance(value, tvm.ir.TensorLoad):
        # Refused for a block that writes an output, or is read in more than one way.
        with contextlib.suppress(Exception):
            schedule.compute_inline(block)


def _is_reduction(schedule: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> bool:
    kinds = [var.iter_type for var in schedule.get(block).iter_vars]
    return tirx.IterVar.CommReduce in kinds


def _schedule_reduction(schedule: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> None:
    """Sum many neighbouring elements at once, one vector, instead of one after the other."""
    loops = schedule.get_loops(block)
    kinds = [var.iter_type for var in schedule.get(block).iter_vars]
    extents = [int(schedule.get(loop).extent) for loop in loops]
    if len(loops) != len(kinds):
        return
    spatial = [i for i, kind in enumerate(kinds) if kind == tirx.IterVar.DataPar and extents[i] > 1]
    reduced = [i for i, kind in enumerate(kinds) if kind == tirx.IterVar.CommReduce]
    if not spatial:
        return
    inner = spatial[-1]
    lanes = max(n for n in range(1, _LANES + 1) if extents[inner] % n == 0)
    outer, lane_loop = schedule.split(loops[inner], [None, lanes])
    schedule.reorder(outer, *(loops[i] for i in reduced), lane_loop)
    schedule.vectorize(lane_loop)
    init = schedule.decompose_reduction(block, loops[reduced[0]])
    init_loop = schedule.get_loops(init)[-1]
    if schedule.get(init_loop).kind == tirx.ForKind.SERIAL:
        schedule.vectorize(init_loop)
