"""Converts to ONNX PyTorch's arithmetic of numbers where its exporter rounds or overflows."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from onnx import TensorProto
from onnxscript import ir
from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib.ops import core

_MOST_CONSTANTS = 1 << 16
"""A range of floats with more elements than this is not stored as a constant."""

_SHORT = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def conversions() -> Mapping[Any, Callable[..., Any]]:
    """Return the conversion of each operator of this module."""
    aten = torch.ops.aten
    left, right = partial(_shifted, "LEFT"), partial(_shifted, "RIGHT")
    return {
        operator.floordiv: _size_divided,
        aten.__lshift__.Scalar: left,
        aten.__rshift__.Scalar: right,
        aten.arange.default: lambda end, **named: _range(core.aten_arange, end, **named),
        aten.arange.start: partial(_range, core.aten_arange_start),
        aten.arange.start_step: partial(_range, core.aten_arange_start_step),
        aten.atan2.default: _atan2,
        aten.bitwise_left_shift.Tensor: left,
        aten.bitwise_left_shift.Tensor_Scalar: left,
        aten.bitwise_right_shift.Tensor: right,
        aten.bitwise_right_shift.Tensor_Scalar: right,
        aten.div.Scalar_mode: _divided,
        aten.div.Tensor_mode: _divided,
        aten.floor_divide.default: partial(_divided, rounding_mode="floor"),
        aten.floor_divide.Scalar: partial(_divided, rounding_mode="floor"),
        aten.heaviside.default: _step,
        aten.isclose.default: _is_close,
        aten.isfinite.default: partial(_finite, True, core.aten_isfinite),
        aten.isinf.default: partial(_finite, False, core.aten_isinf),
        aten.isnan.default: partial(_finite, False, core.aten_isnan),
        aten.log10.default: partial(_log, math.log(10)),
        aten.log2.default: partial(_log, math.log(2)),
        aten.neg.default: _negated,
        aten.remainder.Scalar: _remainder,
        aten.remainder.Scalar_Tensor: _remainder,
        aten.remainder.Tensor: _remainder,
        aten.scalar_tensor.default: _scalar,
    }


def _number(value: Any, dtype: Any) -> Any:
    """Return a number as a constant of the type `dtype`; return a tensor unchanged."""
    if hasattr(value, "shape"):
        return value
    return op.Constant(value=ir.tensor(value, dtype=ir.DataType(dtype)))


def _scalar(value: Any, dtype: int = -1, **_: Any) -> Any:
    """Convert `scalar_tensor`. The exporter rounds a number to float32 first, also for float64."""
    of = TensorProto.FLOAT if dtype in (-1, None) else dtype
    if of in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        return core.aten_scalar_tensor(value, of)
    return op.Cast(value, to=of) if hasattr(value, "shape") else _number(value, of)


def _given(value: Any) -> Any:
    """Return the number from which `scalar_tensor` made a tensor; return other values unchanged.

    PyTorch does not round this number to float16 or bfloat16 before it divides by the number.
    """
    producer = value.producer() if hasattr(value, "producer") else None
    node: Any = producer.meta.get("node") if producer is not None else None
    is_number = getattr(node, "target", None) is torch.ops.aten.scalar_tensor.default
    return node.args[0] if is_number and isinstance(node.args[0], int | float) else value


def _widened(dtype: Any, *given: Any) -> list[Any]:
    """Return operands of the type `dtype` in the type that PyTorch computes in: float32 for floats
    of 16 bits. Numbers become constants.
    """
    if dtype not in _SHORT:
        return [_number(each, dtype) for each in given]
    of = TensorProto.FLOAT
    return [op.Cast(x, to=of) if hasattr(x, "shape") else _number(x, of) for x in given]


def _divided(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    """Convert a division that is rounded down, or towards zero.

    The exporter divides integers as float32 numbers, which are inexact from 2**24 on. For floats,
    it rounds the quotient, but PyTorch subtracts the remainder before it divides. So in PyTorch, 1
    divided by 0.1 and rounded down is 9, because 0.1 as a float is slightly more than a tenth.
    """
    if isinstance(y, float) and x.dtype.is_integer():
        x = op.Cast(x, to=TensorProto.FLOAT)
    dtype = x.dtype
    if dtype.is_integer() and rounding_mode is not None:
        y = _number(y, dtype)
        is_exact = rounding_mode == "trunc" or not dtype.is_signed()
        return op.Div(x, y) if is_exact else core.aten_floor_divide(x, y)
    if rounding_mode != "floor":
        return core.aten_div_mode(x, _number(y, dtype), rounding_mode)
    x, y, zero, one, half = _widened(dtype, x, _given(y), 0.0, 1.0, 0.5)
    rest = op.Mod(x, y, fmod=1)
    quotient = op.Div(op.Sub(x, rest), y)
    quotient = op.Where(_is_below(rest, y, zero), op.Sub(quotient, one), quotient)
    down = op.Floor(quotient)
    down = op.Where(op.Greater(op.Sub(quotient, down), half), op.Add(down, one), down)
    return op.Cast(op.Where(op.Equal(y, zero), op.Div(x, y), down), to=dtype)


def _is_below(rest: Any, y: Any, zero: Any) -> Any:
    """Whether the remainder `rest` of a division by `y` has the opposite sign of `y`."""
    differs = op.Xor(op.Less(y, zero), op.Less(rest, zero))
    return op.And(op.Not(op.Equal(rest, zero)), differs)


def _remainder(x: Any, y: Any) -> Any:
    """Convert `remainder`, which has the sign of the divisor.

    The exporter subtracts a product from `x`. The error of that difference may be as large as the
    remainder, and it is NaN for an infinite divisor.
    """
    dtype = x.dtype if hasattr(x, "dtype") else y.dtype
    if dtype.is_integer():
        return op.Mod(_number(x, dtype), _number(y, dtype))
    x, y, zero = _widened(dtype, x, y, 0.0)
    rest = op.Mod(x, y, fmod=1)
    return op.Cast(op.Where(_is_below(rest, y, zero), op.Add(rest, y), rest), to=dtype)


def _size_divided(x: Any, y: Any) -> Any:
    """Convert the division of sizes, rounded down.

    The exporter rounds towards zero. That is wrong for negative numbers, as in `-(-n // 2)`.
    """
    if _is_not_negative(x) and _is_not_negative(y):
        return op.Div(x, y)
    x, y = _number(x, TensorProto.INT64), _number(y, TensorProto.INT64)
    zero = _number(0, TensorProto.INT64)
    differs = op.Equal(op.Less(x, zero), op.Greater(y, zero))
    is_rounded = op.And(differs, op.Not(op.Equal(op.Mod(x, y), zero)))
    return op.Sub(op.Div(x, y), op.Cast(is_rounded, to=TensorProto.INT64))


def _is_not_negative(size: Any) -> bool:
    """Whether the ranges of the program's sizes show that a size is at least 0."""
    if isinstance(size, int):
        return size >= 0
    producer = size.producer() if hasattr(size, "producer") else None
    node = producer.meta.get("node") if producer is not None else size.meta.get("node")
    value = getattr(node, "meta", {}).get("val")
    if not isinstance(value, torch.SymInt):
        return False
    bounds = value.node.shape_env.bound_sympy(value.node.expr)
    return bool(bounds.lower >= 0)


