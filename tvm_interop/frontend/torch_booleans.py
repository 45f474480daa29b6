"""Booleans in conversions of PyTorch's operators that ONNX has for numbers only."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto
from onnxscript import opset18 as op


def as_numbers(x: Any, dtype: Any) -> Any:
    """Return `x`, whose elements have the type `dtype`, with int32 numbers for booleans."""
    return op.Cast(x, to=TensorProto.INT32) if dtype == TensorProto.BOOL else x


def type_of_numbers(dtype: Any) -> Any:
    """Return the type of `as_numbers`."""
    return type(dtype)(TensorProto.INT32) if dtype == TensorProto.BOOL else dtype


def as_given(result: Any, dtype: Any) -> Any:
    """Return a result that was computed from `as_numbers`, with booleans for booleans."""
    return op.Cast(result, to=TensorProto.BOOL) if dtype == TensorProto.BOOL else result
