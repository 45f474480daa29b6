"""Default schedules of kernels on a CPU.

TVM lowers each operator of a model to a loop nest that follows its mathematical definition. For
example, a convolution adds up its terms in the innermost loop. Each addition waits for the addition
before it, so LLVM cannot vectorise this loop. The rules of this module vectorise along contiguous
memory instead, keep sums in registers, and divide outer loops between threads.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.transform import PassContext, module_pass

from ..machine.cpu_features import Registers, vector_registers
from .contraction_nest import contraction_nest
from .contraction_pattern import find_contraction
from .expressions import uses
from .loops import SCHEDULED
from .pieces import loops_by_piece
from .refusals import is_refusal, unless_refused
from .row_sums import vectorize_along_sum
from .transposes import tile_across_memory

_log = logging.getLogger(__name__)


_PARALLEL_WORK = 1 << 15
"""A loop nest with at least this many innermost iterations is divided between threads.

One thread takes some microseconds for this number of iterations.
"""


_LONGEST = 4096
"""The largest number of iterations of the innermost loop if the kernel is divided between threads.
"""
_WRITTEN_OUT = 64
"""The largest number of iterations of a loop that LLVM may unroll completely."""
_FEWEST_LANES = 4
"""The least number of lanes in a vector. Narrower vectors do not make a kernel faster."""


@module_pass(opt_level=0, name="DefaultCPUSchedule")
class DefaultCPUSchedule:
    """Schedule each kernel of a module for a CPU.

    A kernel that is marked as scheduled stays unchanged, and so does a kernel that no rule fits.
    The pass makes a new module. Equal kernels get equal schedules. No sum is split between threads,
    so results do not depend on the number of threads.

    Parameters
    ----------
    target
        The target that the kernels are compiled for; it decides the width of vectors. By default
        the target of the surrounding `with target:`, or else `llvm`.
    """

    def __init__(self, target: Any = None) -> None:
        self._target = target

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Schedule the kernels of `mod`; called by TVM's pass machinery."""
        target = self._target or tvm.target.Target.current(allow_none=True) or "llvm"
        registers = vector_registers(tvm.target.Target(target))
        scheduled = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                scheduled.update_func(var, schedule_kernel(func, registers, var.name_hint))
        return scheduled


def schedule_kernel(
    func: tirx.PrimFunc, registers: Registers, name: str = "kernel"
) -> tirx.PrimFunc:
    """`func` scheduled for a CPU; `func` itself if it is scheduled already or no rule fits it."""
    if func.attrs is not None and SCHEDULED in func.attrs:
        return func
    if not isinstance(func.body, s_tir.SBlockRealize):
        _log.debug("kernel `%s` stays as it is: it is not made of blocks", name)
        return func
    try:
        return _scheduled(func, registers).with_attr(SCHEDULED, True)
    except Exception as error:  # A kernel without a schedule still runs, only more slowly.
        if is_refusal(error) or isinstance(error, _NoRuleError):
            _log.debug("kernel `%s` stays as it is: %s", name, error)
        else:
            _log.warning(
                "kernel `%s` stays as it is, and slow, because a scheduling rule failed; please "
                "report it with this traceback",
                name,
                exc_info=True,
            )
        return func


class _NoRuleError(Exception):
    """Raised if no scheduling rule fits a kernel; the message says why."""


def _scheduled(func: tirx.PrimFunc, registers: Registers) -> tirx.PrimFunc:
    # `Schedule` changes loops in place, so it gets a copy.
    schedule = s_tir.Schedule(s_tir.renew_defs(func), error_render_level="fast")
    root = schedule.get_sblock("root")
    blocks = schedule.get_child_blocks(root)
    growth = _Growth(schedule, blocks)
    for block in blocks:
        _inline(schedule, block, growth)
    inlined = schedule.mod["main"]
    found = find_contraction(inlined)
    if found is not None:
        return _with_body(inlined, *contraction_nest(*found, registers))
    in_pieces = loops_by_piece(inlined, _PARALLEL_WORK)
    if in_pieces is not None:
        return _with_body(inlined, in_pieces, [])
    for block in schedule.get_child_blocks(root):
        if not _is_reduction(schedule, block):
            _schedule_elementwise(schedule, block, registers)
        elif not vectorize_along_sum(schedule, block, registers):
            _vectorize_across_sums(schedule, block, registers)
    return schedule.mod["main"]