def _negated(x: Any) -> Any:
    """Convert `neg`. ONNX does not negate unsigned integers."""
    is_unsigned = x.dtype.is_integer() and not x.dtype.is_signed()
    return op.Sub(_number(0, x.dtype), x) if is_unsigned else op.Neg(x)


def _step(x: Any, values: Any) -> Any:
    """Convert `heaviside`, which is 0 for NaN in PyTorch."""
    zero = _number(0, x.dtype)
    return op.Where(op.Equal(x, zero), values, op.CastLike(op.Greater(x, zero), x))


def _shifted(direction: str, x: Any, y: Any) -> Any:
    """Convert a shift of bits. The exporter gives shifted uint8 numbers the type int8."""
    y = _number(y, x.dtype)
    if not x.dtype.is_signed():
        return op.BitShift(x, y, direction=direction)
    of = core.aten_bitwise_left_shift if direction == "LEFT" else core.aten_bitwise_right_shift
    return of(x, y)


def _range(convert: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Convert `arange`. PyTorch computes the length of a range of floats in float64, and ONNX in
    the type of the range. So a range of constants becomes a constant.
    """
    of_floats = all(isinstance(each, int | float) for each in given) and any(
        isinstance(each, float) for each in given
    )
    if not of_floats or named.get("dtype", -1) not in (-1, None, TensorProto.FLOAT):
        return convert(*given, **named)
    numbers = torch.arange(*given, dtype=torch.float32)
    if numbers.numel() > _MOST_CONSTANTS:
        return convert(*given, **named)
    return op.Constant(value=ir.tensor(numbers.numpy()))


def _is_close(
    x: Any, y: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Any:
    """Convert `isclose`. The exporter rounds the tolerances of integers to integers."""
    if not x.dtype.is_floating_point():
        x, y = (op.Cast(each, to=TensorProto.DOUBLE) for each in (x, y))
        allowed = op.Add(
            _number(atol, TensorProto.DOUBLE), op.Mul(_number(rtol, TensorProto.DOUBLE), op.Abs(y))
        )
        return op.LessOrEqual(op.Abs(op.Sub(x, y)), allowed)
    return core.aten_isclose(x, y, rtol, atol, equal_nan)


def _finite(of_integers: bool, test: Any, x: Any) -> Any:
    """Convert a test for infinity or NaN, which are floats only."""
    if x.dtype.is_floating_point():
        return test(x)
    result = op.Constant(value=ir.tensor(of_integers, dtype=ir.DataType.BOOL))
    return op.Expand(result, op.Shape(x))


def _log(of_base: float, x: Any) -> Any:
    """Convert a logarithm whose base is 2 or 10.

    It is computed in float64, so that a power of the base has a whole number as its logarithm.
    """
    wide = op.Cast(x, to=TensorProto.DOUBLE)
    return op.Cast(op.Div(op.Log(wide), _number(of_base, TensorProto.DOUBLE)), to=x.dtype)


def _atan2(y: Any, x: Any) -> Any:
    """Convert `atan2`. The exporter's own formula ignores the signs of zeros, and gives -pi where
    `y` is 0 and `x` is negative.
    """
    dtype = x.dtype
    y, x, zero, pi, eighth = _widened(dtype, y, x, 0.0, math.pi, math.pi / 4)
    high, wide = op.Abs(y), op.Abs(x)
    angle = op.Atan(op.Div(high, wide))
    angle = op.Where(op.Equal(op.Add(high, wide), zero), zero, angle)
    both_infinite = op.And(op.IsInf(y), op.IsInf(x))
    angle = op.Where(both_infinite, eighth, angle)
    angle = op.Where(_has_minus(x, zero), op.Sub(pi, angle), angle)
    return op.Cast(op.Where(_has_minus(y, zero), op.Neg(angle), angle), to=dtype)


def _has_minus(x: Any, zero: Any) -> Any:
    """Whether a number is negative, or is negative zero."""
    is_negative_zero = op.And(op.Equal(x, zero), op.Less(op.Reciprocal(x), zero))
    return op.Or(op.Less(x, zero), is_negative_zero)
