"""Converts a `ScatterND` or `ScatterElements` whose constant indices are a box of the tensor.

PyTorch exports an assignment to a slice, such as `y[..., 0:2] = z`, as such a node, with the
indices of all assigned elements. The result is computed by concatenations along the axes on which
the box is smaller than the tensor. They are faster than a kernel that looks up positions, and
`lowering.independent_rows` can tell which rows they read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..lowering.static_shape import static_shape
from .constants import constant_array
from .gather_nd import along_axis, axes_of_components


def import_scatter_nd(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the result of a `ScatterND`; None if its indices are not a constant box."""
    known = _known(inputs, attrs)
    if known is None:
        return None
    indices, shape, given = known
    axes = axes_of_components(indices)
    if axes is None:
        return None
    numbers = [along_axis(indices[..., i], axis) for i, axis in enumerate(axes)]
    box = [*map(_as_range, numbers), *(range(size) for size in shape[len(axes) :])]
    if None in box or math.prod(map(len, numbers)) != math.prod(indices.shape[:-1]):
        return None  # Some elements between others are not assigned, or some are assigned twice.
    order = [axis for axis in axes if axis is not None]
    order += [axis for axis in range(len(given)) if axis not in order]
    updates = inputs[2]
    if order != list(range(len(given))):
        # Sort the axes of the updates in the order of the tensor's axes.
        updates = bb.emit(relax.op.permute_dims(updates, order))
    return _with_box(bb, inputs[0], shape, [part for part in box if part is not None], updates)


def import_scatter_elements(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the result of a `ScatterElements`; None if its indices are not a constant box."""
    known = _known(inputs, attrs)
    if known is None:
        return None
    indices, shape, _ = known
    axis = int(attrs.get("axis", 0)) % len(shape)
    first = [slice(None) if a == axis else slice(1) for a in range(len(shape))]
    part = _as_range(indices[tuple(first)].reshape(-1))
    if part is None or (indices != indices[tuple(first)]).any():
        return None
    box = [part if a == axis else range(size) for a, size in enumerate(indices.shape)]
    return _with_box(bb, inputs[0], shape, box, inputs[2])


def _known(
    inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> tuple[np.ndarray, tuple[int, ...], tuple[int, ...]] | None:
    """Return the constant indices, and the shapes of the tensor and of the updates.

    Return None if the indices are not constant, if there is nothing to assign, or if the node
    combines old and new elements.
    """
    shape, given = (static_shape(getattr(inputs[i], "ty", None)) for i in (0, 2))
    indices = constant_array(inputs[1])
    if indices is None or not indices.size or not shape or given is None or 0 in shape:
        return None
    is_assignment = attrs.get("reduction", "none") in ("none", b"none")
    return (indices, shape, given) if is_assignment else None


def _as_range(numbers: np.ndarray) -> range | None:
    """The numbers as a range; None if they do not grow by 1 each time."""
    if (np.diff(numbers) != 1).any():
        return None
    return range(int(numbers[0]), int(numbers[-1]) + 1)


def _with_box(
    bb: relax.BlockBuilder, data: Any, shape: Sequence[int], box: Sequence[range], updates: Any
) -> Any:
    """Return `data`, in which `updates` replace the elements of a box.

    Parameters
    ----------
    box: the indices of the box along each axis.
    """
    begins, ends = [part.start for part in box], [part.stop for part in box]
    result = bb.emit(relax.op.reshape(updates, [len(part) for part in box]))
    for axis, size in enumerate(shape):
        begin, end = begins[axis], ends[axis]
        joined = [result]
        # Before and after the box along this axis, the tensor stays as it is.
        if begin > 0:
            begins[axis], ends[axis] = 0, begin
            joined.insert(0, _part(bb, data, begins, ends))
        if end < size:
            begins[axis], ends[axis] = end, size
            joined.append(_part(bb, data, begins, ends))
        begins[axis], ends[axis] = 0, size
        if len(joined) > 1:
            result = bb.emit(relax.op.concat(joined, axis))
    return result


def _part(bb: relax.BlockBuilder, data: Any, begins: Sequence[int], ends: Sequence[int]) -> Any:
    axes = list(range(len(begins)))
    return bb.emit(relax.op.strided_slice(data, axes, list(begins), list(ends)))
