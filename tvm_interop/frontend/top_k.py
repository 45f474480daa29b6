"""Converts ONNX's `TopK`, which finds the largest or smallest elements along an axis.

TVM has no kernel for this operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tvm import relax, tirx

from ..errors import UnsupportedModelError
from ..kernels import loops
from .constants import constant_number


def import_top_k(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return the `k` largest or smallest values along an axis and their indices, the best first.

    Among equal values, the value with the lower index comes first. NaN is larger than any number.
    The attribute `sorted` is ignored, because ONNX allows any order if it is 0.
    """
    x = inputs[0]
    shape = tuple(int(size) for size in x.ty.shape)
    number = int(attrs["k"]) if len(inputs) < 2 else int(constant_number(inputs[1]))
    axis = int(attrs.get("axis", -1)) % len(shape)
    if not 0 < number <= shape[axis]:
        raise UnsupportedModelError(
            f"it takes {number} elements of {shape[axis]}: `k` must be 1 to {shape[axis]}"
        )
    last = [a for a in range(len(shape)) if a != axis] + [axis]
    turned = tuple(shape[a] for a in last)
    rows = prod(turned[:-1])
    if axis != len(shape) - 1:
        x = bb.emit(relax.op.permute_dims(x, last))
    flat = bb.emit(relax.op.reshape(x, (rows, turned[-1])))
    dtype = str(x.ty.dtype)
    largest = bool(attrs.get("largest", 1))
    kernel = bb.add_func(top_k_kernel(rows, turned[-1], number, dtype, largest), "top_k")
    types = [relax.TensorType((rows, number), kind) for kind in (dtype, "int64")]
    found = bb.emit(relax.call_tir(kernel, [flat], types))
    back = [last.index(a) for a in range(len(shape))]

    def as_wanted(result: Any) -> Any:
        wide = bb.emit(relax.op.reshape(result, (*turned[:-1], number)))
        return wide if axis == len(shape) - 1 else bb.emit(relax.op.permute_dims(wide, back))

    return relax.Tuple([as_wanted(bb.emit(relax.TupleGetItem(found, i))) for i in (0, 1)])


def top_k_kernel(rows: int, size: int, number: int, dtype: str, largest: bool) -> tirx.PrimFunc:
    """Return a kernel for top-k, whose loops are written by hand.

    The kernel takes data of shape (rows, size). It returns values and int64 indices, each of shape
    (rows, number).

    The kernel goes through a row once. It keeps the `number` best elements found so far, in order.
    If the next element is better than the last of these, it is inserted at its place. This takes
    O(size) steps for most rows. It takes O(size * number) steps if each element is better than the
    element before it.
    """
    data = tirx.decl_buffer((rows, size), dtype, "data")
    values = tirx.decl_buffer((rows, number), dtype, "values")
    indices = tirx.decl_buffer((rows, number), "int64", "indices")
    place = tirx.decl_buffer((1,), "int64", "place")
    at, one, zero = place[0], loops.index(1), loops.index(0)

    def is_better(x: Any, y: Any) -> Any:
        if "float" not in dtype:
            return x > y if largest else x < y
        # NaN is treated as larger than any number, as in NumPy's sort order.
        greater, other = (x, y) if largest else (y, x)
        return tirx.And(tirx.Not(greater <= other), tirx.Not(tirx.isnan(other)))

    def store(row: Any, value: Any, index: Any) -> tirx.Stmt:
        return loops.in_turn(
            [
                tirx.BufferStore(values, value, [row, at]),
                tirx.BufferStore(indices, index, [row, at]),
            ]
        )

    def enter(row: Any, i: Any) -> tirx.Stmt:
        # The kernel may evaluate both operands of the "and", so the index must not be below 0.
        before = tirx.max(at - one, zero)
        passes = tirx.And(at > zero, is_better(data[row, i], values[row, before]))
        step = loops.in_turn(
            [
                store(row, values[row, before], indices[row, before]),
                tirx.BufferStore(place, at - one, [0]),
            ]
        )
        return loops.in_turn([tirx.While(passes, step), store(row, data[row, i], i)])

    def first(row: Any, i: Any) -> tirx.Stmt:
        return loops.in_turn([tirx.BufferStore(place, i, [0]), enter(row, i)])

    def other(row: Any, i: Any) -> tirx.Stmt:
        worst = loops.index(number - 1)
        begin = tirx.BufferStore(place, worst, [0])
        enters = is_better(data[row, i], values[row, worst])
        return tirx.IfThenElse(enters, loops.in_turn([begin, enter(row, i)]), None)

    def each(row: Any) -> tirx.Stmt:
        rest = size - number
        return loops.in_turn(
            [
                loops.loop(number, lambda i: first(row, i)),
                loops.loop(rest, lambda i: other(row, i + loops.index(number))),
            ]
        )

    attrs = {"op_pattern": loops.OPAQUE, loops.ROWS: [0, 0, 0]}
    return loops.kernel([data, values, indices], loops.loop(rows, each), [place], **attrs)
