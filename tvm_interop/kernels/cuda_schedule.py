"""Default schedules of GPU kernels: the rules of TVM's dlight, and our rule for short sums."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.s_tir import dlight

from .loops import SCHEDULED
from .refusals import is_refusal, unless_refused
from .tensor_intrinsics import quick_call_stacks

_log = logging.getLogger(__name__)


_BLOCK_THREADS = 128
"""The number of threads in a thread block that `short_sums` uses. With small blocks, more
multiprocessors of the GPU get work."""
_LONGEST_SUM = 64
"""The largest number of terms that one thread adds up alone.

So short a sum does not have enough work for a whole thread block.
"""


@module_pass(opt_level=0, name="DefaultCUDASchedule")
class DefaultCUDASchedule:
    """Schedule each kernel of a module for a GPU.

    The `Matmul` rule of dlight tiles convolutions and matrix products. Its `GEMV` rule schedules
    products with a vector. Depthwise convolutions and pooling have short sums. These kernels get
    one thread for each element (`short_sums`), where dlight would use a whole thread block for an
    element. Then dlight's rules for reductions are tried. TVM cannot share some reductions among
    threads, such as the position of a maximum. `short_sums` schedules these reductions, also if
    they are long. Kernels that no rule fits get dlight's fallback, which uses one thread for each
    element.

    A kernel that is marked as scheduled stays unchanged if it names threads of the GPU. If it names
    none, it is changed so that one thread runs it. The pass makes a new module. Equal kernels get
    equal schedules.

    Parameters
    ----------
    target
        The target that the kernels are compiled for. By default the target of the surrounding
        `with target:`.
    """

    def __init__(self, target: Any = None) -> None:
        self._target = target

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Schedule the kernels of `mod`; called by TVM's pass machinery."""
        target = tvm.target.Target(self._target) if self._target else tvm.target.Target.current()
        scheduled = mod.clone()
        for var, func in mod.functions_items():
            if not isinstance(func, tirx.PrimFunc):
                continue
            if SCHEDULED not in (func.attrs or {}):
                scheduled.update_func(var, schedule_kernel(func, target, var.name_hint))
            elif not _has_threads(func):
                scheduled.update_func(var, on_one_thread(func))
        return scheduled


def _has_threads(func: tirx.PrimFunc) -> bool:
    """Whether a kernel says which of its loops are threads of a GPU."""
    found: list[bool] = []

    def note(loop: tirx.For) -> None:
        found.append(loop.kind == tirx.ForKind.THREAD_BINDING)

    tvm_ffi.structural_walk(func.body, [(tirx.For, note)])
    return any(found)


