"""Converts ONNX's `Unique`, whose number of results depends on the numbers in its input.

The results are counted tensors (see `counted`).

Source: the definition of `Unique` in the ONNX specification.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, tirx

from ..kernels import loops
from .constants import constant_array
from .counted import CountedTensors, Node, shape_of


def unique(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    """Return the distinct numbers of a tensor, and where they are.

    There are four results: the distinct numbers; the place where each of them first occurs; for
    each element of the input, the place of its number among the distinct numbers; and how often
    each number occurs. Return None for a constant input, and for a node that compares slices of a
    tensor.
    """
    counted = node.found[0]
    whole = node.inputs[0] if counted is None else counted.whole
    shape = shape_of(whole)
    if constant_array(whole) is not None or not shape or 0 in shape:
        return None
    if len(shape) > 1 and ("axis" in node.attrs or counted is not None):
        return None if counted is None else _refuse(node)
    number = prod(shape)
    flat = bb.emit(relax.op.reshape(whole, (number,)))
    dtype = str(whole.ty.dtype)
    made = _Kernel(number, dtype, bool(node.attrs.get("sorted", 1)), counted is not None)
    given = [flat] if counted is None else [flat, counted.count]
    kinds = (dtype, *["int64"] * 7)
    types = [relax.TensorType((1 if i == 4 else number,), kind) for i, kind in enumerate(kinds)]
    kernel = bb.add_func(made.build(), "unique")
    found = bb.emit(relax.call_tir(kernel, given, types))
    numbers, first, places, times, count = (bb.emit(relax.TupleGetItem(found, i)) for i in range(5))
    of_elements = places
    if counted is not None:
        of_elements = tensors.standing(bb, places, 0, counted.count, counted.origin)
    results = [tensors.standing(bb, numbers, 0, count, node.name)]
    wanted = int(node.attrs["tvm_custom"]["num_outputs"])
    if wanted == 1:
        return results[0]
    results += [tensors.standing(bb, first, 0, count, node.name), of_elements]
    results.append(tensors.standing(bb, times, 0, count, node.name))
    return bb.normalize(relax.Tuple(results[:wanted]))


def _refuse(node: Node) -> Any:
    raise node.refused()


class _Kernel:
    """A kernel, with loops written by hand, for a tensor of one axis.

    Its inputs are the numbers and, if `has_count`, how many of them are used. Its outputs are the
    outputs of `unique`, the number of distinct numbers, and three tensors for its own use. It sorts
    the indices of the numbers by merging, so equal numbers keep their order.
    """

    def __init__(self, size: int, dtype: str, is_sorted: bool, has_count: bool) -> None:
        self._size, self._dtype, self._is_sorted = size, dtype, is_sorted
        self._has_count = has_count
        self._data = tirx.decl_buffer((size,), dtype, "data")
        self._limit = tirx.decl_buffer((1,), "int64", "limit")
        self._numbers = tirx.decl_buffer((size,), dtype, "numbers")
        names = ("first", "places", "times", "order", "other", "leaders")
        self._first, self._places, self._times, self._order, self._other, self._leaders = (
            tirx.decl_buffer((size,), "int64", name) for name in names
        )
        self._count = tirx.decl_buffer((1,), "int64", "count")
        self._left, self._right = (
            tirx.decl_buffer((1,), "int64", name) for name in ("left", "right")
        )

    def build(self) -> tirx.PrimFunc:
        inputs = [self._data, *([self._limit] if self._has_count else [])]
        parameters = [*inputs, self._numbers, self._first, self._places, self._times, self._count]
        source, target = self._order, self._other
        steps = [loops.loop(self._size, self._begin)]
        width = 1
        while width < self._size:
            steps.append(self._merged(source, target, width))
            source, target, width = target, source, 2 * width
        zero = loops.index(0)
        steps += [
            loops.loop(self._size, lambda k: self._led(source, k)),
            tirx.BufferStore(self._count, zero, [zero]),
            loops.loop(self._size, self._clear),
            loops.loop(self._size, lambda k: self._enter(source, target, k)),
        ]
        parameters += [self._order, self._other, self._leaders]
        scratch = [self._left, self._right]
        body = loops.in_turn(steps)
        return loops.kernel(parameters, body, scratch, op_pattern=loops.OPAQUE)

    def _begin(self, i: Any) -> tirx.Stmt:
        """Set element `i` of each of the tensors that the kernel uses for itself."""
        zero = loops.index(0)
        stores = [tirx.BufferStore(each, zero, [i]) for each in (self._other, self._leaders)]
        return loops.in_turn([tirx.BufferStore(self._order, i, [i]), *stores])

    def _end(self) -> Any:
        """How many of the input's numbers are used."""
        size = loops.index(self._size)
        return tirx.min(self._limit[0], size) if self._has_count else size

    def _inside(self, place: Any) -> Any:
        return tirx.min(place, loops.index(self._size - 1))

    def _is_less(self, x: Any, y: Any) -> Any:
        """Whether `x` comes before `y`. NaN comes last."""
        if "float" not in self._dtype:
            return x < y
        return tirx.any(x < y, tirx.all(tirx.isnan(y), tirx.Not(tirx.isnan(x))))

    def _merged(self, source: Any, target: Any, width: int) -> tirx.Stmt:
        """Merge each pair of neighbouring runs, each of which has `width` sorted indices."""
        left, right = self._left[0], self._right[0]
        zero, one = loops.index(0), loops.index(1)

        def each(run: Any) -> tirx.Stmt:
            begin = run * loops.index(2 * width)
            middle = tirx.min(begin + loops.index(width), self._end())
            end = tirx.min(begin + loops.index(2 * width), self._end())

            def take(step: Any) -> tirx.Stmt:
                x, y = (
                    self._data[self._inside(source[self._inside(place)])] for place in (left, right)
                )
                is_left = tirx.all(
                    left < middle, tirx.any(right >= end, tirx.Not(self._is_less(y, x)))
                )
                at = begin + step
                from_left = [
                    tirx.BufferStore(target, source[self._inside(left)], [at]),
                    tirx.BufferStore(self._left, left + one, [zero]),
                ]
                from_right = [
                    tirx.BufferStore(target, source[self._inside(right)], [at]),
                    tirx.BufferStore(self._right, right + one, [zero]),
                ]
                chosen = tirx.IfThenElse(
                    is_left, loops.in_turn(from_left), loops.in_turn(from_right)
                )
                return tirx.IfThenElse(at < end, chosen, None)

            starts = [
                tirx.BufferStore(self._left, begin, [zero]),
                tirx.BufferStore(self._right, middle, [zero]),
            ]
            return loops.in_turn([*starts, loops.loop(2 * width, take)])

        return loops.loop(-(-self._size // (2 * width)), each)

    def _led(self, order: Any, k: Any) -> tirx.Stmt:
        """Note, for a number, the first element that is equal to it."""
        before = order[tirx.max(k - loops.index(1), loops.index(0))]
        is_new = tirx.any(k < loops.index(1), self._data[order[k]] != self._data[before])
        leader = tirx.Select(is_new, order[k], self._leaders[before])
        noted = tirx.BufferStore(self._leaders, leader, [order[k]])
        return tirx.IfThenElse(k < self._end(), noted, None)

    def _clear(self, i: Any) -> tirx.Stmt:
        nothing = tirx.const(0, self._dtype)
        stores = [tirx.BufferStore(self._numbers, nothing, [i])]
        stores += [
            tirx.BufferStore(buffer, loops.index(0), [i])
            for buffer in (self._first, self._places, self._times)
        ]
        return loops.in_turn(stores)

    def _enter(self, order: Any, ranks: Any, k: Any) -> tirx.Stmt:
        """Count a number, and list it if it is the first of its kind.

        Parameters
        ----------
        ranks: a buffer for the place of each first element among the distinct numbers.
        """
        i = order[k] if self._is_sorted else k
        count, one = self._count[0], loops.index(1)
        new = [
            tirx.BufferStore(self._numbers, self._data[i], [count]),
            tirx.BufferStore(self._first, i, [count]),
            tirx.BufferStore(ranks, count, [i]),
            tirx.BufferStore(self._count, count + one, [loops.index(0)]),
        ]
        rank = ranks[self._leaders[i]]
        counted = [
            tirx.IfThenElse(self._leaders[i] == i, loops.in_turn(new), None),
            tirx.BufferStore(self._places, rank, [i]),
            tirx.BufferStore(self._times, self._times[rank] + one, [rank]),
        ]
        return tirx.IfThenElse(k < self._end(), loops.in_turn(counted), None)
