"""Joins counted tensors by `Concat`."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from .counted import CountedTensors, Node, shape_of


def joined(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    """Return the result of a `Concat` with a counted tensor among its inputs."""
    first = node.first
    axis = int(node.attrs.get("axis", 1)) % len(first.shape)
    alike = [
        each is not None and each.axis == first.axis and each.count.same_as(first.count)
        for each in node.found
    ]
    if axis != first.axis:
        if not all(alike):
            raise node.refused()
        return tensors.standing(bb, node.whole(), first.axis, first.count, first.origin)
    return _one_after_another(tensors, bb, node, axis)


def _one_after_another(
    tensors: CountedTensors, bb: relax.BlockBuilder, node: Node, axis: int
) -> Any:
    """Join two tensors along the counted axis, so that the rows below their counts come first."""
    whole: Any = None
    count: Any = 0
    most = 0
    origin = node.first.origin
    for value, each in zip(node.inputs, node.found, strict=True):
        shape = shape_of(value)
        if shape is None or (each is not None and each.axis != axis):
            raise node.refused()
        if not shape[axis]:
            continue
        rows, number = (value, shape[axis]) if each is None else (each.whole, each.count)
        if whole is None:
            whole, count, most = rows, number, shape[axis]
            continue
        joined = bb.emit(relax.op.concat([whole, rows], axis))
        if not isinstance(count, int):
            # Row r of the result is row r of the first tensor if r is below `count`. Otherwise it
            # is row r - count of the second tensor.
            index = relax.const(np.arange(most + shape[axis]), "int64")
            is_first = bb.emit(relax.op.less(index, count))
            later = bb.emit(relax.op.add(index, relax.const(most, "int64")))
            later = bb.emit(relax.op.subtract(later, count))
            last = relax.const(most + shape[axis] - 1, "int64")
            later = bb.emit(relax.op.minimum(later, last))
            places = bb.emit(relax.op.where(is_first, index, later))
            joined = bb.emit(relax.op.take(joined, places, axis, mode="clip"))
        whole, most = joined, most + shape[axis]
        count = tensors.total(bb, count, number)
    return tensors.standing(bb, whole, axis, count, origin)
