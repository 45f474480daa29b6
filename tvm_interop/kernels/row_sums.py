"""Vectorises sums along contiguous axes, such as the mean of a row or of an image's plane."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ..machine.cpu_features import Registers
from .expressions import uses

_VECTORS = 4
"""The largest number of vectors of partial sums that are added up independently for a row.

Each addition waits for the addition before it to the same vector. With several vectors, the
processor need not wait.
"""
_FEWEST_LANES = 4
"""The least number of lanes in a vector. Narrower vectors do not make a kernel faster."""
_FEWEST_TURNS = 4
"""The least number of loop iterations for a row.

With fewer iterations, too much of the time is spent on adding up the lanes at the end.
"""


def vectorize_along_sum(schedule: s_tir.Schedule, block: Any, registers: Registers) -> bool:
    """Sum each row in vectors, then add up their lanes.

    The number of lanes and the order of additions depend only on the tensor's shape and on the
    width of vectors. So the rounding of the sum depends only on these too. Maxima and minima are
    not vectorised, because TVM cannot split reductions that handle NaN.

    Returns
    -------
    Whether `block` is a sum along contiguous axes with rows that are long enough. If not, the
    schedule is unchanged.
    """
    found = schedule.get(block)
    loops = schedule.get_loops(block)
    in_row = _axes_in_row(found)
    if len(loops) != len(found.iter_vars) or not in_row:
        return False
    row_loops = loops[-in_row:]
    length = prod(int(schedule.get(loop).extent) for loop in row_loops)
    width = registers.nbytes * 8 // max(tvm.DataType(str(found.body.buffer.dtype)).bits, 8)
    shape = _lanes(length, width)
    if shape is None:
        return False
    vectors, lanes = shape
    summed = [axis.iter_type for axis in found.iter_vars].index(tirx.IterVar.CommReduce)
    row = schedule.fuse(*row_loops)
    _, lane_loop = schedule.split(row, [None, vectors * lanes])
    _sum_by_lane(schedule, block, lane_loop, summed)
    if vectors > 1:
        row = schedule.get_loops(block)[-1]
        _, lane_loop = schedule.split(row, [vectors, lanes])
        _sum_by_lane(schedule, block, lane_loop, summed)
    return True


def _sum_by_lane(schedule: s_tir.Schedule, block: Any, lane_loop: Any, summed: int) -> None:
    """Make a new block that computes a sum for each lane; `block` then adds up the lanes.

    Parameters
    ----------
    summed: the position of the first summed loop among the loops of the new block.
    """
    rank = len(schedule.get(block).body.buffer.shape)
    by_lane = schedule.rfactor(lane_loop, rank)
    loops = schedule.get_loops(by_lane)
    schedule.vectorize(loops[-1])
    init = schedule.decompose_reduction(by_lane, loops[summed])
    schedule.vectorize(schedule.get_loops(init)[-1])


def _lanes(length: int, width: int) -> tuple[int, int] | None:
    """The number of vectors of partial sums for a row, and the number of lanes in each vector; None
    if the row is too short.

    Parameters
    ----------
    length: the number of the row's elements.
    width: the number of lanes of the widest vector.
    """
    lanes = max(n for n in range(1, width + 1) if length % n == 0)
    if lanes < _FEWEST_LANES or length < _FEWEST_TURNS * lanes:
        return None
    for vectors in range(_VECTORS, 1, -1):
        if length % (vectors * lanes) == 0 and length >= _FEWEST_TURNS * vectors * lanes:
            return vectors, lanes
    return 1, lanes


def _axes_in_row(block: tirx.SBlock) -> int:
    """The number of last axes that are summed over and are contiguous in each tensor of the sum.

    The result is zero in three cases: a tensor is not read in the order of the axes, the block is
    not a sum of one value, or an axis that is not summed over follows a summed axis.
    """
    if not isinstance(block.body, tirx.BufferStore) or not isinstance(block.body.value, tirx.Add):
        return 0
    axes = [axis.var for axis in block.iter_vars]
    kinds = [axis.iter_type for axis in block.iter_vars]
    trailing = 0
    while trailing < len(kinds) and kinds[-1 - trailing] == tirx.IterVar.CommReduce:
        trailing += 1
    if trailing != kinds.count(tirx.IterVar.CommReduce):
        return 0
    loads: list[Any] = []
    tvm_ffi.structural_walk(block.body.value, (tvm.ir.TensorLoad, loads.append))
    summed = [load for load in loads if _uses(load.indices, axes[len(axes) - trailing :])]
    rows = [_in_a_row(load, axes, trailing) for load in summed]
    return min(rows, default=0)


def _in_a_row(load: Any, axes: list[Any], most: int) -> int:
    """How many of the last axes are, in the same order, the last indices of `load`.

    At most `most` axes are counted.
    """
    count = 0
    for index, axis in zip(reversed(load.indices), reversed(axes), strict=False):
        if count == most or not index.same_as(axis):
            break
        count += 1
    return count


def _uses(indices: Any, variables: list[Any]) -> bool:
    return any(uses(index, var) for index in indices for var in variables)