def _with_body(func: tirx.PrimFunc, body: tirx.Stmt, scratch: list[Any]) -> tirx.PrimFunc:
    """The kernel `func` with the body `body`, around which the buffers `scratch` are allocated."""
    block = s_tir.SBlock([], [], [], "root", body, alloc_buffers=scratch)
    realize = s_tir.SBlockRealize([], True, block)
    return tirx.PrimFunc(func.params, realize, func.ret_type, func.attrs)


def _inline(schedule: s_tir.Schedule, block: Any, growth: _Growth) -> None:
    """Inline an element-wise `block` into the blocks that use its values.

    A sum such as a convolution uses each value more than once. A block that only copies is inlined
    into such a sum. A block that computes something is not, because its values would be computed
    repeatedly.
    """
    if _is_reduction(schedule, block):
        return
    body = schedule.get(block).body
    only_copies = isinstance(body, tirx.BufferStore) and isinstance(body.value, tvm.ir.TensorLoad)
    if not only_copies and isinstance(body, tirx.BufferStore) and not growth.allows(body.buffer):
        return
    sums = [user for user in schedule.get_consumers(block) if _is_reduction(schedule, user)]
    if only_copies or all(_uses_each_once(schedule, user, block) for user in sums):
        with unless_refused():  # TVM cannot inline, for example, a block that writes an output.
            schedule.compute_inline(block)


class _Growth:
    """Limits the size of inlined expressions, which are repeated at each use.

    If a tensor is added to itself, inlining doubles its expression. After twenty such additions
    LLVM would get a million copies of the tensor's expression. So the sizes of expressions are
    counted before anything is inlined, while each block is still short.
    """

    def __init__(self, schedule: s_tir.Schedule, blocks: Sequence[Any]) -> None:
        # The number of instructions and the inputs of each block's expression, by the buffer that
        # the block writes.
        self._own: dict[Any, tuple[int, list[Any]]] = {}
        # The number of instructions of each expression that is inlined, by the buffer that it
        # replaces.
        self._sizes: dict[Any, int] = {}
        for block in blocks:
            body = schedule.get(block).body
            if isinstance(body, tirx.BufferStore):
                self._own[body.buffer] = _size_and_reads(body.value)

    def allows(self, written: Any) -> bool:
        """Whether the expression that computes the buffer `written` may replace each read of this
        buffer.
        """
        own, reads = self._own.get(written, (0, []))
        size = own + sum(self._sizes.get(read, 1) for read in reads)
        uses = sum(inputs.count(written) for _, inputs in self._own.values())
        if uses > 1 and uses * size > _LARGEST:
            return False
        self._sizes[written] = size
        return True


def _size_and_reads(value: Any) -> tuple[int, list[Any]]:
    """An estimate of an expression's number of instructions, and the buffers that it reads.

    The instructions that compute the contents of the buffers that an expression reads are not
    counted.
    """
    sizes: list[int] = [1]
    reads: list[Any] = []
    tvm_ffi.structural_walk(
        value,
        [
            (tvm.ir.Call, lambda call: sizes.append(_FUNCTION)),
            (tvm.ir.TensorLoad, lambda load: reads.append(load.source)),
        ],
    )
    return sum(sizes), reads


_LARGEST = 200
"""The largest number of instructions in all copies of an inlined expression together."""
_FUNCTION = 40
"""A function call counts as this many instructions."""


def _is_reduction(schedule: s_tir.Schedule, block: Any) -> bool:
    kinds = [var.iter_type for var in schedule.get(block).iter_vars]
    return tirx.IterVar.CommReduce in kinds


def _uses_each_once(schedule: s_tir.Schedule, user: Any, block: Any) -> bool:
    """Whether `user` reads each value of `block` once, because both have as many iterations."""
    return _iterations(schedule, user) == _iterations(schedule, block)


