"""Converts ONNX's `Col2Im`, which sums overlapping blocks into an image.

TVM has no kernel for this operator.

Source: the operator's definition in the ONNX specification.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from ..lowering.static_shape import static_shape
from .constants import constant_array
from .pool_windows import Window, given_windows


def import_col2im(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return the images. Each element is the sum of the block elements at its position.

    Return None if a shape is unknown or if the image or block size is not a constant.
    """
    x, sizes, blocks = inputs[0], constant_array(inputs[1]), constant_array(inputs[2])
    shape = static_shape(x.ty)
    if shape is None or sizes is None or blocks is None:
        return None
    lengths = [int(size) for size in sizes]
    windows = given_windows(blocks.tolist(), attrs)
    wide = [n + w.before + w.after for n, w in zip(lengths, windows, strict=True)]
    images, steps = shape[1] // prod(w.size for w in windows), _places(windows, lengths, wide)
    # The array `updates` has a row for each element of each block, and a column for each channel of
    # each image.
    parts = bb.emit(relax.op.reshape(x, (shape[0] * images, -1)))
    updates = bb.emit(relax.op.permute_dims(parts, [1, 0]))
    empty = bb.emit(relax.op.zeros((prod(wide), shape[0] * images), str(x.ty.dtype)))
    summed = bb.emit(relax.op.scatter_nd(empty, relax.const(steps[:, None]), updates, "add"))
    turned = bb.emit(relax.op.permute_dims(summed, [1, 0]))
    result = bb.emit(relax.op.reshape(turned, (shape[0], images, *wide)))
    begins = [w.before for w in windows]
    ends = [w.before + n for w, n in zip(windows, lengths, strict=True)]
    return relax.op.strided_slice(result, list(range(2, 2 + len(lengths))), begins, ends)


def _places(
    windows: Sequence[Window], lengths: Sequence[int], wide: Sequence[int]
) -> np.ndarray[Any, Any]:
    """Return, for each element of each block, its flat position in the padded image.

    The result begins with the positions of the first element of every block. The positions of the
    second element of every block follow, and so on.
    """
    inner = itertools.product(*(range(w.size) for w in windows))
    steps = [range(w.steps(n, False)) for w, n in zip(windows, lengths, strict=True)]
    outer = list(itertools.product(*steps))
    found = []
    for element in inner:
        for step in outer:
            at = [
                s * w.stride + e * w.dilation
                for s, e, w in zip(step, element, windows, strict=True)
            ]
            found.append(int(np.ravel_multi_index(at, wide)))
    return np.array(found, np.int64)
