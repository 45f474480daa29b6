"""Converts to ONNX PyTorch's operators that scatter elements by indices."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper
from onnxscript import opset18 as op

from .torch_booleans import as_given, as_numbers, type_of_numbers
from .torch_shapes import ints

_REDUCTIONS = {"sum": "add", "mean": "add", "prod": "mul", "amin": "min", "amax": "max"}
"""The ONNX name of each of PyTorch's reductions. A mean is computed as a sum, which is then
divided.
"""


def scatter_reduced(
    x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True
) -> Any:
    """Convert `scatter_reduce`."""
    if not len(x.shape):
        rows = [op.Reshape(each, ints(1)) for each in (x, index, source)]
        result = _rows_reduced(x.dtype, rows, 0, reduce, include_self)
        return op.Squeeze(result, ints(0))
    given = [x, index, _cut(source, index)]
    return _rows_reduced(x.dtype, given, dim, reduce, include_self)


def _cut(source: Any, index: Any) -> Any:
    """Cut `source` to the shape of `index`, since ONNX requires that both have the same shape."""
    if tuple(source.shape) == tuple(index.shape):
        return source
    return op.Slice(source, ints(*[0] * len(index.shape)), op.Shape(index))


def _rows_reduced(dtype: Any, given: list[Any], dim: int, reduce: str, include_self: bool) -> Any:
    """Convert `scatter_reduce` of tensors with at least one dimension.

    Parameters
    ----------
    dtype: the type of the result.
    given: the tensor, the indices and the elements to scatter.
    """
    x, source = (as_numbers(each, dtype) for each in given[::2])
    index = given[1]
    numbers = _reduced(type_of_numbers(dtype), [x, index, source], dim, reduce, include_self)
    return as_given(numbers, dtype)


def _reduced(dtype: Any, given: list[Any], dim: int, reduce: str, include_self: bool) -> Any:
    x, index, source = given
    shape = op.Shape(index)
    if not include_self:
        # The old values at the indices are replaced by the number that does not change the result
        # of the reduction.
        first = op.Expand(_constant(_neutral(reduce, dtype), dtype), shape)
        x = op.ScatterElements(x, index, first, axis=dim)
    result = op.ScatterElements(x, index, source, axis=dim, reduction=_REDUCTIONS[reduce])
    if reduce != "mean":
        return result
    one = _constant(1, dtype)
    counts = op.Expand(_constant(int(include_self), dtype), op.Shape(x))
    counts = op.ScatterElements(counts, index, op.Expand(one, shape), axis=dim, reduction="add")
    if not include_self:
        counts = op.Max(counts, one)
    if dtype.is_floating_point():
        return op.Div(result, counts)
    return op.Div(op.Sub(result, op.Mod(result, counts)), counts)  # Round down.


def index_reduced(
    x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Convert `index_reduce`, which has one index for each row of `source`."""
    if not len(x.shape):
        flat = [op.Reshape(each, ints(-1)) for each in (x, index, source)]
        result = _rows_reduced(x.dtype, flat, 0, reduce, include_self)
        return op.Squeeze(result, ints(0))
    sizes = [-1 if axis == dim % len(x.shape) else 1 for axis in range(len(x.shape))]
    each = op.Expand(op.Reshape(index, ints(*sizes)), op.Shape(source))
    return _rows_reduced(x.dtype, [x, each, source], dim, reduce, include_self)


def scatter(x: Any, dim: int, index: Any, source: Any, reduction: str = "none") -> Any:
    """Convert `scatter` of a tensor or of a number."""
    rows = [_with_dimension(each) for each in (x, index)]
    if not hasattr(source, "shape"):
        source = op.Expand(_constant(source, x.dtype), op.Shape(rows[1]))
    else:
        source = _cut(source, index) if len(index.shape) else _with_dimension(source)
    result = _scattered(x.dtype, rows[0], rows[1], source, axis=dim, reduction=reduction)
    return result if len(x.shape) else op.Squeeze(result, ints(0))


def scatter_with(x: Any, dim: int, index: Any, source: Any, reduce: str) -> Any:
    """Convert `scatter` that adds or multiplies."""
    return scatter(x, dim, index, source, {"add": "add", "multiply": "mul"}[reduce])


def scatter_add(x: Any, dim: int, index: Any, source: Any) -> Any:
    """Convert `scatter_add`."""
    return scatter(x, dim, index, source, "add")


def put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """Convert `put`, whose indices address elements of the flattened tensor."""
    rows, places, values = (op.Reshape(each, ints(-1)) for each in (x, index, source))
    kind = "add" if accumulate else "none"
    result = _scattered(x.dtype, rows, places, values, axis=0, reduction=kind)
    return op.Reshape(result, op.Shape(x))


def _scattered(dtype: Any, x: Any, index: Any, source: Any, **attributes: Any) -> Any:
    """Return the result of a `ScatterElements`. The type `dtype` of the elements may be boolean."""
    numbers = as_numbers(x, dtype), index, as_numbers(source, dtype)
    return as_given(op.ScatterElements(*numbers, **attributes), dtype)


def _with_dimension(x: Any) -> Any:
    return x if len(x.shape) else op.Reshape(x, ints(1))


def _neutral(reduce: str, dtype: Any) -> float | int:
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype.is_floating_point():
        return -np.inf if reduce == "amax" else np.inf
    numbers = np.iinfo(dtype.numpy())
    return int(numbers.min if reduce == "amax" else numbers.max)


def _constant(value: Any, dtype: Any) -> Any:
    """Return a constant of one element and the type `dtype`."""
    return op.Constant(value=numpy_helper.from_array(np.array([value], dtype.numpy())))
