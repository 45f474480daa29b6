"""Converts ONNX's `Pow`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from .constants import constant_array

_MOST_MULTIPLIED = 8
"""The largest constant exponent for which a power is computed by multiplications, not by `pow`."""


def import_power(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return `x` to the power `y`, in the type of `x`.

    Powers of integers are computed in float64, which is exact up to 2**53. A power that is too
    large for its type wraps around, as products of integers do.
    """
    x, y = inputs
    dtype = str(x.ty.dtype)
    if "float" in dtype and dtype == str(y.ty.dtype):
        return power(bb, x, y)
    wide = "float32" if dtype == "float16" else "float64" if "float" not in dtype else dtype
    result = power(bb, bb.emit(relax.op.astype(x, wide)), _as_type(bb, y, wide))
    if "float" in dtype:
        return relax.op.astype(result, dtype)
    whole = bb.emit(result if "float" in str(y.ty.dtype) else relax.op.round(result))
    return relax.op.astype(bb.emit(relax.op.astype(whole, "int64")), dtype)


def _as_type(bb: relax.BlockBuilder, y: Any, dtype: str) -> Any:
    known = constant_array(y)
    if known is not None:
        return relax.const(known.astype(dtype), dtype)
    return bb.emit(relax.op.astype(y, dtype))


def power(bb: relax.BlockBuilder, x: Any, y: Any) -> Any:
    """Return `x` to the power `y`, for floats of the same type.

    A small whole constant `y` becomes multiplications. TVM warns about kernels with a constant
    exponent of 3 or more.
    """
    known = constant_array(y)
    if known is None or known.size != 1 or known.ndim > x.ty.ndim or not known.item() >= 3:
        return bb.emit(relax.op.power(x, y))
    exponent = known.item()
    if exponent.is_integer() and exponent <= _MOST_MULTIPLIED:
        return _product(bb, x, int(exponent))
    # The exponent becomes a tensor of one element, which the kernel reads from memory. TVM would
    # write a scalar exponent into the kernel, and then warn.
    dtype = str(y.ty.dtype)
    several = relax.const(np.full((1,) * max(1, int(x.ty.ndim)), exponent, dtype), dtype)
    result = bb.emit(relax.op.power(x, several))
    return result if x.ty.ndim else bb.emit(relax.op.reshape(result, ()))


def _product(bb: relax.BlockBuilder, x: Any, exponent: int) -> Any:
    """Compute a power by repeated squaring: x**6 is (x * x**2)**2."""
    if exponent == 1:
        return x
    half = _product(bb, x, exponent // 2)
    square = bb.emit(relax.op.multiply(half, half))
    return bb.emit(relax.op.multiply(square, x)) if exponent % 2 else square
