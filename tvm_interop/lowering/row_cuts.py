"""Divides what slides a window over an image, by rows of the result."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm

from ..program.library_op import LibraryOp
from ..program.storage import ALIGNMENT, BLOCK, stored_nbytes


@dataclass(frozen=True)
class RowCut:
    """One part.

    Attributes
    ----------
    made, read: the rows of the result, and those of the image that they are made of: begin and end.
    top, bottom: rows of padding that are left to this part.
    """

    made: tuple[int, int]
    read: tuple[int, int]
    top: int
    bottom: int


def row_cuts(op: LibraryOp, parts: int, axis: int) -> list[RowCut]:
    """`op`, on one image whose rows go along `axis`, in up to `parts` parts; fewer than 2 for none.

    Each part's rows begin at an aligned address, of the result, of a tensor that is added, and of
    the image. Where the image's rows lie apart, they can be taken from anywhere; but only a plain
    image can be read so.
    """
    data, made = op.shapes[0], op.shapes[-1]
    is_cut = reads_cut(op, axis)
    if data[0] != 1 or (lies_apart(op, 0, axis) and not is_cut):
        return []
    if any(lies_apart(op, image, axis) for image in (-1, *[-2] * op.has_sum)):
        return []
    read_step = 1 if is_cut else aligned_steps(op, 0, axis)
    made_step = aligned_steps(op, -1, axis)
    if op.has_sum:
        made_step = lcm(made_step, aligned_steps(op, -2, axis))
    stride, padding, height = op.strides[0], op.padding[0], data[axis]
    reach = (op.window[0] - 1) * op.dilation[0] + 1
    step = lcm(made_step, read_step // gcd(read_step, stride))
    steps = -(-made[axis] // step)
    count = min(parts, steps)
    cuts = []
    for i in range(count):
        begin, end = steps * i // count * step, min(steps * (i + 1) // count * step, made[axis])
        first, last = begin * stride - padding, (end - 1) * stride + reach - padding
        # A part may read more rows than it needs, to begin aligned.
        low = max(first, 0) // read_step * read_step
        high = min(last, height)
        if low != max(first, 0) or high <= low:
            return []
        cuts.append(RowCut((begin, end), (low, high), max(-first, 0), max(last - height, 0)))
    return cuts


def lies_apart(op: LibraryOp, argument: int, axis: int) -> bool:
    """Whether rows of this image, which go along `axis`, are no slice of its memory."""
    shape = op.shapes[argument]
    at_once = BLOCK if op.layouts[argument] == "blocked16" else 1
    return axis == 2 and (shape[0] > 1 or shape[1] > at_once)


def reads_cut(op: LibraryOp, axis: int) -> bool:
    """Whether parts by rows take the whole image, and read their rows out of it (`LibraryOp.cut`).

    Those of a plain image may lie apart, and begin anywhere. So may those of an image of integers
    whose rows are no multiple of the alignment.
    """
    if op.op == "quantised_conv2d":
        return aligned_steps(op, 0, axis) > 1
    return axis == 2 and op.layouts[0] == "plain"


def aligned_steps(op: LibraryOp, argument: int, axis: int) -> int:
    """The fewest steps along `axis` of this tensor after which an address is aligned again.

    All that one step holds must lie together.
    """
    step = list(op.shapes[argument])
    step[axis] = 1
    nbytes = stored_nbytes(tuple(step), op.stored_types[argument], op.layouts[argument])
    return ALIGNMENT // gcd(ALIGNMENT, nbytes)
