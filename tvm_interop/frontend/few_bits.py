"""Converts onnxruntime's matrix products whose constant weights have 2, 4 or 8 bits.

The weights become floats during import.

Source: onnxruntime's list of its operators, ContribOperators.md, and its kernels for CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from ..errors import UnsupportedModelError
from .constants import constant_array
from .microsoft_small import unpacked

_FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)
_NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
_BITS_OF_GROUPS = 4
"""The number of bits for which onnxruntime supports weights in an order of their own."""
_FLOATS_OF_FOUR_BITS = (np.concatenate([_FP4, -_FP4]), _NF4)
"""The number for each value of 4 bits, for each value of the attribute `quant_type`."""


def import_matmul_of_few_bits(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Convert a `MatMulNBits`: multiply by a constant matrix that is quantised in blocks.

    The matrix is stored as (columns, rows), so the blocks lie along its last axis.
    """
    x, packed, scales, zeros, places, bias = (*inputs, *[None] * 3)[:6]
    rows, columns, block = (int(attrs[name]) for name in ("K", "N", "block_size"))
    bits, dtype = int(attrs.get("bits", 4)), str(x.ty.dtype)
    if bits not in (2, 4, 8) or attrs.get("weight_prepacked", 0):
        order = " in the order of a kernel for GPUs" if attrs.get("weight_prepacked", 0) else ""
        raise UnsupportedModelError(
            f"it has weights of {bits} bits{order}: quantise the model in 2, 4 or 8 bits, and "
            "without `weight_prepacked`"
        )
    bytes_, steps, points, groups = _arrays(packed, scales, zeros, places)
    assert bytes_ is not None  # `_arrays` has refused weights that are computed.
    assert steps is not None
    is_packed = points is not None and points.dtype == np.uint8
    if groups is not None and (bits != _BITS_OF_GROUPS or is_packed):
        raise UnsupportedModelError(
            "it has groups (`g_idx`) that onnxruntime does not compute: quantise the model in 4 "
            "bits without zero points, or without `g_idx`"
        )
    blocks = -(-rows // block)
    if groups is None:
        groups = np.arange(rows) // block
    numbers = unpacked(bytes_.reshape(columns, -1), bits)[:, :rows]
    steps = steps.reshape(columns, blocks)[:, groups[:rows]]
    if points is None:
        shift: Any = 1 << (bits - 1)
    else:
        if is_packed:
            points = unpacked(points.reshape(columns, -1), bits)
        shift = points.reshape(columns, -1)[:, groups[:rows]].astype(np.float32)
    wide = (numbers.astype(np.float32) - shift) * steps
    product = _product(bb, x, wide.T, dtype)
    return product if bias is None else relax.op.add(product, bias)


def import_matmul_of_four_bit_floats(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Convert a `MatMulBnb4`: multiply by a constant matrix of floats of 4 bits.

    The matrix is stored as (columns, rows). Its numbers, one row after the other, are divided into
    blocks. The first number of a byte lies in its higher bits.
    """
    x, packed, largest = inputs[:3]
    if not attrs.get("transB", 1):
        raise UnsupportedModelError("its weights are not transposed, as in training: set `transB`")
    rows, columns, block = (int(attrs[name]) for name in ("K", "N", "block_size"))
    kind = int(attrs["quant_type"])
    if not 0 <= kind < len(_FLOATS_OF_FOUR_BITS):
        raise UnsupportedModelError(f"its `quant_type` is {kind}: 0 (FP4) and 1 (NF4) are known")
    bytes_, steps = _arrays(packed, largest)
    assert bytes_ is not None  # `_arrays` has refused weights that are computed.
    assert steps is not None
    pairs = np.stack([bytes_ >> 4, bytes_ & 15], -1).reshape(-1)[: rows * columns]
    numbers = _FLOATS_OF_FOUR_BITS[kind][pairs]
    wide = numbers * np.repeat(steps.astype(np.float32), block)[: rows * columns]
    matrix = wide.reshape(columns, rows)
    return _product(bb, x, matrix.T, str(x.ty.dtype))


def _arrays(*values: Any) -> list[npt.NDArray[Any] | None]:
    """Return the numbers of constant inputs, None for an input that is left out.

    Raises
    ------
    UnsupportedModelError
        An input is computed when the model runs.
    """
    arrays = [None if value is None else constant_array(value) for value in values]
    pairs = zip(values, arrays, strict=True)
    if any(value is not None and array is None for value, array in pairs):
        raise UnsupportedModelError(
            "its weights, scales and zero points must be constants: export them as initializers"
        )
    return arrays


def _product(bb: relax.BlockBuilder, x: Any, matrix: npt.NDArray[Any], dtype: str) -> Any:
    weights = np.ascontiguousarray(matrix.astype(dtype))
    return bb.emit(relax.op.matmul(x, relax.const(weights, dtype)))
