"""Decides into how many parts an operator is divided, and how the parts share its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm, prod
from typing import Protocol

import numpy as np

from .storage import ALIGNMENT, Layout, block_of, stored_nbytes

_FLOPS_A_PART = 1_000_000
"""A part of a divided operator has at least this many floating-point operations. A modern core
computes them in five to ten microseconds."""
_READS_A_PART = 1 << 15
"""If reading limits the speed of an operator, as in poolings and depthwise convolutions, each part
into which it is divided reads at least this many values. A core takes some microseconds to read
them."""


@dataclass(frozen=True)
class Cut:
    """How an argument of an operator is divided: along `axis`, at multiples of `step` indices.

    If `axis` is None, the argument is not divided. With `lies_apart`, the elements that a part
    needs are not contiguous in memory. Then each part of the operator gets the whole tensor.
    """

    axis: int | None
    step: int = 1
    lies_apart: bool = False


WHOLE = Cut(None)
"""The `Cut` of an argument that is not divided: each part takes the whole argument."""


@dataclass(frozen=True)
class RowCut:
    """One part of an operator that is divided by rows.

    Attributes
    ----------
    made: begin and end of the result rows that the part computes.
    read: begin and end of the image rows that the part reads.
    top, bottom: number of rows of padding above and below the rows that the part reads.
    """

    made: tuple[int, int]
    read: tuple[int, int]
    top: int
    bottom: int


class Tensors(Protocol):
    """The properties of a `LibraryOp` that decide how it may be divided."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def layouts(self) -> tuple[Layout, ...]: ...
    @property
    def stored_types(self) -> tuple[str, ...]: ...
    @property
    def flops(self) -> int: ...


def most_products(op: Tensors, *, read: int) -> int:
    """The largest number of parts into which it is worth dividing an operator that sums up
    products.

    An operator takes the time to compute its products or the time to read their factors, whichever
    is longer. For an image with few pixels, or a matrix with a single row, reading takes longer
    than computing.

    Parameters
    ----------
    read: the number of elements of the factors that are divided among the parts. A factor that each
        part reads completely does not count, because a division does not shorten the time to read
        it.
    """
    return max(op.flops // _FLOPS_A_PART, read // _READS_A_PART)


def most_reads(op: Tensors, numbers_each: int = 1) -> int:
    """The largest number of parts into which it is worth dividing an operator whose speed is
    limited by reading.

    To compute a number of its result, the operator reads `numbers_each` numbers.
    """
    return prod(op.shapes[-1]) * numbers_each // _READS_A_PART


def along_rows(op: Tensors) -> list[Cut] | None:
    """Cut an operator that works along the last axis of its data.

    The operator is cut along the first axis with more than one element, but never along the last
    axis. Return None if there is no such axis.
    """
    data = op.shapes[0]
    axis = next((a for a, dim in enumerate(data[:-1]) if dim > 1), None)
    if axis is None:
        return None
    by_axis = Cut(axis, aligned_step(op, [data], axis))
    return [by_axis, *[WHOLE] * (len(op.shapes) - 2), by_axis]


def aligned_step(op: Tensors, shapes: Sequence[tuple[int, ...]], axis: int) -> int:
    """The smallest step along `axis`, in indices, from one aligned address to another.

    The step holds for plain tensors of all given shapes, and for all types in which the operator's
    tensors are stored.
    """
    itemsize = min(np.dtype(dtype).itemsize for dtype in op.stored_types)
    inner = (itemsize * prod(shape[axis + 1 :]) for shape in shapes)
    return lcm(*(ALIGNMENT // gcd(ALIGNMENT, nbytes) for nbytes in inner))


def aligned_steps(op: Tensors, argument: int, axis: int) -> int:
    """The smallest step along `axis`, in indices, from one aligned address to another.

    `argument` is the index of the operator's tensor. All elements of the tensor that have the same
    index along `axis` must be contiguous in memory.
    """
    step = list(op.shapes[argument])
    step[axis] = 1
    nbytes = stored_nbytes(tuple(step), op.stored_types[argument], op.layouts[argument])
    return ALIGNMENT // gcd(ALIGNMENT, nbytes)


def lies_apart(op: Tensors, argument: int, axis: int) -> bool:
    """Whether neighbouring rows (along `axis`) of the image `argument` are not contiguous in
    memory.
    """
    shape = op.shapes[argument]
    return axis == 2 and (shape[0] > 1 or shape[1] > block_of(op.layouts[argument]))
