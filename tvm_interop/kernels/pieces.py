"""Loops for kernels in which conditions on an index select what is computed, as in concatenations.

TVM's kernel of a concatenation tests conditions for each element, to find the input that the
element comes from. With dozens of inputs, as in recommenders, the tests take far longer than the
copies. This module divides the axis at each index where the value of a condition changes. Each
piece of the axis gets its own loops, which need no conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from . import loops
from .expressions import only_block

_MOST_PIECES = 128
"""The largest number of pieces into which an axis is divided. More pieces would make the kernel's
code too large."""

_LONGEST = 64
"""The axis is divided only if at most this many elements share an index of the axis.

With more elements, LLVM itself tests the condition only once for all of them.
"""


def loops_by_piece(func: tirx.PrimFunc, parallel_work: int) -> tirx.Stmt | None:
    """Loops that compute the only block of `func`. The axis on which the block's conditions depend
    is divided into pieces.

    Dividing the axis does not change any bit of the results.

    Parameters
    ----------
    func: a kernel whose loops are not scheduled.
    parallel_work: the least number of elements that are divided between threads.

    Returns
    -------
    The loops. None if the kernel has several blocks or a sum, or if dividing the axis does not make
    the kernel faster.
    """
    block = _single_block(func)
    if block is None:
        return None
    axes = [axis.var for axis in block.iter_vars]
    extents = [int(axis.dom.extent) for axis in block.iter_vars]
    found = next(
        ((i, cuts) for i in reversed(range(len(axes))) if (cuts := _cuts(block, axes[i]))), None
    )
    if found is None:
        return None
    chosen, cuts = found
    bounds = [0, *(cut for cut in cuts if 0 < cut < extents[chosen]), extents[chosen]]
    outer, after = extents[:chosen], extents[chosen + 1 :]
    is_parallel = prod(extents) >= parallel_work
    if not 3 <= len(bounds) <= _MOST_PIECES + 1 or prod(after) > _LONGEST:
        return None
    if is_parallel and prod(outer) == 1:
        return None

    def pieces(place: Any) -> tirx.Stmt:
        around = list(zip(axes[:chosen], loops.unravelled(place, outer), strict=True))
        return loops.in_turn(
            _piece(block.body, axes[chosen:], around, (low, high), after)
            for low, high in pairwise(bounds)
        )

    kind = tirx.ForKind.PARALLEL if is_parallel else tirx.ForKind.SERIAL
    return loops.loop(prod(outer), pieces, kind)


def _single_block(func: tirx.PrimFunc) -> Any:
    """The only block of a kernel, if the block stores one element in each iteration; else None."""
    root = func.body.block
    block = only_block(root.body)
    if block is None or root.alloc_buffers or not isinstance(block.body, tirx.BufferStore):
        return None
    kinds = {axis.iter_type for axis in block.iter_vars}
    return block if kinds == {tirx.IterVar.DataPar} else None


def _cuts(block: Any, axis: tirx.Var) -> list[int]:
    """The indices of `axis`, in order, at which the value of a condition of `block` changes."""
    found: set[int] = set()

    def compared(question: Any) -> None:
        # The value of `axis < n` changes at the index n, and the value of `axis <= n` at n + 1.
        more = int(isinstance(question, tirx.LT))
        if question.b.same_as(axis) and isinstance(question.a, tirx.IntImm):
            found.add(int(question.a) + more)
        elif question.a.same_as(axis) and isinstance(question.b, tirx.IntImm):
            found.add(int(question.b) + 1 - more)

    def chosen(call: Any) -> None:
        if _is_choice(call):
            tvm_ffi.structural_walk(call.args[0], [(tirx.LT, compared), (tirx.LE, compared)])

    tvm_ffi.structural_walk(block.body.value, (tvm.ir.Call, chosen))
    return sorted(found)


def _is_choice(call: Any) -> bool:
    return getattr(call.op, "name", "") == "prim.if_then_else"


def _answered(question: Any, axis: tirx.Var, at: int) -> Any:
    """Simplify a condition for the index `at` of `axis`: to True, to False, or to a shorter
    condition.
    """
    if isinstance(question, tirx.And | tirx.Or):
        one, other = (_answered(part, axis, at) for part in (question.a, question.b))
        decides = isinstance(question, tirx.Or)
        for part, rest in ((one, other), (other, one)):
            if isinstance(part, bool):
                return decides if part == decides else rest
        return type(question)(one, other)
    if not isinstance(question, tirx.LT | tirx.LE):
        return question
    low, high = (
        at if side.same_as(axis) else int(side) if isinstance(side, tirx.IntImm) else None
        for side in (question.a, question.b)
    )
    if low is None or high is None:
        return question
    return low < high if isinstance(question, tirx.LT) else low <= high


def _piece(
    store: Any,
    axes: Sequence[tirx.Var],
    around: Sequence[tuple[tirx.Var, Any]],
    bounds: tuple[int, int],
    after: Sequence[int],
) -> tirx.Stmt:
    """Loops over the indices of the first of `axes` within `bounds`, and over all other `axes`.

    Parameters
    ----------
    around: the axes before `axes`, with their indices.
    after: the extents of all `axes` but the first.
    """
    low, high = bounds

    def chosen(call: Any) -> Any:
        if not _is_choice(call):
            return call
        question, one, other = call.args
        answer = _answered(question, axes[0], low)
        if isinstance(answer, bool):
            return one if answer else other
        return tirx.if_then_else(answer, one, other)

    value = tvm_ffi.structural_map(store.value, (tvm.ir.Call, chosen))
    answers = tirx.BufferStore(store.buffer, value, store.indices)

    def nest(indices: list[Any]) -> tirx.Stmt:
        if len(indices) < len(axes):
            extent = after[len(indices) - 1] if indices else high - low
            return loops.loop(extent, lambda i: nest([*indices, i]))
        first, *others = indices
        values = [*around, *zip(axes, [first + low, *others], strict=True)]

        def index_of(var: tirx.Var) -> Any:
            return next((index for axis, index in values if axis.same_as(var)), var)

        return tvm_ffi.structural_map(answers, (tirx.Var, index_of))

    return nest([])
