"""Converts ONNX's `NonMaxSuppression`, which keeps the best of several boxes that overlap.

TVM's own operator returns the boxes in another order, and has other options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..errors import UnsupportedModelError
from ..kernels import loops
from ..lowering.static_shape import static_shape
from .constants import constant_array
from .positions import true_positions


def suppressed(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any], boxes_count: Any
) -> tuple[relax.Var, relax.Var]:
    """Return the rows that a `NonMaxSuppression` gives, and the number of these rows.

    Parameters
    ----------
    boxes_count: a number n, int64 of shape (1,). Only the first n boxes are used. None for all
        boxes.

    Returns
    -------
    The rows (batch, class, box), int64 of shape (most, 3), where `most` is the largest possible
    number of rows; and the number of valid rows, int64 of shape (1,). The valid rows come first.
    The other rows repeat a valid row, or are 0.

    Raises
    ------
    UnsupportedModelError
        The largest number of boxes for each class is not a constant, or the shapes do not fit.
    """
    boxes, scores, most, iou, least = (*inputs, None, None, None)[:5]
    batch, classes, number = _sizes(boxes, scores)
    limit = 0 if most is None else constant_array(most)
    if limit is None:
        raise UnsupportedModelError(
            "its input `max_output_boxes_per_class` is computed as the model runs, and a schedule "
            "is made for fixed shapes: make it a constant"
        )
    kept = min(int(np.asarray(limit).item()), number)
    if kept <= 0 or not batch * classes:
        none = (relax.const(np.zeros(shape, np.int64), "int64") for shape in ((1, 3), (1,)))
        rows, count = map(bb.emit, none)
        return rows, count
    rows = batch * classes
    given = [
        boxes,
        bb.emit(relax.op.reshape(scores, (rows, number))),
        relax.const(np.zeros(1, np.float32), "float32") if iou is None else _one(bb, iou),
    ]
    if least is not None:
        given.append(_one(bb, least))
    if boxes_count is not None:
        given.append(boxes_count)
    made = suppression_kernel(
        (batch, classes, number),
        kept,
        is_centred=bool(attrs.get("center_point_box", 0)),
        has_least=least is not None,
        has_count=boxes_count is not None,
    )
    kernel = bb.add_func(made, "non_max_suppression")
    types = [
        relax.TensorType((rows, number), "int32"),
        relax.TensorType((rows, kept), "int64"),
        relax.TensorType((rows, 1), "int64"),
    ]
    found = bb.emit(relax.call_tir(kernel, given, types))
    chosen, numbers = (bb.emit(relax.TupleGetItem(found, i)) for i in (1, 2))
    is_there = bb.emit(relax.op.less(relax.const(np.arange(kept), "int64"), numbers))
    places, count = true_positions(bb, is_there)
    row = bb.emit(relax.op.floor_divide(places, relax.const(kept, "int64")))
    flat = bb.emit(relax.op.reshape(chosen, (rows * kept,)))
    columns = [
        bb.emit(relax.op.floor_divide(row, relax.const(classes, "int64"))),
        bb.emit(relax.op.floor_mod(row, relax.const(classes, "int64"))),
        bb.emit(relax.op.take(flat, places, 0, mode="clip")),
    ]
    each = [bb.emit(relax.op.reshape(column, (rows * kept, 1))) for column in columns]
    return bb.emit(relax.op.concat(each, 1)), count


def _sizes(boxes: Any, scores: Any) -> tuple[int, int, int]:
    """The number of images, the number of classes and the number of boxes."""
    of_boxes, of_scores = static_shape(boxes.ty), static_shape(scores.ty)
    if of_boxes is None or of_scores is None or len(of_boxes) != 3 or len(of_scores) != 3:
        raise UnsupportedModelError("its boxes and scores must have three dimensions each")
    batch, number, coordinates = of_boxes
    if coordinates != 4 or (batch, number) != (of_scores[0], of_scores[2]):
        raise UnsupportedModelError(
            f"its boxes have shape {of_boxes} and its scores {of_scores}: the boxes must be "
            "(batch, boxes, 4), and the scores (batch, classes, boxes)"
        )
    return batch, of_scores[1], number


def _one(bb: relax.BlockBuilder, value: Any) -> Any:
    """Return `value`, a threshold with one element, in the shape (1,)."""
    return value if static_shape(value.ty) == (1,) else bb.emit(relax.op.reshape(value, (1,)))


def suppression_kernel(
    sizes: tuple[int, int, int],
    kept: int,
    *,
    is_centred: bool,
    has_least: bool,
    has_count: bool,
) -> tirx.PrimFunc:
    """Return a kernel that chooses boxes for each class of each image.

    The kernel takes boxes of shape (batch, boxes, 4), scores of shape (batch * classes, boxes), and
    the largest overlap of two chosen boxes. Two inputs are optional: the score that a box must
    exceed, and the number of boxes to use. The kernel returns three tensors: a heap for its own
    use; the indices of the chosen boxes, shape (batch * classes, kept), padded with 0; and the
    number of chosen boxes of each class.

    The kernel takes boxes from a heap, the best first, so it need not sort all boxes. If scores are
    equal, the box with the lower index comes first. A box whose score is NaN comes last.

    Parameters
    ----------
    sizes: the numbers of images, classes and boxes.
    kept: the largest number of boxes that are chosen for a class.
    is_centred: whether a box is (x, y, width, height), where x and y are its centre. Otherwise a
        box is (y, x, y, x) of two opposite corners.
    """
    return _Suppression(sizes, kept, is_centred).kernel(has_least, has_count)


class _Suppression:
    """Builds the kernel's statements. The kernel's variables are the elements of its buffer
    `state`.
    """

    def __init__(self, sizes: tuple[int, int, int], kept: int, is_centred: bool) -> None:
        self._batch, self._classes, self._number = sizes
        self._kept, self._is_centred = kept, is_centred
        rows = self._batch * self._classes
        self._boxes = tirx.decl_buffer((self._batch, self._number, 4), "float32", "boxes")
        self._scores = tirx.decl_buffer((rows, self._number), "float32", "scores")
        self._overlap = tirx.decl_buffer((1,), "float32", "overlap")
        self._least = tirx.decl_buffer((1,), "float32", "least")
        self._count = tirx.decl_buffer((1,), "int64", "count")
        self._heap = tirx.decl_buffer((rows, self._number), "int32", "heap")
        self._chosen = tirx.decl_buffer((rows, kept), "int64", "chosen")
        self._numbers = tirx.decl_buffer((rows, 1), "int64", "numbers")
        self._state = tirx.decl_buffer((6,), "int64", "state")

    # The index of each variable in `state`: the size of the heap; the position of the element that
    # moves down in the heap; the position of the child that it is compared with; a counter; the
    # best box; whether a loop continues.
    _SIZE, _AT, _CHILD, _I, _BEST, _GOES_ON = range(6)

    def kernel(self, has_least: bool, has_count: bool) -> tirx.PrimFunc:
        rows = self._batch * self._classes
        parameters = [
            *(self._boxes, self._scores, self._overlap),
            *([self._least] if has_least else []),
            *([self._count] if has_count else []),
            *(self._heap, self._chosen, self._numbers),
        ]
        body = loops.loop(rows, lambda row: self._of_row(row, has_least, has_count))
        return loops.kernel(parameters, body, [self._state], op_pattern=loops.OPAQUE)

    def _of_row(self, row: Any, has_least: bool, has_count: bool) -> tirx.Stmt:
        def clear(k: Any) -> tirx.Stmt:
            store = tirx.BufferStore(self._chosen, loops.index(0), [row, k])
            return tirx.IfThenElse(k >= self._numbers[row, 0], store, None)

        size, left = self._get(self._SIZE), self._numbers[row, 0]
        passes = tirx.And(size > 0, left < self._kept)
        return loops.in_turn(
            [
                self._fill(row, has_least, has_count),
                self._order(row),
                tirx.BufferStore(self._numbers, loops.index(0), [row, 0]),
                tirx.While(passes, self._choose(row)),
                loops.loop(self._kept, clear),
            ]
        )

    def _fill(self, row: Any, has_least: bool, has_count: bool) -> tirx.Stmt:
        """Put all boxes with a high enough score into the heap, not yet in order."""

        def enter(i: Any) -> tirx.Stmt:
            size = self._get(self._SIZE)
            step = loops.in_turn(
                [
                    tirx.BufferStore(self._heap, tirx.Cast("int32", i), [row, size]),
                    self._set(self._SIZE, size + 1),
                ]
            )
            if has_least:
                step = tirx.IfThenElse(self._scores[row, i] > self._least[0], step, None)
            return tirx.IfThenElse(i < self._count[0], step, None) if has_count else step

        def clear(i: Any) -> tirx.Stmt:
            return tirx.BufferStore(self._heap, tirx.const(0, "int32"), [row, i])

        return loops.in_turn(
            [
                loops.loop(self._number, clear),
                self._set(self._SIZE, loops.index(0)),
                loops.loop(self._number, enter),
            ]
        )

    def _order(self, row: Any) -> tirx.Stmt:
        """Order the heap, so that no element is better than its parent."""
        left = self._get(self._I)
        step = loops.in_turn(
            [self._set(self._I, left - 1), self._set(self._AT, left), self._sink(row)]
        )
        half = tirx.floordiv(self._get(self._SIZE), loops.index(2))
        return loops.in_turn([self._set(self._I, half), tirx.While(left > 0, step)])

    def _sink(self, row: Any) -> tirx.Stmt:
        """Move an element down the heap until none of its children is better."""
        size, at, child = map(self._get, (self._SIZE, self._AT, self._CHILD))
        heap = self._heap
        other = tirx.IfThenElse(
            self._is_better(row, heap[row, child + 1], heap[row, child]),
            self._set(self._CHILD, child + 1),
            None,
        )
        swap = loops.in_turn(
            [
                # `_GOES_ON` holds the element during the swap. No loop uses this variable at that
                # time.
                self._set(self._GOES_ON, tirx.Cast("int64", heap[row, at])),
                tirx.BufferStore(heap, heap[row, child], [row, at]),
                tirx.BufferStore(heap, tirx.Cast("int32", self._get(self._GOES_ON)), [row, child]),
                self._set(self._AT, child),
                self._set(self._CHILD, child * 2 + 1),
            ]
        )
        stop = self._set(self._CHILD, size)
        step = loops.in_turn(
            [
                tirx.IfThenElse(child + 1 < size, other, None),
                tirx.IfThenElse(self._is_better(row, heap[row, child], heap[row, at]), swap, stop),
            ]
        )
        return loops.in_turn([self._set(self._CHILD, at * 2 + 1), tirx.While(child < size, step)])

    def _choose(self, row: Any) -> tirx.Stmt:
        """Take the best box from the heap, and keep it unless a chosen box overlaps it."""
        size, best, number = self._get(self._SIZE), self._get(self._BEST), self._numbers[row, 0]
        heap, i = self._heap, self._get(self._I)
        batch = tirx.floordiv(row, loops.index(self._classes))
        compare = loops.in_turn(
            [
                tirx.IfThenElse(
                    self._overlaps(batch, self._chosen[row, i], best),
                    self._set(self._GOES_ON, loops.index(0)),
                    None,
                ),
                self._set(self._I, i + 1),
            ]
        )
        keep = loops.in_turn(
            [
                tirx.BufferStore(self._chosen, best, [row, number]),
                tirx.BufferStore(self._numbers, number + 1, [row, 0]),
            ]
        )
        goes_on = self._get(self._GOES_ON) > 0
        return loops.in_turn(
            [
                self._set(self._BEST, tirx.Cast("int64", heap[row, loops.index(0)])),
                self._set(self._SIZE, size - 1),
                tirx.BufferStore(heap, heap[row, size], [row, loops.index(0)]),
                self._set(self._AT, loops.index(0)),
                self._sink(row),
                self._set(self._I, loops.index(0)),
                self._set(self._GOES_ON, loops.index(1)),
                tirx.While(tirx.And(goes_on, i < number), compare),
                tirx.IfThenElse(goes_on, keep, None),
            ]
        )

    def _is_better(self, row: Any, i: Any, j: Any) -> Any:
        """Whether box `i` is taken from the heap before box `j`."""
        i, j = (tirx.Cast("int64", each) for each in (i, j))
        x, y = self._scores[row, i], self._scores[row, j]
        is_equal = tirx.Or(tirx.And(x >= y, x <= y), tirx.And(tirx.isnan(x), tirx.isnan(y)))
        is_number = tirx.And(tirx.isnan(y), tirx.Not(tirx.isnan(x)))
        return tirx.Or(tirx.Or(x > y, is_number), tirx.And(is_equal, i < j))

    def _overlaps(self, batch: Any, i: Any, j: Any) -> Any:
        """Whether the overlap of two boxes, divided by their union, is above the limit."""
        (y1, x1), (y2, x2) = (self._ends(batch, box) for box in (i, j))
        width, height = (
            tirx.min(a[1], b[1]) - tirx.max(a[0], b[0]) for a, b in ((x1, x2), (y1, y2))
        )
        shared = width * height
        areas = [(x[1] - x[0]) * (y[1] - y[0]) for x, y in ((x1, y1), (x2, y2))]
        union = areas[0] + areas[1] - shared
        zero = tirx.const(0, "float32")
        conditions = [
            *(each > zero for each in (width, height, shared, *areas, union)),
            shared / union > self._overlap[0],
        ]
        found = conditions[0]
        for each in conditions[1:]:
            found = tirx.And(found, each)
        return found

    def _ends(self, batch: Any, box: Any) -> list[tuple[Any, Any]]:
        """The smallest and the largest y of a box, and the smallest and the largest x."""
        given = [self._boxes[batch, box, loops.index(i)] for i in range(4)]
        if not self._is_centred:
            return [
                (tirx.min(given[i], given[i + 2]), tirx.max(given[i], given[i + 2])) for i in (0, 1)
            ]
        half = tirx.const(0.5, "float32")
        return [(given[i] - given[i + 2] * half, given[i] + given[i + 2] * half) for i in (1, 0)]

    def _get(self, place: int) -> Any:
        return self._state[place]

    def _set(self, place: int, value: Any) -> tirx.Stmt:
        return tirx.BufferStore(self._state, value, [place])
