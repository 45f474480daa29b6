"""Divides what slides a window over an image, by rows of the result."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm, prod

import numpy as np

from ..program.library_op import LibraryOp
from ..program.storage import ALIGNMENT


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


def row_cuts(op: LibraryOp, parts: int) -> list[RowCut]:
    """`op`, on one image with its channels last, in up to `parts` parts; fewer than two for none.

    Each part's rows begin at an aligned address, of the image and of the result.
    """
    data, made = op.shapes[0], op.shapes[-1]
    if data[0] != 1:
        return []
    read_step, made_step = (
        _aligned_rows(shape, dtype)
        for shape, dtype in zip((data, made), (op.stored[0], op.stored[-1]), strict=True)
    )
    stride, padding, height = op.strides[0], op.padding[0], data[1]
    reach = (op.window[0] - 1) * op.dilation[0] + 1
    step = lcm(made_step, read_step // gcd(read_step, stride))
    steps = -(-made[1] // step)
    count = min(parts, steps)
    cuts = []
    for i in range(count):
        begin, end = steps * i // count * step, min(steps * (i + 1) // count * step, made[1])
        first, last = begin * stride - padding, (end - 1) * stride + reach - padding
        # A part may read more rows than it needs, to begin aligned.
        low = max(first, 0) // read_step * read_step
        high = min(last, height)
        if low != max(first, 0) or high <= low:
            return []
        cuts.append(RowCut((begin, end), (low, high), max(-first, 0), max(last - height, 0)))
    return cuts


def _aligned_rows(shape: tuple[int, ...], dtype: str) -> int:
    """The fewest rows after which an address is aligned again."""
    nbytes = prod(shape[2:]) * np.dtype(dtype).itemsize
    return ALIGNMENT // gcd(ALIGNMENT, nbytes)
