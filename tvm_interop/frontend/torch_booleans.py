"""Helps to convert PyTorch's operators on booleans that ONNX defines only for numbers."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto
from onnxscript import opset18 as op


def as_numbers(x: Any, dtype: Any) -> Any:
    """Return `x`, whose elements have the type `dtype`; if these are booleans, convert them to
    int32.
    """
    return op.Cast(x, to=TensorProto.INT32) if dtype == TensorProto.BOOL else x


def type_of_numbers(dtype: Any) -> Any:
    """Return the type of the elements that `as_numbers` returns."""
    return type(dtype)(TensorProto.INT32) if dtype == TensorProto.BOOL else dtype


def as_given(result: Any, dtype: Any) -> Any:
    """Convert a result that was computed from `as_numbers` back to booleans, if `dtype` is
    boolean.
    """
    return op.Cast(result, to=TensorProto.BOOL) if dtype == TensorProto.BOOL else result
