"""Proves facts about kernels that go through a sequence from the first step to the last.

A kernel that goes through a sequence step by step has the attribute `kernels.loops.STEPS`. It
computes each position from the same position and from earlier positions. Padding comes after the
given positions of a sequence, so no result at a given position depends on a padded position. Only
the kernel's state after the last step depends on padded positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import tirx

from ..kernels.loops import ADDS, AFTER_LAST_STEP, STEPS
from ..program.program import Operator, Program
from .bound_arithmetic import ANY, ORDINARY, WIDE, ZERO, Bound, ordinary, widened
from .kernel_stores import UnprovenError
from .padding_bounds import Bounds, everywhere
from .position_form import Layout, one_axis


def goes_through_positions(kernels: Sequence[tirx.PrimFunc], lengths: Sequence[int]) -> bool:
    """Whether the kernels have the attribute `STEPS`, and each step is a position of the sequence.

    Parameters
    ----------
    kernels: the kernel of an operator for each length of the sequence.
    """
    axes = _axes(kernels[0])
    if any(_axes(kernel) != axes for kernel in kernels):
        return False
    of_steps = [i for i, axis in enumerate(axes) if axis >= 0]
    return bool(of_steps) and all(
        int(kernel.params[i].shape[axes[i]]) == length
        for kernel, length in zip(kernels, lengths, strict=True)
        for i in of_steps
    )


def layouts_after(
    op: Operator, kernel: tirx.PrimFunc, layouts: Mapping[int, Layout], length: int
) -> dict[int, Layout]:
    """Return the layouts (see `position_form`) of an operator's results, if they have positions.

    Parameters
    ----------
    kernel: the operator's kernel for one length. `goes_through_positions` is true of the kernel.
    layouts: the layouts of the inputs that have positions, by the inputs' indices.

    Raises
    ------
    UnprovenError
        The positions of an input lie along another axis than the steps of the kernel.
    """
    along = {
        i: one_axis([int(size) for size in kernel.params[i].shape], axis, length)
        for i, axis in enumerate(_axes(kernel))
        if axis >= 0
    }
    count = len(op.inputs)
    if {i: layout for i, layout in along.items() if i < count} != dict(layouts):
        raise UnprovenError(
            "goes through the positions in order, but an input has its positions along another axis"
        )
    return {op.outputs[i - count]: layout for i, layout in along.items() if i >= count}


def results_of_all(op: Operator, kernel: tirx.PrimFunc) -> set[int]:
    """The results that depend on all positions, also padded ones, such as the state at the end."""
    axes = _axes(kernel)[len(op.inputs) :]
    return {v for v, axis in zip(op.outputs, axes, strict=True) if axis == AFTER_LAST_STEP}


def bounds_after(
    program: Program, op: Operator, inputs: Sequence[Bounds], layouts: Mapping[int, Layout]
) -> dict[int, Bounds]:
    """Compute the bounds of an operator's results from the bounds of its inputs.

    A result at a padded position may depend on given positions. So the bounds for padded positions
    are computed from the bounds of all elements of the inputs.

    Raises
    ------
    UnprovenError
        A result is a sum of whole numbers whose bound is unknown.
    """
    kernel = program.kernels[op.kernel]
    found = {}
    for v in op.outputs:
        dtype, positions = program.values[v].dtype, len(layouts.get(v, (1,))) - 1
        if all(map(_is_data, inputs[:1])) and all(map(_is_ordinary, inputs)):
            bound = ordinary(dtype)
        elif ADDS in kernel.attrs:
            bound = _of_sum(inputs[0].all, int(kernel.params[0].shape[1]), dtype)
        else:
            bound = ANY
        found[v] = everywhere(bound, positions)
    return found


def _of_sum(each: Bound, count: int, dtype: str) -> Bound:
    """The bound of a sum of at most `count` numbers.

    The proof assumes that a divisor is not 0 if its bound is wider than `WIDE`. The sum may be
    exactly 0, so its bound must not be wider than `WIDE`: it is narrower, or unknown.
    """
    found, whole = Bound(count * min(each.least, 0), count * max(each.greatest, 0)), ordinary(dtype)
    is_small = found.greatest - found.least <= WIDE
    if "float" in dtype:
        return widened(found, dtype) if is_small else ANY
    if found.least < whole.least or found.greatest > whole.greatest:
        found = whole  # The sum may overflow, and then it may be any number of the type.
    if found.greatest - found.least > WIDE:
        raise UnprovenError("adds up whole numbers, and it is not known how large the sums are")
    return found


def _is_data(bounds: Bounds) -> bool:
    """Whether each bound is so wide that nothing else is known about the elements (see `WIDE`).

    Padded positions with bounds of exactly 0 are ignored.
    """
    each = (bounds.all, *(b for b in (*bounds.filled, bounds.all_filled) if b != ZERO))
    return all(b.greatest - b.least > WIDE for b in each)


def _is_ordinary(bounds: Bounds) -> bool:
    """Whether all elements have absolute values of at most `ORDINARY`, and none of them is NaN."""
    each = (bounds.all, *bounds.filled, bounds.all_filled)
    return all(b.least >= -ORDINARY and b.greatest <= ORDINARY for b in each)


def _axes(kernel: tirx.PrimFunc) -> list[int]:
    return [int(axis) for axis in (kernel.attrs or {}).get(STEPS, ())]
