"""Converts ONNX's `CumSum` and `CumProd`: running sums and products along an axis.

TVM's importer has no kernel for these operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tvm import relax, tirx

from ..kernels import loops
from .constants import constant_array

_NARROW = ("float16", "bfloat16")


def import_cumulative_sum(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the running sums of a `CumSum` node."""
    return _cumulative(bb, inputs, attrs, of_products=False)


def import_cumulative_product(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the running products of a `CumProd` node."""
    return _cumulative(bb, inputs, attrs, of_products=True)


def _cumulative(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any], of_products: bool
) -> Any:
    """Return running sums or products along the axis that the second input names.

    With the attribute `exclusive`, an element is not part of its own sum. With `reverse`, sums run
    from the last element to the first. For inputs of 16-bit floats, the sums are kept in float32.
    """
    x, axis_given = inputs[0], constant_array(inputs[1])
    assert axis_given is not None  # `check_constants` has refused axes that are not a constant.
    shape = tuple(int(size) for size in x.ty.shape)
    axis = int(axis_given.item()) % len(shape)
    dtype = str(x.ty.dtype)
    wide = "float32" if dtype in _NARROW else dtype
    parts = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    flat = bb.emit(relax.op.reshape(x, parts))
    if wide != dtype:
        flat = bb.emit(relax.op.astype(flat, wide))
    exclusive, reverse = bool(attrs.get("exclusive", 0)), bool(attrs.get("reverse", 0))
    made = cumulative_kernel(parts, wide, exclusive, reverse, of_products)
    kernel = bb.add_func(made, "cumulative_product" if of_products else "cumulative_sum")
    sums = bb.emit(relax.call_tir(kernel, [flat], relax.TensorType(parts, wide)))
    if wide != dtype:
        sums = bb.emit(relax.op.astype(sums, dtype))
    return relax.op.reshape(sums, shape)


def cumulative_kernel(
    shape: tuple[int, int, int], dtype: str, exclusive: bool, reverse: bool, of_products: bool
) -> tirx.PrimFunc:
    """Return a kernel for running sums or products along the middle axis of `shape`.

    The input and the output of the kernel have the shape `shape`. The kernel's loops are written by
    hand, so it needs no TVM schedule.
    """
    outer, size, inner = shape
    data = tirx.decl_buffer(shape, dtype, "data")
    sums = tirx.decl_buffer(shape, dtype, "sums")

    def place(step: Any) -> Any:
        return loops.index(size - 1) - step if reverse else step

    def store(at: tuple[Any, Any, Any], value: Any) -> tirx.Stmt:
        return tirx.BufferStore(sums, value, list(at))

    def begin(row: Any, column: Any) -> tirx.Stmt:
        at = (row, place(loops.index(0)), column)
        return store(at, tirx.const(int(of_products), dtype) if exclusive else data[at])

    def go_on(row: Any, step: Any, column: Any) -> tirx.Stmt:
        before, at = (row, place(step), column), (row, place(step + loops.index(1)), column)
        so_far, next_one = sums[before], data[before if exclusive else at]
        return store(at, so_far * next_one if of_products else so_far + next_one)

    def each(row: Any) -> tirx.Stmt:
        return loops.in_turn(
            [
                loops.loop(inner, lambda column: begin(row, column)),
                loops.loop(
                    size - 1,
                    lambda step: loops.loop(inner, lambda column: go_on(row, step, column)),
                ),
            ]
        )

    body = loops.loop(outer, each) if size else tirx.Evaluate(0)
    attrs: dict[str, Any] = {}
    if not reverse and not of_products:
        attrs = {loops.STEPS: [1, 1], loops.ADDS: True}
    return loops.kernel([data, sums], body, op_pattern=loops.OPAQUE, **attrs)
