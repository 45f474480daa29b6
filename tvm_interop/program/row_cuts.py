"""Divides an operator that slides a window over an image by rows of the result."""

from __future__ import annotations

from math import gcd, lcm
from typing import Protocol

from .cuts import RowCut, Tensors, aligned_steps, lies_apart
from .windows import Window


class _Slides(Tensors, Protocol):
    @property
    def window(self) -> Window: ...
    @property
    def has_sum(self) -> bool: ...
    @property
    def reads_rows_of_whole(self) -> bool: ...


def row_cuts(op: _Slides, parts: int, axis: int) -> list[RowCut]:
    """Divide `op`, which has a single image with its rows along `axis`, into at most `parts` parts.

    If the returned list has fewer than 2 parts, `op` is not divided.

    Each part begins at an aligned address of the result, and of the tensor that `op` adds, if any.
    If each part gets the whole image (`reads_rows_of_whole`), it may begin at any row of the image.
    If not, each part must begin at an aligned address of the image too, and the image's rows must
    be contiguous in memory. If this is impossible, `op` is not divided.
    """
    data, made = op.shapes[0], op.shapes[-1]
    is_cut = op.reads_rows_of_whole
    if data[0] != 1 or (lies_apart(op, 0, axis) and not is_cut):
        return []
    if any(lies_apart(op, image, axis) for image in (-1, *[-2] * op.has_sum)):
        return []
    read_step = 1 if is_cut else aligned_steps(op, 0, axis)
    made_step = aligned_steps(op, -1, axis)
    if op.has_sum:
        made_step = lcm(made_step, aligned_steps(op, -2, axis))
    window = op.window
    stride, padding, height = window.strides[0], window.padding[0], data[axis]
    reach = (window.size[0] - 1) * window.dilation[0] + 1
    step = lcm(made_step, read_step // gcd(read_step, stride))
    steps = -(-made[axis] // step)
    count = min(parts, steps)
    cuts = []
    for i in range(count):
        begin, end = steps * i // count * step, min(steps * (i + 1) // count * step, made[axis])
        first, last = begin * stride - padding, (end - 1) * stride + reach - padding
        # The operator is not divided in two cases: a part needs no row of the image, or the first
        # row that a part needs is not at an aligned address.
        low = max(first, 0) // read_step * read_step
        high = min(last, height)
        if low != max(first, 0) or high <= low:
            return []
        cuts.append(RowCut((begin, end), (low, high), max(-first, 0), max(last - height, 0)))
    return cuts
