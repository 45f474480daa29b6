"""Converts small operators of onnxruntime's own domain.

Source: onnxruntime's list of its operators, ContribOperators.md, and the kernels for CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import known_shape
from .constants import constant_array, number_like
from .inverse import import_inverse

AS_ONNX_HAS_THEM = {"GatherND": 13, "GridSample": 16, "Pad": 13}
"""Operators of onnxruntime's domain that are defined like an ONNX operator of the same name, each
with the opset of ONNX's definition. Models of earlier opsets use onnxruntime's operators.
"""
UNPACKED = "data_is_unpacked"
"""The name of an attribute of `GatherBlockQuantized` that onnxruntime does not define.

The module `narrow_types` sets this attribute on nodes whose data it has widened to 8 bits.
"""


def _distances(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return the distance of each row of the first input to each row of the second input."""
    metric = bytes(attrs.get("metric", b"sqeuclidean")).decode()
    if metric not in ("euclidean", "sqeuclidean"):
        raise UnsupportedModelError(f"its metric `{metric}` is not `euclidean` or `sqeuclidean`")
    a, b = (bb.emit(relax.op.expand_dims(x, axis)) for x, axis in zip(inputs, (1, 0), strict=True))
    difference = bb.emit(relax.op.subtract(a, b))
    squares = bb.emit(relax.op.multiply(difference, difference))
    total = bb.emit(relax.op.sum(squares, [2]))
    return relax.op.sqrt(total) if metric == "euclidean" else total


def _range(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    numbers = [constant_array(x) for x in inputs if x is not None]
    if any(number is None for number in numbers):
        raise UnsupportedModelError(
            "the length of its result is computed when the model runs: make its inputs constants"
        )
    dtype = str(inputs[0].ty.dtype)
    start, limit, step = (*(x.item() for x in numbers if x is not None), 1)[:3]
    return relax.const(np.arange(start, limit, step).astype(dtype), dtype)


def _expand_dims(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    axis = constant_array(inputs[1])
    if axis is None:
        raise UnsupportedModelError("its axis is computed when the model runs: make it a constant")
    return relax.op.expand_dims(inputs[0], int(axis.item()))


def _gather_block_quantized(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Gather slices of a constant that is quantised in blocks, and return them as floats.

    Only the gathered slices are converted to floats, not the whole constant.
    """
    data, indices, scales, zeros = (*inputs, None)[:4]
    arrays = [None if x is None else constant_array(x) for x in (data, scales, zeros)]
    integers, steps, points = arrays
    if integers is None or steps is None or (zeros is not None and points is None):
        raise UnsupportedModelError(
            "its data, scales and zero points must be constants: export them as initializers"
        )
    rank, bits = integers.ndim, int(attrs.get("bits", 4))
    gathered = int(attrs.get("gather_axis", 0)) % rank
    quantised = int(attrs.get("quantize_axis", 1)) % rank
    block = int(attrs.get("block_size", 128))
    default = 0
    if integers.dtype == np.uint8 and not attrs.get(UNPACKED, 0):
        if bits not in (2, 4, 8) or quantised != rank - 1:
            raise UnsupportedModelError(
                f"it has numbers of {bits} bits in blocks along axis {quantised}: quantise the "
                "model in 2, 4 or 8 bits along the last axis"
            )
        default = 1 << (bits - 1)
        integers = unpacked(integers, bits)
        points = None if points is None else unpacked(points, bits)[..., : steps.shape[-1]]
    if gathered == quantised:
        raise UnsupportedModelError(
            f"it gathers along axis {gathered}, along which its blocks lie: quantise the model "
            "along another axis"
        )
    dtype = str(scales.ty.dtype)
    where = _from_the_first(bb, indices, integers.shape[gathered])
    moved = len(known_shape(indices)) - 1 if quantised > gathered else 0
    axis, size = quantised + moved, integers.shape[quantised]

    def taken(array: np.ndarray[Any, Any]) -> Any:
        constant = relax.const(np.ascontiguousarray(array), str(array.dtype))
        part = bb.emit(relax.op.take(constant, where, gathered, mode="clip"))
        return part if str(array.dtype) == dtype else bb.emit(relax.op.astype(part, dtype))

    def of_elements(values: Any) -> Any:
        repeated = bb.emit(relax.op.repeat(values, block, axis))
        return bb.emit(relax.op.strided_slice(repeated, [axis], [0], [size]))

    result = taken(integers)
    if points is not None:
        result = bb.emit(relax.op.subtract(result, of_elements(taken(points))))
    elif default:
        result = bb.emit(relax.op.subtract(result, number_like(result, default)))
    return relax.op.multiply(result, of_elements(taken(steps)))


def _from_the_first(bb: relax.BlockBuilder, indices: Any, size: int) -> Any:
    """Return `indices` counted from the start. Negative indices count from the end."""
    is_negative = bb.emit(relax.op.less(indices, number_like(indices, 0)))
    from_end = bb.emit(relax.op.add(indices, number_like(indices, size)))
    return bb.emit(relax.op.where(is_negative, from_end, indices))


def unpacked(bytes_: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Unpack the numbers of `bits` bits that are stored in the bytes along the last axis.

    The number in the lowest bits of a byte comes first.
    """
    if bits == 8:
        return bytes_
    parts = [(bytes_ >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*bytes_.shape[:-1], -1)


SMALL = {
    "CDist": _distances,
    "ExpandDims": _expand_dims,
    "GatherBlockQuantized": _gather_block_quantized,
    "Inverse": import_inverse,
    "Range": _range,
}
"""Maps the name of an operator of onnxruntime's domain to its converter."""
