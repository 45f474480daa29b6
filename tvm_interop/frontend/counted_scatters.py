"""Writes the rows of counted tensors to a tensor of a fixed size.

The tensor gets a further row, to which all rows beyond the count are written. It is then cut off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..lowering.static_shape import static_shape
from .counted import Counted, CountedTensors, Node, shape_of


def elements_scattered(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    """Return the result of a `ScatterElements` with counted indices and updates."""
    indices, shape = _indices(node)
    axis = int(node.attrs.get("axis", 0)) % len(shape)
    if indices.axis != axis and indices.most > shape[indices.axis]:
        raise node.refused()  # The largest size does not fit, even if the count does.
    places = _with_a_further_place(bb, indices.whole, indices, shape[axis])
    return _scattered(bb, node, places, axis)


def rows_scattered(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    """Return the result of a `ScatterND` with counted indices and updates."""
    indices, shape = _indices(node)
    last = len(indices.shape) - 1
    if indices.axis == last or not indices.shape[last]:
        raise node.refused()
    parts = [
        bb.emit(relax.op.take(indices.whole, relax.const([at], "int64"), last, mode="clip"))
        for at in range(indices.shape[last])
    ]
    parts[0] = _with_a_further_place(bb, parts[0], indices, shape[0])
    places = bb.emit(relax.op.concat(parts, last)) if len(parts) > 1 else parts[0]
    return _scattered(bb, node, places, 0)


def _indices(node: Node) -> tuple[Counted, tuple[int, ...]]:
    """Return the indices, and the shape of the tensor that is written to."""
    data, indices, updates = node.found
    shape = shape_of(node.inputs[0])
    if data is not None or indices is None or updates is None or not shape or 0 in shape:
        raise node.refused()
    if updates.axis != indices.axis or not updates.count.same_as(indices.count):
        raise node.refused()
    return indices, shape


def _with_a_further_place(
    bb: relax.BlockBuilder, places: Any, indices: Counted, size: int
) -> relax.Var:
    """Return places from 0 on. Beyond the count of the indices, it is the place after the last."""
    dtype = str(places.ty.dtype)
    end = relax.const(size, dtype)
    is_from_end = bb.emit(relax.op.less(places, relax.const(0, dtype)))
    places = bb.emit(relax.op.where(is_from_end, bb.emit(relax.op.add(places, end)), places))
    return bb.emit(relax.op.where(indices.inside_whole(bb), places, end))


def _scattered(bb: relax.BlockBuilder, node: Node, places: Any, axis: int) -> Any:
    """Compute the node with a further row of the tensor along an axis, and cut the row off."""
    data, updates = node.inputs[0], node.found[2]
    assert updates is not None, "updates are counted"
    shape = static_shape(data.ty) or ()
    row = np.zeros([*shape[:axis], 1, *shape[axis + 1 :]], str(data.ty.dtype))
    wide = bb.emit(relax.op.concat([data, relax.const(row)], axis))
    given = [wide, places, updates.whole]
    result = bb.emit(bb.normalize(node.compute(type(node.inputs)(given))))
    return bb.normalize(relax.op.strided_slice(result, [axis], [0], [shape[axis]]))
