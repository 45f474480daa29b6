"""Converts `ReverseSequence` and `TensorScatter`, for which TVM has no converter, and `Compress`.

`ReverseSequence` and `TensorScatter` address rows of a tensor at positions that are computed at run
time. A position out of range is replaced by the nearest valid position. `Compress` takes rows at
constant positions.

Source: the operators' definitions in the ONNX specification.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..lowering.static_shape import static_shape
from .constants import constant_array, number_like
from .empty import empty_constant


def import_compress(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Take the rows for which the constant condition, of one dimension, is true.

    A row is a slice along the axis. If no axis is given, it is an element of the flattened tensor.
    Rows past the end of the condition are left out. Return None if the shape is unknown.
    """
    x, known = inputs[0], constant_array(inputs[1])
    shape = static_shape(x.ty)
    if known is None or shape is None:
        return None
    axis = int(attrs["axis"]) % len(shape) if "axis" in attrs else 0
    if "axis" not in attrs:
        shape = (math.prod(shape),)
        x = bb.emit(relax.op.reshape(x, shape))
    # The condition may be longer than the axis. Its entries past the last row have no effect.
    rows = np.flatnonzero(known[: shape[axis]])
    if not rows.size:
        return empty_constant((*shape[:axis], 0, *shape[axis + 1 :]), str(x.ty.dtype))
    return relax.op.take(x, relax.const(rows, "int64"), axis, mode="clip")


def import_reverse_sequence(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Reverse the first elements of each sequence of a batch.

    The second input holds the number of elements to reverse in each sequence. Return None if the
    shape is unknown.
    """
    x, lengths = inputs
    shape = static_shape(x.ty)
    if shape is None:
        return None
    time, batch = int(attrs.get("time_axis", 0)), int(attrs.get("batch_axis", 1))
    order = [batch, time, *(a for a in range(len(shape)) if a not in (batch, time))]
    number, size = shape[batch], shape[time]
    steps = relax.const(np.arange(size).reshape(1, size), "int64")
    length = bb.emit(relax.op.reshape(bb.emit(relax.op.astype(lengths, "int64")), (number, 1)))
    last = relax.op.subtract(length, number_like(length, 1))
    turned = bb.emit(relax.op.subtract(bb.emit(last), steps))
    is_within = bb.emit(relax.op.less(steps, length))
    places = bb.emit(relax.op.where(is_within, turned, steps))
    rows = _rows(bb, bb.emit(relax.op.permute_dims(x, order)), places)
    return relax.op.permute_dims(rows, [order.index(a) for a in range(len(shape))])


def import_tensor_scatter(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return a copy of the first input, the cache, with some rows from the second, the update.

    The third input holds the first row to replace in each sequence of the batch. The default is row
    0. Return None if a shape is unknown.
    """
    cache, update, begins = (*inputs, None)[:3]
    shape, new = static_shape(cache.ty), static_shape(update.ty)
    if shape is None or new is None:
        return None
    axis = int(attrs.get("axis", -2)) % len(shape)
    order = [0, axis, *(a for a in range(1, len(shape)) if a != axis)]
    size, count = shape[axis], new[axis]
    begin = relax.const(np.zeros((shape[0], 1)), "int64")
    if begins is not None:
        begin = bb.emit(relax.op.reshape(begins, (shape[0], 1)))
    steps = relax.const(np.arange(size).reshape(1, size), "int64")
    places = bb.emit(relax.op.subtract(steps, begin))
    if attrs.get("mode", b"linear") == b"circular":
        places = bb.emit(relax.op.floor_mod(places, relax.const(size, "int64")))
    zero, end = (relax.const(number, "int64") for number in (0, count))
    is_new = relax.op.logical_and(
        bb.emit(relax.op.greater_equal(places, zero)), bb.emit(relax.op.less(places, end))
    )
    old = bb.emit(relax.op.permute_dims(cache, order))
    rows = _rows(bb, bb.emit(relax.op.permute_dims(update, order)), places)
    wide = (shape[0], size, *[1] * (len(shape) - 2))
    mixed = bb.emit(relax.op.where(bb.emit(relax.op.reshape(bb.emit(is_new), wide)), rows, old))
    return relax.op.permute_dims(mixed, [order.index(a) for a in range(len(shape))])


def _rows(bb: relax.BlockBuilder, x: Any, places: Any) -> Any:
    """Return the rows of `x` at `places`.

    The shapes are (batch, rows, ...) for `x`, (batch, number) for `places` and (batch, number, ...)
    for the result.
    """
    batch, size, *rest = (int(n) for n in x.ty.shape)
    last = relax.const(size - 1, "int64")
    inside = relax.op.minimum(relax.op.maximum(places, relax.const(0, "int64")), last)
    first = relax.const(np.arange(batch).reshape(batch, 1) * size, "int64")
    flat = bb.emit(relax.op.reshape(bb.emit(relax.op.add(bb.emit(inside), first)), (-1,)))
    together = bb.emit(relax.op.reshape(x, (batch * size, *rest)))
    taken = bb.emit(relax.op.take(together, flat, 0, mode="clip"))
    return bb.emit(relax.op.reshape(taken, (batch, -1, *rest)))
