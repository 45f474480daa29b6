"""Converts to ONNX PyTorch's reductions where its exporter gives another type or shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from onnx import TensorProto
from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib.ops.linalg import aten_linalg_vector_norm

from .torch_booleans import as_given, as_numbers
from .torch_shapes import ints


def conversions() -> Mapping[Any, Callable[..., Any]]:
    """Return the conversion of each operator of this module."""
    aten = torch.ops.aten
    return {
        aten.argmax.default: partial(_place, op.ArgMax),
        aten.argmin.default: partial(_place, op.ArgMin),
        aten.linalg_vector_norm.default: _norm,
        aten.log_softmax.int: partial(_normalised, op.LogSoftmax),
        aten.max.default: partial(_extreme_of_all, op.ReduceMax),
        aten.max.dim: partial(_extreme, op.ReduceMax, op.ArgMax),
        aten.mean.dim: _mean,
        aten.min.default: partial(_extreme_of_all, op.ReduceMin),
        aten.min.dim: partial(_extreme, op.ReduceMin, op.ArgMin),
        aten.softmax.int: partial(_normalised, op.Softmax),
    }


def _as_type(x: Any, dtype: int | None) -> Any:
    """Return `x` in the type that the argument `dtype` names.

    PyTorch uses this type for each step.
    """
    return x if dtype in (-1, None, x.dtype) else op.Cast(x, to=dtype)


def _mean(
    x: Any, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: int | None = -1
) -> Any:
    """Convert `mean`. The exporter would change the type only after the mean is rounded."""
    rank = len(x.shape)
    x = _as_type(x, dtype)
    axes = ints(*(dim or range(rank)))
    return op.ReduceMean(x, axes, keepdims=int(keepdim)) if rank else op.Identity(x)


def _normalised(softmax: Any, x: Any, dim: int, dtype: int | None = -1) -> Any:
    """Convert `softmax` or `log_softmax`. The exporter changes the type of the result, and PyTorch
    changes the type of `x`.
    """
    rank = len(x.shape)
    x = _as_type(x, dtype)
    return softmax(x, axis=dim) if rank else op.Squeeze(softmax(op.Unsqueeze(x, ints(0)), axis=0))


def _place(find: Any, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Convert `argmax` or `argmin`.

    Without `dim`, the result is an index into the flattened tensor.
    """
    rank = len(x.shape)
    if dim is not None and rank:
        return find(x, axis=dim, keepdims=int(keepdim))
    place = find(op.Reshape(x, ints(-1)), axis=0, keepdims=0)
    return op.Reshape(place, ints(*[1] * rank)) if keepdim and rank else place


def _norm(
    x: Any,
    order: float = 2.0,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: int | None = -1,
) -> Any:
    """Convert `linalg.vector_norm`. Without `dim`, the exporter ignores `keepdim`."""
    rank = len(x.shape)
    norm = aten_linalg_vector_norm(x, order, dim or None, keepdim, -1 if dtype is None else dtype)
    return op.Reshape(norm, ints(*[1] * rank)) if keepdim and rank and not dim else norm


def _extreme_of_all(reduce: Any, x: Any) -> Any:
    """Convert `max` or `min` of all elements. ONNX lacks it for booleans."""
    return as_given(reduce(as_numbers(x, x.dtype), keepdims=0), x.dtype)


def _extreme(reduce: Any, find: Any, x: Any, dim: int, keepdim: bool = False) -> Any:
    """Convert `max` or `min` along a dimension. ONNX lacks it for booleans."""
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    numbers = as_numbers(x, x.dtype)
    values = as_given(reduce(numbers, ints(dim), keepdims=int(keepdim)), x.dtype)
    return values, op.Cast(find(numbers, axis=dim, keepdims=int(keepdim)), to=TensorProto.INT64)