def _iterations(schedule: s_tir.Schedule, block: Any) -> int:
    return prod(int(schedule.get(loop).extent) for loop in schedule.get_loops(block))


def _writes_output(schedule: s_tir.Schedule, block: Any) -> bool:
    """Whether `block` writes an output of the kernel.

    A block that writes an intermediate buffer cannot be divided into shares that compute parts of
    the output: each share needs the whole buffer.
    """
    own = set(schedule.get(schedule.get_sblock("root")).alloc_buffers)
    return all(region.source not in own for region in schedule.get(block).writes)


def _vectorize_across_sums(schedule: s_tir.Schedule, block: Any, registers: Registers) -> None:
    """Compute the sums of neighbouring elements at once, as one vector."""
    loops = schedule.get_loops(block)
    kinds = [var.iter_type for var in schedule.get(block).iter_vars]
    extents = [int(schedule.get(loop).extent) for loop in loops]
    if len(loops) != len(kinds):
        return
    spatial = [i for i, kind in enumerate(kinds) if kind == tirx.IterVar.DataPar]
    reduced = [loops[i] for i, kind in enumerate(kinds) if kind == tirx.IterVar.CommReduce]
    wide = [i for i in spatial if extents[i] > 1]
    if not wide:
        return
    body = schedule.get(block).body
    if not isinstance(body, tirx.BufferStore):
        raise _NoRuleError("one of its sums computes several values at once")
    itemsize = tvm.DataType(str(body.buffer.dtype)).bits // 8
    most = registers.nbytes // max(itemsize, 1)
    inner = wide[-1]
    lanes = max(n for n in range(1, most + 1) if extents[inner] % n == 0)
    outer, lane_loop = schedule.split(loops[inner], [None, lanes])
    schedule.reorder(outer, *reduced, lane_loop)
    schedule.vectorize(lane_loop)
    if prod(extents) >= _PARALLEL_WORK and _writes_output(schedule, block):
        schedule.parallel(schedule.fuse(*(loops[i] for i in spatial if i < inner), outer))
    init = schedule.decompose_reduction(block, reduced[0])
    init_loop = schedule.get_loops(init)[-1]
    if schedule.get(init_loop).kind == tirx.ForKind.SERIAL:
        schedule.vectorize(init_loop)


def _axes_in_memory_order(schedule: s_tir.Schedule, block: Any) -> int:
    """The number of innermost loops that go through memory in order, so that they can be fused into
    one loop.

    In each tensor that is read or written, the axes of the fused loops must be the last indices,
    and must cover the last dimensions completely. A tensor may also be independent of the fused
    axes, for example if it has one number per channel.
    """
    loops = [schedule.get(loop) for loop in schedule.get_loops(block)]
    found = schedule.get(block)
    axes = [var.var for var in found.iter_vars]
    if len(loops) != len(axes) or not isinstance(found.body, tirx.BufferStore):
        return 0
    sizes = [int(loop.extent) for loop in loops]
    accesses: list[tuple[Any, Any]] = [(found.body.buffer, found.body.indices)]
    tvm_ffi.structural_walk(
        found.body.value,
        (tvm.ir.TensorLoad, lambda load: accesses.append((load.source, load.indices))),
    )
    count = 0
    while count < len(axes) and all(
        _goes_along(buffer, indices, axes, sizes, count + 1) for buffer, indices in accesses
    ):
        count += 1
    return count


def _goes_along(
    buffer: Any, indices: Any, axes: list[tirx.Var], sizes: list[int], count: int
) -> bool:
    """Whether the last `count` axes index the buffer's last dimensions fully, or not at all."""
    last = axes[len(axes) - count :]
    if not any(uses(index, axis) for index in indices for axis in last):
        return True
    shape = [int(size) for size in buffer.ty.shape]
    return shape[-count:] == sizes[-count:] and all(
        index.same_as(axis) for index, axis in zip(indices[-count:], last, strict=True)
    )


