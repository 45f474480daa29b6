"""Writes the rows of counted tensors to other tensors.

While the operator runs, the tensor that is written to has one extra row. All rows beyond the count
are written to this extra row, which is then cut off.
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
    if node.found[0] is not None:
        raise node.refused()
    axis = int(node.attrs.get("axis", 0)) % len(shape)
    if indices.axis != axis and indices.most > shape[indices.axis]:
        raise node.refused()  # At their largest size, the indices are larger than the data.
    places = _with_a_further_place(bb, indices.whole, indices, shape[axis], None)
    return _scattered(bb, node, places, axis)


def rows_scattered(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    """Return the result of a `ScatterND` with counted indices and updates."""
    indices, shape = _indices(node)
    last = len(indices.shape) - 1
    data = node.found[0]
    if indices.axis == last or not indices.shape[last] or (data is not None and data.axis):
        raise node.refused()
    parts = [
        bb.emit(relax.op.take(indices.whole, relax.const([at], "int64"), last, mode="clip"))
        for at in range(indices.shape[last])
    ]
    size = None if data is None else data.count
    parts[0] = _with_a_further_place(bb, parts[0], indices, shape[0], size)
    places = bb.emit(relax.op.concat(parts, last)) if len(parts) > 1 else parts[0]
    result = _scattered(bb, node, places, 0)
    if data is None:
        return result
    return tensors.standing(bb, result, 0, data.count, data.origin)


def _indices(node: Node) -> tuple[Counted, tuple[int, ...]]:
    """Return the indices of a node, and the largest shape of the tensor that it writes to."""
    _, indices, updates = node.found
    shape = shape_of(node.inputs[0])
    if indices is None or updates is None or not shape or 0 in shape:
        raise node.refused()
    if updates.axis != indices.axis or not updates.count.same_as(indices.count):
        raise node.refused()
    return indices, shape


def _with_a_further_place(
    bb: relax.BlockBuilder, places: Any, indices: Counted, most: int, size: Any
) -> relax.Var:
    """Return `places` counted from the start, with `most` for each place beyond the count.

    Negative places count from the end.

    Parameters
    ----------
    most: the largest size of the axis to which the places refer. This is also the position of the
        further row.
    size: the size of this axis, if it is a count; None if it is always `most`.
    """
    dtype = str(places.ty.dtype)
    end = relax.const(most, dtype)
    size = end if size is None else bb.emit(relax.op.astype(size, dtype))
    is_from_end = bb.emit(relax.op.less(places, relax.const(0, dtype)))
    places = bb.emit(relax.op.where(is_from_end, bb.emit(relax.op.add(places, size)), places))
    return bb.emit(relax.op.where(indices.inside_whole(bb), places, end))


def _scattered(bb: relax.BlockBuilder, node: Node, places: Any, axis: int) -> Any:
    """Add a row to the tensor along an axis, compute the node, and cut the row off the result."""
    old, _, updates = node.found
    data = node.inputs[0] if old is None else old.whole
    assert updates is not None, "updates are counted"
    shape = static_shape(data.ty) or ()
    row = np.zeros([*shape[:axis], 1, *shape[axis + 1 :]], str(data.ty.dtype))
    wide = bb.emit(relax.op.concat([data, relax.const(row)], axis))
    given = [wide, places, updates.whole]
    result = bb.emit(bb.normalize(node.compute(type(node.inputs)(given))))
    return bb.normalize(relax.op.strided_slice(result, [axis], [0], [shape[axis]]))
