"""Default schedules of GPU kernels: the rules of TVM's dlight, and one for sums of few terms."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.s_tir import dlight

from .loops import SCHEDULED
from .refusals import is_refusal, unless_refused

_log = logging.getLogger(__name__)


_BLOCK_THREADS = 128
"""Threads of a block in our own rule: small ones spread over more of the GPU."""
_LONGEST_SUM = 64
"""Terms up to which a thread adds a sum up by itself: a block of threads would hardly be busy."""


@module_pass(opt_level=0, name="DefaultCUDASchedule")
class DefaultCUDASchedule:
    """Schedule each kernel of a module for a GPU.

    A convolution or matrix product is tiled by dlight's `Matmul` rule, a product with a vector by
    `GEMV`. Depthwise convolutions and pooling, whose sums are short, get a thread an element
    (`short_sums`); dlight would give each element a block. The rest goes to dlight's reductions,
    and to its fallback, a thread an element.

    A kernel that is marked as scheduled stays as it is. The module given is not changed. Equal
    kernels get equal schedules.

    Parameters
    ----------
    target
        What the kernels are for. By default the target of the surrounding `with target:`.
    """

    def __init__(self, target: Any = None) -> None:
        self._target = target

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Schedule the kernels of `mod`; called by TVM's pass machinery."""
        target = tvm.target.Target(self._target) if self._target else tvm.target.Target.current()
        scheduled = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and SCHEDULED not in (func.attrs or {}):
                scheduled.update_func(var, schedule_kernel(func, target, var.name_hint))
        return scheduled


def schedule_kernel(func: tirx.PrimFunc, target: Any, name: str = "kernel") -> tirx.PrimFunc:
    """`func` with loops for a GPU; without, where no rule fits it."""
    gpu = dlight.gpu
    rules = (
        gpu.Matmul(),
        _ShortSums(),
        gpu.GEMV(),
        gpu.Reduction(),
        gpu.GeneralReduction(),
        gpu.Fallback(),
    )
    plain = _with_plain_names(func)
    with target:
        for rule in rules:
            # A schedule changes the loops it is given in place: give it some of its own.
            schedule = _attempt(rule, s_tir.renew_defs(plain), target, name)
            if schedule is not None:
                _log.debug("kernel `%s`: %s", name, type(rule).__name__)
                return schedule.mod["main"].with_attr(SCHEDULED, True)
    _log.debug("kernel `%s` stays as it is", name)
    return plain


class _ShortSums:
    """`short_sums` in the shape of a rule of dlight's."""

    def apply(self, func: tirx.PrimFunc, target: Any, tunable: bool) -> Any:
        return short_sums(func)


def short_sums(func: tirx.PrimFunc) -> Any:
    """A schedule with a thread for each element of the output; None where it does not fit.

    It fits a kernel with one sum (or maximum) of at most `_LONGEST_SUM` terms: depthwise
    convolution, pooling. What comes before is computed where it is read, what comes after where the
    sum is ready; the sum stays in a register.
    """
    schedule = s_tir.Schedule(func, error_render_level="fast")
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    sums = [block for block in blocks if _is_reduction(schedule, block)]
    if len(sums) != 1 or prod(_extents(schedule, sums[0], reduced=True)) > _LONGEST_SUM:
        return None
    (summed,) = sums
    _inline_all(schedule, summed)
    after = list(schedule.get_consumers(summed))
    if len(after) > 1 or any(schedule.get_consumers(block) for block in after):
        return None
    if after:
        schedule.set_scope(summed, 0, "local")
        written = after[0]
    else:
        written = schedule.cache_write(summed, 0, "local")
    element = schedule.fuse(*schedule.get_loops(written))
    block, thread = schedule.split(element, [None, _BLOCK_THREADS])
    schedule.bind(block, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.compute_at(summed, thread)
    reduced = len(_extents(schedule, summed, reduced=True))
    # Where it cannot be, an `if` in the sum's first round starts it: right too, and little slower.
    with unless_refused():
        schedule.decompose_reduction(summed, schedule.get_loops(summed)[-reduced])
    return schedule


def _with_plain_names(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with variables that C can spell: TVM names some after ONNX tensors, `/` and all."""
    plain: dict[Any, Any] = {}

    def rename(var: Any) -> Any:
        if var not in plain:
            spelt = re.sub(r"\W", "_", var.name)
            plain[var] = var if spelt == var.name else tirx.Var(spelt, var.ty)
        return plain[var]

    return tvm_ffi.structural_map(func, (tirx.Var, rename))


def _attempt(rule: Any, func: tirx.PrimFunc, target: Any, name: str) -> Any:
    try:
        return rule.apply(func, target, False)
    except Exception as error:  # The next rule may fit.
        if isinstance(rule, _ShortSums) and not is_refusal(error):
            _log.warning(
                "kernel `%s` goes without the rule for short sums, for a fault of it; please "
                "report it with this traceback",
                name,
                exc_info=True,
            )
        else:
            _log.debug("kernel `%s`: %s does not fit: %s", name, type(rule).__name__, error)
        return None


def _inline_all(schedule: s_tir.Schedule, summed: Any) -> None:
    """Inline every block but `summed` and the last, as far as TVM can."""
    for block in _others(schedule, summed):
        with unless_refused():  # Writes an output, or reads the sum.
            schedule.compute_inline(block)
    for block in _others(schedule, summed):
        if schedule.get_consumers(block):
            with unless_refused():
                schedule.reverse_compute_inline(block)


def _others(schedule: s_tir.Schedule, summed: Any) -> Iterator[Any]:
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    own = schedule.get(summed)
    return (block for block in blocks if not schedule.get(block).same_as(own))


def _is_reduction(schedule: s_tir.Schedule, block: Any) -> bool:
    kinds = [var.iter_type for var in schedule.get(block).iter_vars]
    return tirx.IterVar.CommReduce in kinds


def _extents(schedule: s_tir.Schedule, block: Any, reduced: bool) -> list[int]:
    """How often each loop of the sum, or each other loop, of `block` is run."""
    wanted = tirx.IterVar.CommReduce if reduced else tirx.IterVar.DataPar
    return [int(v.dom.extent) for v in schedule.get(block).iter_vars if v.iter_type == wanted]