def _schedule_elementwise(schedule: s_tir.Schedule, block: Any, registers: Registers) -> None:
    """Schedule an element-wise block.

    The block is tiled if it reads with a large stride, and divided between threads if it is large.
    """
    work = _iterations(schedule, block)
    tiles = tile_across_memory(schedule, block, registers)
    if tiles is None:
        _share_between_threads(schedule, block)
    elif work >= _PARALLEL_WORK and _writes_output(schedule, block):
        schedule.parallel(tiles)


def _share_between_threads(schedule: s_tir.Schedule, block: Any) -> None:
    """If an element-wise block is large, divide its outer loops between threads.

    LLVM later vectorises the innermost loop. But LLVM would unroll a short loop of arithmetic, so
    such a loop is vectorised here.
    """
    loops = schedule.get_loops(block)
    is_shared = _iterations(schedule, block) >= _PARALLEL_WORK and _writes_output(schedule, block)
    in_order = _axes_in_memory_order(schedule, block)
    if in_order > 0:
        # LLVM would unroll short innermost loops and vectorise the loop around them with gathers.
        # So the loops that go through memory in order are fused into one.
        loops = _one_through_memory(schedule, loops, in_order, _LONGEST if is_shared else None)
    extents = [int(schedule.get(loop).extent) for loop in loops]
    wide = [i for i, extent in enumerate(extents) if extent > 1]
    is_short = len(wide) > 1 and _FEWEST_LANES <= extents[-1] <= _WRITTEN_OUT
    if in_order > 0 and is_short and _is_arithmetic(schedule, block):
        schedule.vectorize(loops[-1])
    if not is_shared:
        return
    if len(wide) == 1:
        chunks, _ = schedule.split(loops[wide[0]], [None, _LONGEST])
        schedule.parallel(schedule.fuse(*loops[: wide[0]], chunks))
        return
    # Fuse only as many loops as are needed to divide the iterations evenly between threads. The
    # indices of a fused loop cost divisions, so further loops stay separate.
    count = 1
    while count < len(wide) - 1 and prod(extents[: wide[count - 1] + 1]) < 64:
        count += 1
    schedule.parallel(schedule.fuse(*loops[: wide[count - 1] + 1]))


def _one_through_memory(
    schedule: s_tir.Schedule, loops: list[Any], count: int, longest: int | None
) -> list[Any]:
    """Fuse loops among the last `count` of `loops` into one loop of at most `longest` iterations.

    Loops are fused from the innermost on, while the product of their lengths is at most `longest`.
    If a loop is too long, it is split at a divisor of its length, so that indices stay sums of loop
    variables. There may be no divisor that gives a fused loop of at least a sixteenth of `longest`.
    In that case all `count` loops are fused, and the fused loop is split at `longest`. TVM does not
    simplify the indices of such a loop.

    Parameters
    ----------
    longest: the largest number of iterations; None for no limit.

    Returns
    -------
    The loops, from the outermost to the innermost.
    """
    first = len(loops) - count
    if longest is None:
        return [*loops[:first], schedule.fuse(*loops[first:])]
    inner, i = 1, len(loops)
    while i > first and inner * int(schedule.get(loops[i - 1]).extent) <= longest:
        i -= 1
        inner *= int(schedule.get(loops[i]).extent)
    if i == first:
        return [*loops[:first], schedule.fuse(*loops[first:])]
    extent = int(schedule.get(loops[i - 1]).extent)
    piece = max(n for n in range(1, longest // inner + 1) if extent % n == 0)
    if inner * piece < longest // 16:
        # No divisor is large enough, so the last part of the loop is shorter. This needs a
        # condition, and LLVM does not vectorise a loop with a condition. So it is the last resort.
        pieces = schedule.split(schedule.fuse(*loops[first:]), [None, longest])
        return [*loops[:first], *pieces]
    outer, rest = schedule.split(loops[i - 1], [None, piece])
    return [*loops[: i - 1], outer, schedule.fuse(rest, *loops[i:])]


def _is_arithmetic(schedule: s_tir.Schedule, block: Any) -> bool:
    """Whether `block` calls no function. A vector may need a separate call of a function for each
    lane.
    """
    calls: list[Any] = []
    tvm_ffi.structural_walk(schedule.get(block).body.value, (tvm.ir.Call, calls.append))
    return not calls
