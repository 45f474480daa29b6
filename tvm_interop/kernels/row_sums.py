"""Sums along the axis that lies in a row in memory: the mean of a row, or of an image's plane."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ..machine.cpu_features import Registers

_VECTORS = 4
"""How many vectors a row is summed up in at most: an addition waits for the one before it."""
_FEWEST_LANES = 4
"""A vector of fewer lanes gains nothing."""
_FEWEST_TURNS = 4
"""A row that is summed up in fewer turns is too short: adding up the lanes takes time too."""


def vectorize_along_sum(schedule: s_tir.Schedule, block: Any, registers: Registers) -> bool:
    """Sum each row up in vectors, whose lanes are added up at the end.

    How many lanes there are follows from the shape and the width of vectors alone, and so do the
    bits of the sum. Maxima and the like are left as they are: TVM cannot take apart those that heed
    numbers that are none.

    Returns
    -------
    Whether `block` is of that kind and its rows are long enough. If not, nothing is changed.
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
    """Have a block of its own make a sum for each lane; `block` adds up the lanes.

    Parameters
    ----------
    summed: which loop is the first that is summed over.
    """
    rank = len(schedule.get(block).body.buffer.shape)
    by_lane = schedule.rfactor(lane_loop, rank)
    loops = schedule.get_loops(by_lane)
    schedule.vectorize(loops[-1])
    init = schedule.decompose_reduction(by_lane, loops[summed])
    schedule.vectorize(schedule.get_loops(init)[-1])


def _lanes(length: int, width: int) -> tuple[int, int] | None:
    """How many vectors, of how many lanes, divide a row of `length`; None where none do well.

    Parameters
    ----------
    width: lanes of the widest vector.
    """
    lanes = max(n for n in range(1, width + 1) if length % n == 0)
    if lanes < _FEWEST_LANES or length < _FEWEST_TURNS * lanes:
        return None
    for vectors in range(_VECTORS, 1, -1):
        if length % (vectors * lanes) == 0 and length >= _FEWEST_TURNS * vectors * lanes:
            return vectors, lanes
    return 1, lanes


def _axes_in_row(block: tirx.SBlock) -> int:
    """How many of the last axes are summed over and lie in a row in all that is read whole.

    Zero where something is read across rows, or something but one value is written.
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
    """How many of the last axes are the last indices of a load, in that order."""
    count = 0
    for index, axis in zip(reversed(load.indices), reversed(axes), strict=False):
        if count == most or not index.same_as(axis):
            break
        count += 1
    return count


def _uses(indices: Any, variables: list[Any]) -> bool:
    found: list[Any] = []
    for index in indices:
        tvm_ffi.structural_walk(index, (tirx.Var, found.append))
    return any(var.same_as(one) for var in variables for one in found)
