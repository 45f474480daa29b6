"""Converts ONNX's quantisation in blocks, and quantisation to floats of 4 and 8 bits.

In quantisation in blocks, each block of elements of an axis has its own scale. TVM's `quantize` and
`dequantize` do not support this: they take one scale for the whole tensor, or one scale for each
index of an axis. Floats of 4 and 8 bits are kept as float32 (see `small_floats`).

Source: the definitions of `QuantizeLinear` and `DequantizeLinear` in the ONNX specification, opset
21.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from tvm import relax

from ..lowering.static_shape import static_shape
from .constants import number_like
from .small_floats import SMALL_FLOATS, as_small_float


def import_dequantize(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the dequantised floats of a node with the attribute `block_size`, or of small floats.

    Return None for other nodes, and for a node of unknown shape, which TVM's converter handles.
    """
    block = int(attrs.get("block_size", 0))
    x, scale, zero = (*inputs, None)[:3]
    shape = static_shape(x.ty)
    if not (block or "float" in str(x.ty.dtype)) or shape is None:
        return None
    of_elements = _spread(bb, attrs, shape)
    dtype = str(scale.ty.dtype)
    result = bb.emit(relax.op.astype(x, dtype))
    if zero is not None:
        shift = of_elements(bb.emit(relax.op.astype(zero, dtype)))
        result = bb.emit(relax.op.subtract(result, shift))
    return relax.op.multiply(result, of_elements(scale))


def import_quantize(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return the quantised integers of a node with the attribute `block_size`, or small floats.

    Return None for other nodes, and for a node of unknown shape, which TVM's converter handles.
    """
    x, scale, zero = (*inputs, None)[:3]
    shape, wanted = static_shape(x.ty), int(attrs.get("output_dtype", 0))
    dtype = "uint8" if zero is None else str(zero.ty.dtype)
    small = SMALL_FLOATS.get(wanted)
    if small is not None and shape is not None:
        of_elements = _spread(bb, attrs, shape)
        wide, steps = (bb.emit(relax.op.astype(each, "float32")) for each in (x, scale))
        divided = bb.emit(relax.op.divide(wide, of_elements(steps)))
        return as_small_float(bb, divided, small, bool(attrs.get("saturate", 1)))
    if wanted:
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(wanted))
    if not attrs.get("block_size", 0) or shape is None or not dtype.startswith(("int", "uint")):
        return None
    of_elements = _spread(bb, attrs, shape)
    wide = bb.emit(relax.op.astype(x, "float32"))
    steps = bb.emit(relax.op.divide(wide, of_elements(bb.emit(relax.op.astype(scale, "float32")))))
    result = bb.emit(relax.op.round(steps))
    if zero is not None:
        shift = of_elements(bb.emit(relax.op.astype(zero, "float32")))
        result = bb.emit(relax.op.add(result, shift))
    ends = np.iinfo(dtype)
    for limit, of_both in ((ends.min, relax.op.maximum), (ends.max, relax.op.minimum)):
        result = bb.emit(of_both(result, number_like(result, float(limit))))
    return relax.op.astype(bb.emit(relax.op.astype(result, "int32")), dtype)


def _spread(
    bb: relax.BlockBuilder, attrs: Mapping[str, Any], shape: tuple[int, ...]
) -> Callable[[Any], Any]:
    """Return a function that makes scales or zero points of `x` broadcast to its elements.

    If `x` has blocks, there is one number for each block, which is repeated for all elements of the
    block. Without blocks, there is one number for all elements, or one for each index of an axis.
    """
    block, axis = int(attrs.get("block_size", 0)), int(attrs.get("axis", 1))

    def of_elements(values: Any) -> Any:
        known = static_shape(values.ty)
        if not block:
            if known in ((), (1,)):
                return bb.emit(relax.op.reshape(values, ()))
            sizes = [size if i == axis % len(shape) else 1 for i, size in enumerate(shape)]
            return bb.emit(relax.op.reshape(values, sizes))
        repeated = bb.emit(relax.op.repeat(values, block, axis % len(shape)))
        # The last block of an axis may have fewer than `block` elements, so the repeated numbers
        # beyond the end of the axis are cut off.
        return bb.emit(relax.op.strided_slice(repeated, [axis % len(shape)], [0], [shape[axis]]))

    return of_elements
