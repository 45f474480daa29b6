"""Converts a `GatherND` whose indices are a constant grid, or contain the numbers of batch rows.

PyTorch exports `mask[rows, columns]` as such a `GatherND`, with the indices of all rows and of all
columns. Each component of such an index varies along only one axis of the result. So the result can
be computed by selections, each along one axis of the input. Kernels for this are faster than a
kernel that looks up positions, and `lowering.masked_positions` can tell which elements they read.

PyTorch exports `x[torch.arange(len(x)), best]` as a `GatherND` too. Its indices join the numbers of
the rows with the indices `best`. This is a `GatherND` with one batch dimension. It reads each row
of its result from the same row of `x`, for any number of rows. PyTorch's older exporter writes it
as a `Gather` from a flattened tensor, at the places `rows * size + best`. If `best` comes from an
`ArgMax`, it is known to be within the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..lowering.static_shape import static_shape
from .constants import constant_array
from .indices import bounded

_ADD, _CONCAT = (tvm.ir.Op.get(f"relax.{name}") for name in ("add", "concat"))
_BEST = [tvm.ir.Op.get(f"relax.{name}") for name in ("argmax", "argmin")]
_KEEPS_NUMBERS = [
    tvm.ir.Op.get(f"relax.{name}") for name in ("astype", "expand_dims", "reshape", "squeeze")
]


def by_rows(
    bb: relax.BlockBuilder, op_type: str, inputs: Any, attrs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the inputs and attributes of an equal node with more batch dimensions.

    A node is returned unchanged if it is not a `GatherND`, or if its indices do not begin with row
    numbers.
    """
    if op_type != "GatherND" or int(attrs.get("batch_dims", 0)):
        return inputs, attrs
    shape = static_shape(getattr(inputs[0], "ty", None)) or ()
    made = static_shape(getattr(inputs[1], "ty", None)) or ()
    parts = _components(bb, inputs[1])
    count = 0
    while count < min(len(parts) - 1, len(made) - 1, len(shape) - 1):
        rows = constant_array(parts[count])
        if rows is None or rows.shape != (*made[:-1], 1) or shape[count] != made[count]:
            break
        along = [-1 if axis == count else 1 for axis in range(len(made))]
        if (rows != np.arange(shape[count]).reshape(along)).any():
            break
        count += 1
    if not count:
        return inputs, attrs
    rest = parts[count:]
    indices = rest[0] if len(rest) == 1 else bb.emit(relax.op.concat(rest, len(made) - 1))
    return [inputs[0], indices], {**attrs, "batch_dims": count}


def _components(bb: relax.BlockBuilder, indices: Any) -> list[Any]:
    """Return the tensors that are joined along the last axis to make `indices`.

    Return an empty list if `indices` is not the result of such a concatenation.
    """
    call = bb.lookup_binding(indices) if isinstance(indices, relax.Var) else None
    if not isinstance(call, relax.Call) or call.op != _CONCAT:
        return []
    fields = call.args[0]
    if isinstance(fields, relax.Var):
        fields = bb.lookup_binding(fields)
    axis = call.attrs.axis
    is_last = axis is not None and int(axis) in (-1, len(indices.ty.shape) - 1)
    return list(fields.fields) if is_last and isinstance(fields, relax.Tuple) else []


def import_gather(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return the result of a `Gather` from the flattened rows of a batch; None for other nodes."""
    shape, made = (static_shape(getattr(x, "ty", None)) for x in inputs[:2])
    call = bb.lookup_binding(inputs[1]) if isinstance(inputs[1], relax.Var) else None
    if not shape or not made or int(attrs.get("axis", 0)) % len(shape):
        return None
    if not isinstance(call, relax.Call) or call.op != _ADD or not made[0]:
        return None
    size, rest = divmod(shape[0], made[0])
    pairs = (call.args[0], call.args[1]), (call.args[1], call.args[0])
    for rows, best in pairs:
        begins, within = constant_array(rows), static_shape(best.ty)
        if begins is None or within != made or rest or not 0 < _most(bb, best) <= size:
            continue
        wanted = (np.arange(made[0]) * size).reshape(-1, *[1] * (len(made) - 1))
        if (np.broadcast_to(begins, made) != wanted).any():
            continue
        data = bb.emit(relax.op.reshape(inputs[0], (made[0], size, *shape[1:])))
        index = bb.emit(bounded(bb, best, np.array(size)))
        places = bb.emit(relax.op.expand_dims(index, len(made)))
        return relax.op.gather_nd(data, places, batch_dims=1)
    return None


def _most(bb: relax.BlockBuilder, value: Any) -> int:
    """Return the size of the axis of which `value` is the best index; 0 for any other value."""
    while isinstance(value, relax.Var) and str(value.ty.dtype) in ("int32", "int64"):
        call = bb.lookup_binding(value)
        if isinstance(call, relax.Call) and call.op in _BEST:
            shape = static_shape(call.args[0].ty)
            if shape is None or call.attrs.axis is None:
                return 0
            return shape[int(call.attrs.axis)]
        is_known = isinstance(call, relax.Call) and call.op in _KEEPS_NUMBERS
        value = call.args[0] if is_known else None
    return 0


def import_gather_nd(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the result of a `GatherND`; None if its indices are not a constant grid."""
    data, indices = inputs[0], constant_array(inputs[1])
    shape = static_shape(getattr(data, "ty", None))
    if indices is None or shape is None or int(attrs.get("batch_dims", 0)) or not indices.size:
        return None
    axes = axes_of_components(indices)
    if axes is None or 0 in shape:
        return None
    made = (*indices.shape[:-1], *shape[indices.shape[-1] :])
    for i, axis in enumerate(axes):
        along = along_axis(indices[..., i], axis)
        if not np.array_equal(along, np.arange(shape[i])):
            data = bb.emit(relax.op.take(data, relax.const(along, "int64"), i, mode="clip"))
    # Sort the components of an index in the order of the result's axes. Components that do not vary
    # come last.
    places = [len(made) if axis is None else axis for axis in axes]
    order = sorted(range(len(axes)), key=lambda i: places[i])
    if order != list(range(len(axes))):
        data = bb.emit(relax.op.permute_dims(data, [*order, *range(len(axes), len(shape))]))
    kept = [n if a in axes else 1 for a, n in enumerate(indices.shape[:-1])]
    data = bb.emit(relax.op.reshape(data, [*kept, *made[len(kept) :]]))
    return data if tuple(static_shape(data.ty) or ()) == made else relax.op.broadcast_to(data, made)


def axes_of_components(indices: np.ndarray) -> list[int | None] | None:
    """Return, for each component of an index, the axis along which it varies; None if it is
    constant.

    Return None in place of the list if the indices are not a grid. In a grid, each component varies
    along at most one axis, and two components do not vary along the same axis.
    """
    axes: list[int | None] = []
    for i in range(indices.shape[-1]):
        component = indices[..., i]
        found = [a for a in range(component.ndim) if (np.diff(component, axis=a) != 0).any()]
        if len(found) > 1 or (found and found[0] in axes):
            return None
        axes.append(found[0] if found else None)
    return axes


def along_axis(component: np.ndarray, axis: int | None) -> np.ndarray:
    """The numbers of a component along the axis `axis`; a single number if `axis` is None."""
    at = tuple(slice(None) if a == axis else 0 for a in range(component.ndim))
    return np.atleast_1d(component[at]).astype(np.int64)
