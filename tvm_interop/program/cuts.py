"""How the tensors of an operator may be divided between parts of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm, prod
from typing import Protocol

import numpy as np

from .storage import ALIGNMENT, BLOCK, Layout, stored_nbytes

_FLOPS_A_PART = 1_000_000
"""Floating-point operations a part has at least: five to ten microseconds on a core of today."""
_READS_A_PART = 1 << 15
"""Numbers that a part of a pooling or a depthwise convolution reads at least, or of a weight that
is divided: some microseconds."""


@dataclass(frozen=True)
class Cut:
    """How one argument is divided: along `axis`, in steps of `step` elements; whole for None.

    A part that `lies_apart` is no slice of memory: the operator takes the whole tensor.
    """

    axis: int | None
    step: int = 1
    lies_apart: bool = False


WHOLE = Cut(None)
"""Each part takes all of the argument."""


@dataclass(frozen=True)
class RowCut:
    """One part of what is divided by rows.

    Attributes
    ----------
    made, read: the rows of the result, and those of the image that they are made of: begin and end.
    top, bottom: rows of padding that are left to this part.
    """

    made: tuple[int, int]
    read: tuple[int, int]
    top: int
    bottom: int


class Tensors(Protocol):
    """What is to be known of an operator to divide it; see `LibraryOp`."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def layouts(self) -> tuple[Layout, ...]: ...
    @property
    def stored_types(self) -> tuple[str, ...]: ...
    @property
    def flops(self) -> int: ...


def most_products(op: Tensors, *, shares_weight: bool) -> int:
    """The parts of a sum of products of which each is worth being one.

    A product takes as long as its operations do, or reading its weight if that is longer: at few
    pixels, or a single row. Parts that share the weight each read all of it.
    """
    read = 0 if shares_weight else prod(op.shapes[1])
    return max(op.flops // _FLOPS_A_PART, read // _READS_A_PART)


def most_reads(op: Tensors, numbers_each: int = 1) -> int:
    """The parts worth it of what reads so many numbers for each of its result."""
    return prod(op.shapes[-1]) * numbers_each // _READS_A_PART


def along_rows(op: Tensors) -> list[Cut] | None:
    """What goes along the last axis of its data, by the first that has more than one element."""
    data = op.shapes[0]
    axis = next((a for a, dim in enumerate(data[:-1]) if dim > 1), None)
    if axis is None:
        return None
    by_axis = Cut(axis, aligned_step(op, [data], axis))
    return [by_axis, *[WHOLE] * (len(op.shapes) - 2), by_axis]


def aligned_step(op: Tensors, shapes: Sequence[tuple[int, ...]], axis: int) -> int:
    """The fewest elements of `axis` after which plain tensors of these shapes are aligned again.

    They may be kept as any type that the operator has a tensor of.
    """
    itemsize = min(np.dtype(dtype).itemsize for dtype in op.stored_types)
    inner = (itemsize * prod(shape[axis + 1 :]) for shape in shapes)
    return lcm(*(ALIGNMENT // gcd(ALIGNMENT, nbytes) for nbytes in inner))


def aligned_steps(op: Tensors, argument: int, axis: int) -> int:
    """The fewest steps along `axis` of this tensor after which an address is aligned again.

    All that one step holds must lie together.
    """
    step = list(op.shapes[argument])
    step[axis] = 1
    nbytes = stored_nbytes(tuple(step), op.stored_types[argument], op.layouts[argument])
    return ALIGNMENT // gcd(ALIGNMENT, nbytes)


def lies_apart(op: Tensors, argument: int, axis: int) -> bool:
    """Whether rows of this image, which go along `axis`, are no slice of its memory."""
    shape = op.shapes[argument]
    at_once = BLOCK if op.layouts[argument] == "blocked16" else 1
    return axis == 2 and (shape[0] > 1 or shape[1] > at_once)
