"""Keeps the indices in ONNX models within the bounds of the tensors that they address.

In ONNX, an index out of range is an error. A constant index out of range is refused when the model
is compiled. An index that is computed at run time is replaced by the nearest valid index. TVM's
kernels do not check indices, so they would read or write memory outside of the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from ..lowering.static_shape import static_shape
from .constants import constant_array
from .misfit import MisfitError

_INDEX_INPUT = {
    "Gather": 1,
    "GatherElements": 1,
    "GatherND": 1,
    "RoiAlign": 2,
    "Scatter": 1,
    "ScatterElements": 1,
    "ScatterND": 1,
}
"""For each operator, the position of the input that holds the indices.

The indices address elements of the operator's first input.
"""


def with_safe_indices(
    bb: relax.BlockBuilder, op_type: str, inputs: list[Any], attrs: Mapping[str, Any]
) -> list[Any]:
    """Return the inputs of a node, changed so that every index addresses an existing element.

    Raises
    ------
    UnsupportedModelError
        A constant index is out of range.
    """
    if op_type == "MaxRoiPool":
        inputs = copy(inputs)
        inputs[1] = _regions_of_images(bb, inputs[1], int(inputs[0].ty.shape[0]))
        return inputs
    at = _INDEX_INPUT.get(op_type)
    if at is None or len(inputs) <= at:
        return inputs
    shape = static_shape(getattr(inputs[0], "ty", None))
    if shape is None or static_shape(getattr(inputs[at], "ty", None)) is None:
        return inputs  # An input is a shape expression, whose sizes TVM's importer reads itself.
    # `list(inputs)` would raise an error for an index past the end, where TVM's own list type gives
    # None.
    inputs = copy(inputs)
    sizes = _sizes(op_type, shape, static_shape(inputs[at].ty) or (), attrs)
    known = constant_array(inputs[at])
    if known is not None:
        inputs[at] = relax.const(_checked(known, sizes), str(inputs[at].ty.dtype))
    elif op_type != "Gather":  # `bounds.within_bounds` clips the indices of a `Gather` later.
        inputs[at] = bounded(bb, inputs[at], sizes)
    return inputs


def _sizes(
    op_type: str,
    shape: tuple[int, ...],
    indices: tuple[int, ...],
    attrs: Mapping[str, Any],
) -> npt.NDArray[np.int64]:
    """Return the number of elements that an index may address, as a scalar.

    An index of `GatherND` or `ScatterND` has several components. For these operators the result has
    one number for each component, shape (components,).
    """
    if op_type in ("GatherND", "ScatterND"):
        first = int(attrs.get("batch_dims", 0))
        return np.array(shape[first : first + indices[-1]], np.int64)
    axis = 0 if op_type == "RoiAlign" else int(attrs.get("axis", 0))
    return np.array(shape[axis], np.int64)


def _regions_of_images(bb: relax.BlockBuilder, regions: Any, images: int) -> Any:
    """Return `regions` with every image index limited to the range from 0 to `images - 1`.

    A row of `regions` is (image, left, top, right, bottom).
    """
    dtype = str(regions.ty.dtype)
    limits = np.array([[-np.inf] * 5, [np.inf] * 5])
    limits[:, 0] = 0, images - 1
    low, high = (relax.const(row, dtype) for row in limits.astype(dtype))
    return bb.emit(relax.op.minimum(bb.emit(relax.op.maximum(regions, low)), high))


def _checked(indices: npt.NDArray[Any], sizes: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return constant indices counted from the start; refuse an index out of range."""
    wrong = (indices < -sizes) | (indices >= sizes)
    if wrong.any():
        limits = np.broadcast_to(sizes, indices.shape)
        index, size = indices[wrong].flat[0], limits[wrong].flat[0]
        raise MisfitError(
            f"its index {index} is out of range: there are {size} elements, from {-size} to "
            f"{size - 1}"
        )
    return np.where(indices < 0, indices + sizes, indices).astype(indices.dtype)


def bounded(bb: Any, indices: Any, sizes: npt.NDArray[np.int64]) -> Any:
    """Return `indices` counted from the start, and limited to elements that exist.

    Negative indices count from the end.

    Parameters
    ----------
    bb: the block builder that emits the operators.
    sizes: the number of elements, as a scalar or with one entry for each position along the last
        axis of `indices`.
    """
    dtype = str(indices.ty.dtype)
    zero = relax.const(0, dtype)
    is_negative = bb.emit(relax.op.less(indices, zero))
    from_end = bb.emit(relax.op.add(indices, relax.const(sizes.astype(dtype), dtype)))
    index = bb.emit(relax.op.where(is_negative, from_end, indices))
    at_least = bb.emit(relax.op.maximum(index, zero))
    last = np.maximum(sizes - 1, 0).astype(dtype)
    return bb.emit(relax.op.minimum(at_least, relax.const(last, dtype)))
