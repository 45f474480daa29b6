"""Converts ONNX's `MaxUnpool`, and those `MaxPool` nodes that also return positions.

The second output of `MaxPool` holds the positions of the largest elements. `MaxUnpool` writes
elements back to such positions.

Source: the definitions of `MaxPool` and `MaxUnpool` in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..kernels import loops
from ..lowering.static_shape import static_shape
from .constants import constant_array
from .indices import bounded
from .pool_windows import Window, given_windows


def pool_with_places(
    bb: relax.BlockBuilder,
    x: Any,
    windows: Sequence[Window],
    is_ceiled: bool,
    by_columns: bool,
) -> relax.Tuple:
    """Return the largest element of each window, and its position in the flattened `x`.

    Among equal elements, the position of the first one is returned.

    Parameters
    ----------
    is_ceiled: whether a window may extend past the end of an axis.
    by_columns: whether positions are counted in column-major order, with the first spatial axis
        innermost.
    """
    shape, dtype = static_shape(x.ty), str(x.ty.dtype)
    assert shape is not None  # The caller has checked that the shape is static.
    lengths = shape[2:]
    steps = [w.steps(n, is_ceiled) for w, n in zip(windows, lengths, strict=True)]
    images, inside = prod(shape[:2]), prod(lengths)
    made = places_kernel(images, lengths, steps, windows, dtype, by_columns)
    kernel = bb.add_func(made, "max_pool_with_places")
    flat = bb.emit(relax.op.reshape(x, (images, inside)))
    types = [relax.TensorType((images, prod(steps)), kind) for kind in (dtype, "int64")]
    found = bb.emit(relax.call_tir(kernel, [flat], types))
    fields = (bb.emit(relax.TupleGetItem(found, i)) for i in (0, 1))
    return relax.Tuple([bb.emit(relax.op.reshape(f, (*shape[:2], *steps))) for f in fields])


def import_max_unpool(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return a tensor of zeros, with the elements of the first input written at the positions in
    the second input.

    A position out of range is replaced by the nearest valid position.
    """
    x, places, wanted = (*inputs, None)[:3]
    shape = static_shape(x.ty)
    if shape is None:
        return None
    rank = len(shape) - 2
    windows = given_windows(attrs["kernel_shape"], attrs)
    whole = [
        (n - 1) * window.stride + window.size - window.before - window.after
        for n, window in zip(shape[2:], windows, strict=True)
    ]
    number = prod(shape[:2]) * prod(whole)
    inside = bounded(bb, bb.emit(relax.op.reshape(places, (-1,))), np.array(number))
    empty = bb.emit(relax.op.zeros((number,), str(x.ty.dtype)))
    flat = bb.emit(relax.op.reshape(x, (-1,)))
    filled = bb.emit(relax.op.scatter_elements(empty, inside, flat, axis=0))
    result = bb.emit(relax.op.reshape(filled, [*shape[:2], *whole]))
    given = None if wanted is None else constant_array(wanted)
    if given is None:
        return result
    # Positions are counted in the result without its padding, so the padding is added after
    # writing.
    added = [max(int(n) - m, 0) for n, m in zip(given[2:], whole, strict=True)]
    widths = [0, 0, 0, 0, *(width for after in added for width in (0, after))]
    wide = bb.emit(relax.op.nn.pad(result, widths, "constant", 0.0))
    axes, ends = list(range(2, 2 + rank)), [int(n) for n in given[2:]]
    return relax.op.strided_slice(wide, axes, [0] * rank, ends)


def places_kernel(
    images: int,
    lengths: Sequence[int],
    steps: Sequence[int],
    windows: Sequence[Window],
    dtype: str,
    by_columns: bool,
) -> tirx.PrimFunc:
    """Return a kernel for max pooling with positions, whose loops are written by hand.

    The kernel takes data of shape (images, elements). It returns values and int64 positions, each
    of shape (images, windows).
    """
    inside, number = prod(lengths), prod(steps)
    data = tirx.decl_buffer((images, inside), dtype, "data")
    values = tirx.decl_buffer((images, number), dtype, "values")
    places = tirx.decl_buffer((images, number), "int64", "places")
    # The position of the largest element so far in the window; -1 before the first element.
    best = tirx.decl_buffer((1,), "int64", "best")
    none, zero = loops.index(-1), loops.index(0)

    def offer(image: Any, at: Sequence[Any]) -> tirx.Stmt:
        """Return a statement that stores the position `at` in `best` if it is better.

        The position is better if its element is larger than the element at `best`. At the beginning
        `best` is -1, and any position is better. Nothing is stored if the position is outside of
        the data.
        """
        flat = _flat(at, lengths)
        exists = [tirx.And(i >= zero, i < n) for i, n in zip(at, lengths, strict=True)]
        # The kernel may evaluate both operands of the "and", so the index must always be valid.
        old = data[image, tirx.max(best[0], zero)]
        here = data[image, tirx.max(tirx.min(flat, loops.index(inside - 1)), zero)]
        wins = tirx.Or(best[0] < zero, here > old)
        return tirx.IfThenElse(tirx.all(*exists, wins), tirx.BufferStore(best, flat, [0]), None)

    def pool(image: Any, step: Sequence[Any]) -> tirx.Stmt:
        starts = [s * w.stride - w.before for s, w in zip(step, windows, strict=True)]
        offers = (
            offer(
                image,
                [s + k * w.dilation for s, k, w in zip(starts, inner, windows, strict=True)],
            )
            for inner in product(*(range(w.size) for w in windows))
        )
        column = _flat(step, steps)
        found = tirx.max(best[0], zero)
        counted = _by_columns(found, lengths) if by_columns else found
        return loops.in_turn(
            [
                tirx.BufferStore(best, none, [0]),
                *offers,
                tirx.BufferStore(values, data[image, found], [image, column]),
                tirx.BufferStore(places, image * inside + counted, [image, column]),
            ]
        )

    def nest(image: Any, outer: list[Any]) -> tirx.Stmt:
        if len(outer) == len(steps):
            return pool(image, outer)
        return loops.loop(steps[len(outer)], lambda i: nest(image, [*outer, i]))

    body = loops.loop(images, lambda image: nest(image, []))
    return loops.kernel([data, values, places], body, [best], op_pattern=loops.OPAQUE)


def _flat(at: Sequence[Any], lengths: Sequence[int]) -> Any:
    result: Any = loops.index(0)
    for i, length in zip(at, lengths, strict=True):
        result = result * length + i
    return result


def _by_columns(flat: Any, lengths: Sequence[int]) -> Any:
    """Convert the row-major position `flat` to column-major order."""
    result, step = loops.index(0), 1
    sizes = [prod(lengths[axis + 1 :]) for axis in range(len(lengths))]
    for length, size in zip(lengths, sizes, strict=True):
        result = result + tirx.indexmod(tirx.indexdiv(flat, size), length) * step
        step *= length
    return result
