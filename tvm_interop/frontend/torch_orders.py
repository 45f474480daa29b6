"""Converts to ONNX PyTorch's operators that sort, search, or select elements by their order."""

from __future__ import annotations

import itertools
import math
from typing import Any

from onnx import TensorProto
from onnxscript import opset18 as op

from .torch_booleans import as_given, as_numbers
from .torch_floats import float64
from .torch_shapes import fixed_sizes, ints


def sort(x: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Convert `sort` to ONNX's `TopK`, which keeps the order of equal elements."""
    del stable
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    values, places = _in_order(as_numbers(x, x.dtype), dim, int(descending))
    return as_given(values, x.dtype), places


def _in_order(x: Any, dim: int, largest: int) -> Any:
    count = op.Shape(x, start=dim, end=dim + 1 if dim != -1 else None)
    return op.TopK(x, count, axis=dim, largest=largest, sorted=1)


def top_k(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Convert `topk`, also of a tensor without dimensions."""
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    count = ints(k) if isinstance(k, int) else op.Reshape(k, ints(1))
    return op.TopK(x, count, axis=dim, largest=int(largest), sorted=int(sorted))


def kth_value(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Convert `kthvalue`. In PyTorch, as in ONNX, NaN is larger than all numbers."""
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    return _kth_of(x, k, dim, keepdim)


def _kth_of(x: Any, k: int, dim: int, keepdim: bool) -> Any:
    found = op.TopK(x, ints(k), axis=dim, largest=0, sorted=1)
    last = [op.Slice(each, ints(k - 1), ints(k), ints(dim)) for each in found]
    return last if keepdim else [op.Squeeze(each, ints(dim)) for each in last]


def median_along(x: Any, dim: int, keepdim: bool = False) -> Any:
    """Convert `median`: the smaller one of the two numbers in the middle, or the first NaN."""
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    (size,) = fixed_sizes(x.shape, [dim])
    return _median_of(x, x.dtype.is_floating_point(), (size + 1) // 2, dim, keepdim)


def _median_of(x: Any, is_float: bool, k: int, dim: int, keepdim: bool) -> Any:
    value, place = _kth_of(x, k, dim, keepdim)
    if not is_float:
        return value, place
    is_nan = op.Cast(op.IsNaN(x), to=TensorProto.INT32)
    some = op.Cast(op.ReduceMax(is_nan, ints(dim), keepdims=int(keepdim)), to=TensorProto.BOOL)
    first = op.ArgMax(is_nan, axis=dim, keepdims=int(keepdim))
    nan = op.CastLike(op.Constant(value_float=math.nan), x)
    return op.Where(some, nan, value), op.Where(some, first, place)


def median(x: Any) -> Any:
    """Convert `median` of all elements."""
    if not len(x.shape):
        return op.Identity(x)
    count = math.prod(fixed_sizes(x.shape, range(len(x.shape))))
    is_float = x.dtype.is_floating_point()
    return _median_of(op.Reshape(x, ints(-1)), is_float, (count + 1) // 2, 0, False)[0]


def nan_median_along(x: Any, dim: int, keepdim: bool = False) -> Any:
    """Convert `nanmedian`: the median of the numbers; NaN where all elements are NaN."""
    if not len(x.shape) or not x.dtype.is_floating_point():
        return median_along(x, dim, keepdim)
    return _nan_median_of(x, dim, keepdim)


def _nan_median_of(x: Any, dim: int, keepdim: bool) -> Any:
    numbers = op.Cast(op.Not(op.IsNaN(x)), to=TensorProto.INT64)
    count = op.ReduceSum(numbers, ints(dim), keepdims=1)
    one, two, zero = (op.Constant(value_int=value) for value in (1, 2, 0))
    middle = op.Div(op.Max(op.Sub(count, one), zero), two)
    found = [op.GatherElements(each, middle, axis=dim) for each in _in_order(x, dim, 0)]
    return found if keepdim else [op.Squeeze(each, ints(dim)) for each in found]


def nan_median(x: Any) -> Any:
    """Convert `nanmedian` of all elements."""
    if not len(x.shape) or not x.dtype.is_floating_point():
        return median(x)
    return _nan_median_of(op.Reshape(x, ints(-1)), 0, False)[0]


def mode(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """Convert `mode`: the smallest of the most frequent elements, and its last position.

    To find its frequency, each element is compared with all other elements of its row.
    """
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    (size,) = fixed_sizes(x.shape, [dim])
    rank = len(x.shape)
    last = ints(-1)
    order = [axis for axis in range(rank) if axis != dim % rank] + [dim % rank]
    rows = op.Transpose(as_numbers(x, x.dtype), perm=order)
    same = op.Equal(op.Unsqueeze(rows, ints(-1)), op.Unsqueeze(rows, ints(-2)))
    counts = op.ReduceSum(op.Cast(same, to=TensorProto.INT32), last, keepdims=0)
    is_most = op.Equal(counts, op.ReduceMax(counts, last, keepdims=1))
    # NaN differs from itself, so the frequency of NaN is 0. NaN is chosen only if a row has nothing
    # else.
    value = op.ReduceMin(
        op.Where(is_most, rows, op.ReduceMax(_without_nan(rows, x.dtype), last, keepdims=1)),
        last,
        keepdims=1,
    )
    places = op.Constant(value_ints=range(size))
    nowhere = op.Constant(value_int=-1)
    place = op.ReduceMax(op.Where(op.Equal(rows, value), places, nowhere), last, keepdims=1)
    is_nowhere = op.Equal(place, nowhere)
    place = op.Where(is_nowhere, op.Constant(value_int=size - 1), place)
    found = [as_given(value, x.dtype), place]
    if not keepdim:
        return [op.Squeeze(each, last) for each in found]
    back = [order.index(axis) for axis in range(rank)]
    return [op.Transpose(each, perm=back) for each in found]


def _without_nan(x: Any, dtype: Any) -> Any:
    """Return `x` with minus infinity in place of NaN."""
    if not dtype.is_floating_point():
        return x
    return op.Where(op.IsNaN(x), op.CastLike(op.Constant(value_float=-math.inf), x), x)


def cumulative_extreme(is_after: Any, x: Any, dim: int) -> Any:
    """Convert `cummax` or `cummin`, in steps over ranges whose length doubles.

    Each step combines, for each element, the extremes of two neighbouring ranges. The position is
    that of the last of equal elements, or of the last NaN.

    Parameters
    ----------
    is_after: ONNX's comparison that is true where an element replaces an earlier one.
    """
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    (size,) = fixed_sizes(x.shape, [dim])
    is_float = x.dtype.is_floating_point()
    values = as_numbers(x, x.dtype)
    shape = [size if axis == dim % len(x.shape) else 1 for axis in range(len(x.shape))]
    places = op.Expand(op.Reshape(op.Constant(value_ints=range(size)), ints(*shape)), op.Shape(x))

    def part(of: Any, begin: int, end: int) -> Any:
        # Without an explicit step, onnxscript would merge two slices into a `Split` of wrong sizes.
        return op.Slice(of, ints(begin), ints(end), ints(dim), ints(1))

    for step in itertools.takewhile(lambda n: n < size, (1 << i for i in itertools.count())):
        earlier, later = part(values, 0, size - step), part(values, step, size)
        replaces = is_after(later, earlier)
        if is_float:
            replaces = op.Or(replaces, op.IsNaN(later))
        places_of_both = part(places, step, size), part(places, 0, size - step)
        chosen = op.Where(replaces, later, earlier), op.Where(replaces, *places_of_both)
        values = op.Concat(part(values, 0, step), chosen[0], axis=dim)
        places = op.Concat(part(places, 0, step), chosen[1], axis=dim)
    return as_given(values, x.dtype), op.Identity(places)


def search_sorted(
    ordered: Any,
    values: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """Convert `searchsorted`: the number of elements before each value in its sorted row."""
    of_rows = len(ordered.shape) > 1
    if sorter is not None:
        ordered = op.GatherElements(ordered, sorter, axis=-1)
    if not hasattr(values, "shape"):  # The value is a number, not a tensor.
        ordered = op.Cast(ordered, to=TensorProto.DOUBLE)
        each = float64(float(values))
    else:
        each = op.Unsqueeze(values, ints(-1)) if len(values.shape) else values
    if of_rows:
        ordered = op.Unsqueeze(ordered, ints(-2))
    is_right = right or side == "right"
    # A comparison with NaN is false, so NaN comes after all numbers.
    not_before = op.Greater(ordered, each) if is_right else op.GreaterOrEqual(ordered, each)
    before = op.Cast(op.Not(not_before), to=TensorProto.INT32)
    count = op.ReduceSum(before, ints(-1), keepdims=0)
    return count if out_int32 else op.Cast(count, to=TensorProto.INT64)


def bucketize(values: Any, bounds: Any, out_int32: bool = False, right: bool = False) -> Any:
    """Convert `bucketize`: the number of bounds before each value."""
    return search_sorted(bounds, values, out_int32, right)
