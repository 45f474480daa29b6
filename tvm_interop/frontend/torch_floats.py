"""Converts to ONNX PyTorch's `clamp`, and operators that depend on the bits of float32 numbers.

The operators are computed in float64. It represents all float32 numbers exactly, and also the
differences of neighbouring float32 numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper
from onnxscript import ir
from onnxscript import opset18 as op

_LOWEST = -200
_HIGHEST = 200
"""The smallest and the largest exponent in the table of powers of two."""

_FRACTION_BITS = 24
_LOWEST_STEP = -149
"""The exponent of the smallest positive float32 number."""


def fraction_and_exponent(x: Any) -> Any:
    """Convert `frexp`: a fraction of at least one half and below one, and an exponent of two."""
    wide = _in_float64(x, "frexp")
    exponent = _exponent(wide)
    fraction = op.Mul(wide, _power_of_two(op.Neg(exponent)))
    is_number = _is_nonzero_number(wide)
    zero = op.Constant(value_int=0)
    return (
        op.CastLike(op.Where(is_number, fraction, wide), x),
        op.Cast(op.Where(is_number, exponent, zero), to=TensorProto.INT32),
    )


def next_after(x: Any, y: Any) -> Any:
    """Convert `nextafter`: the float32 number that follows `x` in the direction of `y`."""
    start, goal = _in_float64(x, "nextafter"), _in_float64(y, "nextafter")
    exponent = _exponent(start)
    zero, half = float64(0), float64(0.5)
    is_upward = op.Less(start, goal)
    fraction = op.Mul(start, _power_of_two(op.Neg(exponent)))
    # Just below a power of two, neighbouring numbers are half as far apart as just above the power.
    is_narrow = op.And(
        op.Equal(op.Abs(fraction), half), op.Xor(op.Less(start, zero), op.Not(is_upward))
    )
    bits = op.Where(
        is_narrow,
        op.Constant(value_int=_FRACTION_BITS + 1),
        op.Constant(value_int=_FRACTION_BITS),
    )
    power = op.Max(op.Sub(exponent, bits), op.Constant(value_int=_LOWEST_STEP))
    lowest = op.Constant(value_int=_LOWEST_STEP)
    step = _power_of_two(op.Where(op.Equal(start, zero), lowest, power))
    moved = op.Add(start, op.Where(is_upward, step, op.Neg(step)))
    largest = float64(float(np.finfo(np.float32).max))
    from_infinity = op.Where(is_upward, op.Neg(largest), largest)
    moved = op.Where(op.IsInf(start), from_infinity, moved)
    result = op.Where(op.Equal(start, goal), goal, moved)
    is_nan = op.Or(op.IsNaN(start), op.IsNaN(goal))
    return op.CastLike(op.Where(is_nan, float64(math.nan), result), x)


def _in_float64(x: Any, name: str) -> Any:
    if x.dtype != TensorProto.FLOAT:
        raise TypeError(f"`{name}` is converted for float32 only")
    return op.Cast(x, to=TensorProto.DOUBLE)


def _exponent(x: Any) -> Any:
    """Return the exponents of `frexp`. For 0, infinity and NaN the result has no meaning."""
    size = op.Where(_is_nonzero_number(x), op.Abs(x), float64(1))
    rough = op.Cast(op.Floor(op.Mul(op.Log(size), float64(1 / math.log(2)))), to=TensorProto.INT64)
    # Near a power of two, a rounding error of the logarithm may change the result by 1. The lines
    # below correct this.
    one = op.Constant(value_int=1)
    fraction = op.Mul(size, _power_of_two(op.Neg(rough)))
    rough = op.Where(op.Less(fraction, float64(1)), op.Sub(rough, one), rough)
    rough = op.Where(op.GreaterOrEqual(fraction, float64(2)), op.Add(rough, one), rough)
    return op.Add(rough, one)


def _power_of_two(exponent: Any) -> Any:
    powers = np.ldexp(1.0, np.arange(_LOWEST, _HIGHEST + 1))
    table = op.Constant(value=numpy_helper.from_array(powers))
    return op.Gather(table, op.Sub(exponent, op.Constant(value_int=_LOWEST)))


def _is_nonzero_number(x: Any) -> Any:
    is_other = op.Or(op.IsNaN(x), op.IsInf(x))
    return op.Not(op.Or(is_other, op.Equal(x, float64(0))))


def float64(value: float) -> Any:
    """Return a constant of float64 without dimensions."""
    return op.Constant(value=numpy_helper.from_array(np.float64(value)))


def clamped(x: Any, low: Any = None, high: Any = None) -> Any:
    """Convert `clamp`. With a single bound, ONNX's `Clip` makes infinity the largest number."""
    low, high = (None if bound is None else _bound(bound, x) for bound in (low, high))
    if low is None:
        return op.Identity(x) if high is None else op.Min(x, high)
    return op.Max(x, low) if high is None else op.Clip(x, low, high)


def _bound(bound: Any, x: Any) -> Any:
    """Return a bound in the type of `x`. A number does not become a float32 number first."""
    if hasattr(bound, "shape"):
        return op.CastLike(bound, x)
    return op.Constant(value=ir.tensor(bound, dtype=x.dtype))


def clamped_above(x: Any, high: Any) -> Any:
    """Convert `clamp_max`."""
    return clamped(x, None, high)
