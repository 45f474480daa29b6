"""Converts ONNX's `OneHot`, whose result has the dtype of its input `values`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..errors import UnsupportedModelError
from .constants import constant_array


def import_one_hot(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return the result of a `OneHot` node.

    The input `values` holds two numbers, `off` and `on`. The result is `on` where the position
    along the new axis equals the index, and `off` elsewhere. Negative indices count from the end.
    For an index that is out of range or not a whole number, the result is `off` everywhere, as ONNX
    defines.

    Raises
    ------
    UnsupportedModelError
        The depth, which is a size of the result, is not a constant or is less than 1.
    """
    indices, depth_input, values = inputs
    given = constant_array(depth_input)
    if given is None or given.size != 1 or int(given.reshape(-1)[0]) < 1:
        raise UnsupportedModelError(
            "its input `depth` must be a constant of one element, 1 or more: it is a size of the "
            "result"
        )
    depth = int(given.reshape(-1)[0])
    rank = int(indices.ty.ndim)
    axis = int(attrs.get("axis", -1)) % (rank + 1)
    dtype = str(indices.ty.dtype)
    if not np.can_cast(np.array(depth).dtype, dtype, "same_kind") or np.dtype(dtype).itemsize < 4:
        dtype = "float64" if "float" in dtype else "int64"
        indices = bb.emit(relax.op.astype(indices, dtype))
    zero, size = relax.const(0, dtype), relax.const(depth, dtype)
    is_negative = bb.emit(relax.op.less(indices, zero))
    from_end = bb.emit(relax.op.add(indices, size))
    index = bb.emit(relax.op.where(is_negative, from_end, indices))
    places = np.arange(depth, dtype=dtype).reshape(
        [-1 if i == axis else 1 for i in range(rank + 1)]
    )
    found = relax.op.equal(bb.emit(relax.op.expand_dims(index, axis)), relax.const(places, dtype))
    off, on = (_element(bb, values, i) for i in (0, 1))
    return relax.op.where(bb.emit(found), on, off)


def _element(bb: relax.BlockBuilder, values: Any, index: int) -> Any:
    """Return the element at `index` of `values` as a scalar. `values` has the shape (2,)."""
    known = constant_array(values)
    if known is not None:
        return relax.const(known[index], str(values.ty.dtype))
    part = bb.emit(relax.op.strided_slice(values, [0], [index], [index + 1]))
    return bb.emit(relax.op.squeeze(part, [0]))
