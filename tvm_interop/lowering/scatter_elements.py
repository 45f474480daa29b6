"""Makes kernels of `relax.scatter_elements` for indices that cover only a part of the data's axes.

The indices may be shorter than the data along each axis, not only along the axis of the scatter.
TVM's own kernels then write to wrong places. They join all axes before the axis of the scatter into
one axis, and all axes after it into another. In one of the two they use the lengths of the data,
and in the other the lengths of the indices.

Source: the definition of `ScatterElements` in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import tvm
from tvm import relax, tirx

from ..kernels import loops
from .static_shape import static_shape

_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tirx.min,
    "max": tirx.max,
}
"""For each reduction, the element that is stored in place of an old one and an update."""
_ROWS = [0, 0, 0, 0]
"""The axis of rows of the data, the indices, the updates and the result; see `loops.ROWS`."""


def legalize_scatter_elements(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make the kernel of a `relax.scatter_elements`.

    TVM's own kernel is used in two cases. Either a shape is unknown, or the axes that TVM joins are
    as long in the indices as in the data, so that TVM's kernel is right. The first of the joined
    axes may be shorter in the indices.
    """
    data, indices, updates = call.args
    shape, places = static_shape(data.ty), static_shape(indices.ty)
    reduction = str(call.attrs.reduction)
    usual = tvm.ir.Op.get("relax.scatter_elements").get_attr("FLegalize")
    if shape is None or places is None or reduction not in _REDUCTIONS:
        return usual(bb, call)
    axis = int(call.attrs.axis) % len(shape)
    has_rows = axis > 0 and shape[0] == places[0]
    if (shape[1:axis], shape[axis + 2 :]) == (places[1:axis], places[axis + 2 :]):
        made = usual(bb, call)
        return _with_rows(bb, made) if has_rows else made
    dtypes = str(data.ty.dtype), str(indices.ty.dtype)
    made = scatter_kernel(shape, places, dtypes, axis, reduction)
    if has_rows:
        made = made.with_attr(loops.ROWS, _ROWS)
    kernel = bb.add_func(made, "scatter_elements")
    return relax.call_tir(kernel, [data, indices, updates], call.ty)


def _with_rows(bb: relax.BlockBuilder, call: relax.Call) -> relax.Call:
    """Mark the kernel of TVM that `call` calls as a kernel that computes each row alone."""
    kernel = call.args[0]
    bb.update_func(kernel, bb.get()[kernel].with_attr(loops.ROWS, _ROWS))
    return call


def scatter_kernel(
    shape: tuple[int, ...],
    places: tuple[int, ...],
    dtypes: tuple[str, str],
    axis: int,
    reduction: str,
) -> tirx.PrimFunc:
    """Return a kernel that copies its data and writes the updates into the copy, one after the
    other.

    Parameters
    ----------
    shape: the shape of the data and of the result.
    places: the shape of the indices and of the updates.
    dtypes: the types of the data and of the indices.
    axis: the axis along which the indices count; negative indices count from its end.
    reduction: a key of `_REDUCTIONS`.
    """
    data = tirx.decl_buffer(shape, dtypes[0], "data")
    indices = tirx.decl_buffer(places, dtypes[1], "indices")
    updates = tirx.decl_buffer(places, dtypes[0], "updates")
    result = tirx.decl_buffer(shape, dtypes[0], "result")

    def copy(place: Any) -> tirx.Stmt:
        at = loops.unravelled(place, shape)
        return tirx.BufferStore(result, data[tuple(at)], at)

    def write(place: Any) -> tirx.Stmt:
        at = loops.unravelled(place, places)
        given = tirx.Cast("int64", indices[tuple(at)])
        target = [*at]
        target[axis] = tirx.Select(given < 0, given + shape[axis], given)
        found = _REDUCTIONS[reduction](result[tuple(target)], updates[tuple(at)])
        return tirx.BufferStore(result, found, target)

    body = loops.in_turn([loops.loop(prod(shape), copy), loops.loop(prod(places), write)])
    return loops.kernel([data, indices, updates, result], body, op_pattern=loops.OPAQUE)
