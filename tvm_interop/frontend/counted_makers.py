"""The nodes whose results are always counted tensors: `Compress`, `NonMaxSuppression`, `Unique`.

For a `NonZero`, `counted_parts` decides whether the result is a counted tensor.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax

from .constants import constant_array
from .counted import CountedTensors, Node, shape_of
from .non_max_suppression import suppressed
from .unique import unique


def _non_max_suppression(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    boxes, scores = node.found[0], node.found[1]
    others = node.found[2:]
    pairs = zip(node.inputs, node.found, strict=True)
    given = [value if each is None else each.whole for value, each in pairs]
    count = None
    if any(each is not None for each in node.found):
        # If the boxes are a counted tensor, the scores must have the same count.
        if boxes is None or scores is None or any(each is not None for each in others):
            raise node.refused()
        if not (boxes.axis == 1 and scores.axis == 2 and boxes.count.same_as(scores.count)):
            raise node.refused()
        count = boxes.count
    rows, number = suppressed(bb, given, node.attrs, count)
    return tensors.standing(bb, rows, 0, number, node.name)


def _compress(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    x, condition = node.inputs
    if constant_array(condition) is not None:
        if node.found[0] is not None:
            raise node.refused()
        return None
    data, chosen = node.found
    whole = x if data is None else data.whole
    shape = shape_of(whole)
    if shape is None:
        return None
    if "axis" in node.attrs:
        axis = int(node.attrs["axis"]) % len(shape)
    elif data is not None and len(shape) > 1:
        raise node.refused()
    else:
        axis, shape = 0, (prod(shape),)
        whole = bb.emit(relax.op.reshape(whole, shape))
    marks = condition if chosen is None else chosen.whole
    length = (shape_of(marks) or (0,))[0]
    if data is not None and data.axis != axis:
        raise node.refused()
    if chosen is not None or data is not None:
        # If the condition or the data is counted, entries of the condition beyond the count have no
        # effect.
        for each in (chosen, data):
            if each is not None and length > each.most:
                raise node.refused()
            if each is not None:
                index = relax.const(np.arange(length), "int64")
                inside = bb.emit(relax.op.less(index, each.count))
                marks = bb.emit(relax.op.logical_and(marks, inside))
    if length > shape[axis]:
        marks = bb.emit(relax.op.strided_slice(marks, [0], [0], [shape[axis]]))
    if not shape[axis] or not length:
        return None
    places, count = tensors.positions_of(bb, marks)
    taken = relax.op.take(whole, places, axis, mode="clip")
    return tensors.standing(bb, taken, axis, count, node.name)


MAKERS = {
    "Compress": _compress,
    "NonMaxSuppression": _non_max_suppression,
    "Unique": unique,
}
