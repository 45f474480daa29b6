"""Tiles element-wise kernels that read with a large stride, as a transposition does."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ..machine.cpu_features import Registers

_FEWEST_LANES = 4
"""The least number of lanes in a vector. Narrower vectors do not make a kernel faster."""
_LEAST_WORK = 1 << 10
"""The least number of elements for which tiles are faster. Smaller tensors fit into the L1 cache,
so they need no tiles."""


def tile_across_memory(schedule: s_tir.Schedule, block: Any, registers: Registers) -> Any | None:
    """Tile an element-wise block whose output and one input are contiguous along different axes.

    The vectors of a tile read the same few cache lines, one element from each line. If whole rows
    were written instead of tiles, the reads would use more cache lines than the L1 cache holds.

    Returns
    -------
    The loop around the tiles, into which all outer loops are fused. None if the block is small or
    no input is contiguous along another axis than the output. If the result is None, the schedule
    is unchanged.
    """
    found = schedule.get(block)
    loops = schedule.get_loops(block)
    extents = [int(schedule.get(loop).extent) for loop in loops]
    wide = [i for i, extent in enumerate(extents) if extent > 1]
    if len(loops) != len(found.iter_vars) or len(wide) < 2 or prod(extents) < _LEAST_WORK:
        return None
    across = _axis_read_in_rows(found, wide)
    if across is None:
        return None
    inner = wide[-1]
    itemsize = max(tvm.DataType(str(found.body.buffer.dtype)).bits // 8, 1)
    most = registers.nbytes // itemsize
    lanes, rows = _tile_size(extents[inner], most), _tile_size(extents[across], most)
    columns, lane = schedule.split(loops[inner], [None, lanes])
    tiles, row = schedule.split(loops[across], [None, rows])
    others = [loop for i, loop in enumerate(loops) if i not in (across, inner)]
    schedule.reorder(*others, tiles, columns, row, lane)
    if extents[inner] % lanes == 0 and lanes >= _FEWEST_LANES:
        # If the tile does not divide the axis, the loop has a condition, and cannot be vectorised.
        schedule.vectorize(lane)
    return schedule.fuse(*others, tiles)


def _axis_read_in_rows(block: tirx.SBlock, wide: list[int]) -> int | None:
    """The axis that is contiguous in an input but not in the output.

    Parameters
    ----------
    wide: the axes with more than one index.

    Returns
    -------
    The position of the axis that is contiguous in an input but not in the output. None if no input
    has such an axis, or if the output is not written in order.
    """
    axes = [axis.var for axis in block.iter_vars]
    store = block.body
    if not isinstance(store, tirx.BufferStore) or len(store.indices) != len(axes):
        return None
    if not all(index.same_as(axis) for index, axis in zip(store.indices, axes, strict=True)):
        return None
    loads: list[Any] = []
    tvm_ffi.structural_walk(store.value, (tvm.ir.TensorLoad, loads.append))
    for load in loads:
        sizes = [int(size) for size in load.source.ty.shape]
        indices = [index for index, size in zip(load.indices, sizes, strict=True) if size > 1]
        read = [_axis_of(index, axes) for index in indices]
        if read and wide[-1] in read[:-1] and read[-1] in wide[:-1]:
            return read[-1]
    return None


def _axis_of(index: Any, axes: list[Any]) -> int | None:
    return next((i for i, axis in enumerate(axes) if index.same_as(axis)), None)


def _tile_size(extent: int, most: int) -> int:
    """The length of a tile's side: the largest divisor of `extent` up to `most`.

    If the largest divisor is below `_FEWEST_LANES`, the length is the smaller of `most` and
    `extent` instead.
    """
    divisor = max(n for n in range(1, most + 1) if extent % n == 0)
    return divisor if divisor >= _FEWEST_LANES else min(most, extent)