def on_one_thread(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel with hand-written loops, changed so that one thread of a GPU runs it.

    If the kernel named no thread, TVM would make a function for the host, which cannot read the
    GPU's memory.
    """
    block = func.body.block
    thread, extent = tirx.Var("thread", "int32"), tirx.const(1, "int32")
    tag = tirx.IterVar(tvm.ir.Range(0, 1), thread, tirx.IterVar.ThreadIndex, "threadIdx.x")
    zero = tirx.const(0, "int32")
    body = tirx.For(thread, zero, extent, tirx.ForKind.THREAD_BINDING, block.body, tag)
    whole = s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        alloc_buffers=block.alloc_buffers,
    )
    return func.with_body(s_tir.SBlockRealize([], True, whole))


def schedule_kernel(func: tirx.PrimFunc, target: Any, name: str = "kernel") -> tirx.PrimFunc:
    """`func` scheduled for a GPU, or unscheduled if no rule fits it."""
    gpu = dlight.gpu
    rules = (
        gpu.Matmul(),
        _ShortSums(_LONGEST_SUM),
        gpu.GEMV(),
        gpu.Reduction(),
        gpu.GeneralReduction(),
        _ShortSums(math.inf),
        gpu.Fallback(),
    )
    plain = _with_plain_names(func)
    with target, quick_call_stacks():
        for rule in rules:
            # A schedule changes loops in place, so each rule gets a copy of them.
            schedule = _attempt(rule, s_tir.renew_defs(plain), target, name)
            if schedule is not None:
                _log.debug("kernel `%s`: %s", name, type(rule).__name__)
                return schedule.mod["main"].with_attr(SCHEDULED, True)
    _log.debug("kernel `%s` stays as it is", name)
    return plain


class _ShortSums:
    """A scheduling rule with dlight's interface, which calls `short_sums`."""

    def __init__(self, most_terms: float) -> None:
        self._most_terms = most_terms

    def apply(self, func: tirx.PrimFunc, target: Any, tunable: bool) -> Any:
        return short_sums(func, self._most_terms)


def short_sums(func: tirx.PrimFunc, most_terms: float) -> Any:
    """A schedule with one thread for each element of the output; None if the kernel does not fit.

    A kernel fits if it has one sum or other reduction, of at most `most_terms` terms: for example a
    depthwise convolution or a pooling. Operators before the sum are inlined into it. Operators
    after the sum are computed by the same thread, which keeps the sum in a register. These later
    operators may write more elements than there are sums. Then several threads compute the same
    sum, so the reduction must have at most `_LONGEST_SUM` terms and a single result.
    """
    schedule = s_tir.Schedule(func, error_render_level="fast")
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    sums = [block for block in blocks if _is_reduction(schedule, block)]
    if len(sums) != 1:
        return None
    (summed,) = sums
    terms = math.prod(_extents(schedule, summed, reduced=True))
    if terms > most_terms:
        return None
    _inline_all(schedule, summed)
    after = list(schedule.get_consumers(summed))
    if len(after) > 1 or any(schedule.get_consumers(block) for block in after):
        return None
    results = len(schedule.get(summed).writes)
    if terms > _LONGEST_SUM or results > 1:
        elements = math.prod(_extents(schedule, summed, reduced=False))
        if any(math.prod(_extents(schedule, one, reduced=False)) > elements for one in after):
            return None
    if after:
        # `argmax` has two results: the position and the maximum itself.
        for result in range(results):
            schedule.set_scope(summed, result, "local")
        written = after[0]
    else:
        written = schedule.cache_write(summed, 0, "local")
    element = schedule.fuse(*schedule.get_loops(written))
    block, thread = schedule.split(element, [None, _BLOCK_THREADS])
    schedule.bind(block, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.compute_at(summed, thread)
    # The loops of the sum lie inside the two loops over blocks and threads. A sum of one term has
    # no loop. Set the sum's initial value before its loops. If TVM refuses this transformation, an
    # `if` in the loop sets the initial value in the first iteration. The result is the same, and
    # the kernel is a little slower.
    for first in schedule.get_loops(summed)[2:3]:
        with unless_refused():
            schedule.decompose_reduction(summed, first)
    return schedule


def _with_plain_names(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with variables renamed to valid C names.

    TVM names some variables after ONNX tensors, whose names may contain characters such as `/`.
    """
    plain: dict[Any, Any] = {}

    def rename(var: Any) -> Any:
        if var not in plain:
            spelt = re.sub(r"\W", "_", var.name)
            plain[var] = var if spelt == var.name else tirx.Var(spelt, var.ty)
        return plain[var]

    return tvm_ffi.structural_map(func, (tirx.Var, rename))


def _attempt(rule: Any, func: tirx.PrimFunc, target: Any, name: str) -> Any:
    try:
        schedule = rule.apply(func, target, False)
        if schedule is not None:
            # In dlight, the threads of a block may share any reduction. But TVM later refuses to
            # combine the threads' results by a function that it does not know, such as our
            # `argmax`.
            s_tir.transform.LowerCrossThreadReduction()(schedule.mod)
        return schedule
    except Exception as error:  # The rule does not fit this kernel, but the next rule may.
        if isinstance(rule, _ShortSums) and not is_refusal(error):
            _log.warning(
                "kernel `%s` is scheduled without the rule for short sums, because the rule "
                "failed; please report it with this traceback",
                name,
                exc_info=True,
            )
        else:
            _log.debug("kernel `%s`: %s does not fit: %s", name, type(rule).__name__, error)
        return None


def _inline_all(schedule: s_tir.Schedule, summed: Any) -> None:
    """Inline every block except `summed` and the last block, as far as TVM can."""
    for block in _others(schedule, summed):
        with unless_refused():  # TVM cannot inline a block that writes an output or reads the sum.
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
    """The extents of the block's summed axes if `reduced`, else of its other axes."""
    wanted = tirx.IterVar.CommReduce if reduced else tirx.IterVar.DataPar
    return [int(v.dom.extent) for v in schedule.get(block).iter_vars if v.iter_type == wanted]
