"""Converts to ONNX PyTorch's operators that count equal numbers, or read the bits of integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxscript import opset18 as op

from .torch_booleans import as_given, as_numbers
from .torch_shapes import ints

_UNSIGNED = {
    1: TensorProto.UINT8,
    2: TensorProto.UINT16,
    4: TensorProto.UINT32,
    8: TensorProto.UINT64,
}
"""The unsigned integers, by their number of bytes."""


def conversions() -> Mapping[Any, Callable[..., Any]]:
    """Return the conversion of each operator of this module."""
    aten = torch.ops.aten
    return {
        aten._unique2.default: _unique,
        aten.bincount.default: _counts,
        aten.histc.default: _histogram,
        aten.view.dtype: _seen_as,
    }


def _unique(
    x: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    """Convert `unique` of whole tensors. PyTorch sorts the numbers also without `sorted`."""
    del sorted, return_inverse, return_counts
    numbers, _, places, times = op.Unique(as_numbers(x, x.dtype), sorted=1)
    return as_given(numbers, x.dtype), op.Reshape(places, op.Shape(x)), times


def _counts(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    """Refuse `bincount`, whose number of results has no bound that is known."""
    del x, weights, minlength
    raise TypeError(
        "the largest integer of `bincount` is known only when the model runs: for integers below "
        "a number `n`, write `torch.zeros(n).scatter_add(0, x, torch.ones(len(x)))`"
    )


def _histogram(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Convert `histc`. Equal bounds stand for the smallest and the largest number.

    Source: `histc` in PyTorch's `aten/src/ATen/native/cpu/HistogramKernel.cpp`.
    """
    flat = op.Reshape(x, ints(-1))
    low, high = (op.CastLike(op.Constant(value_float=float(each)), x) for each in (min, max))
    if min == max:
        low, high = op.ReduceMin(flat, keepdims=0), op.ReduceMax(flat, keepdims=0)
        one = op.CastLike(op.Constant(value_float=1.0), x)
        is_equal = op.Equal(low, high)
        low, high = (
            op.Where(is_equal, widen(each, one), each)
            for widen, each in ((op.Sub, low), (op.Add, high))
        )
    is_within = op.And(op.GreaterOrEqual(flat, low), op.LessOrEqual(flat, high))
    of_first = op.Sub(op.Where(is_within, flat, low), low)
    count = op.CastLike(op.Constant(value_float=float(bins)), x)
    places = op.Cast(op.Div(op.Mul(of_first, count), op.Sub(high, low)), to=TensorProto.INT64)
    places = op.Min(places, op.Constant(value_int=bins - 1))
    zeros = op.CastLike(op.Constant(value_floats=[0.0] * bins), x)
    return op.ScatterElements(zeros, places, op.CastLike(is_within, x), axis=0, reduction="add")


def _seen_as(x: Any, dtype: int) -> Any:
    """Convert `view` of a tensor as another type, for integers. ONNX reads bits as of opset 26
    only.

    PyTorch's first bytes of a wide integer are its lowest bits.
    """
    old, new = (helper.tensor_dtype_to_np_dtype(int(each)) for each in (x.dtype, dtype))
    if old.kind not in "iub" or new.kind not in "iub":
        raise TypeError(f"the bits of {old} are not read as {new}, only those of integers are")
    if old.itemsize == new.itemsize:
        return op.Cast(x, to=dtype)
    narrow = min(old.itemsize, new.itemsize)
    shifts = [8 * narrow * i for i in range(max(old.itemsize, new.itemsize) // narrow)]
    # Integers are cut to their lowest bits and shifted as uint64.
    bits = op.Cast(op.Cast(x, to=_UNSIGNED[old.itemsize]), to=TensorProto.UINT64)
    if old.itemsize > narrow:
        mask = _uint64((1 << 8 * narrow) - 1)
        parts = [_shifted(bits, shift, "RIGHT") for shift in shifts]
        apart = [op.Unsqueeze(op.BitwiseAnd(part, mask), ints(-1)) for part in parts]
        shape = op.Concat(op.Shape(x, end=-1), ints(-1), axis=0)
        joined = op.Reshape(op.Concat(*apart, axis=-1), shape)
    else:
        apart = op.Reshape(bits, op.Concat(op.Shape(x, end=-1), ints(-1, len(shifts)), axis=0))
        parts = [
            _shifted(op.Gather(apart, op.Constant(value_int=i), axis=-1), shift, "LEFT")
            for i, shift in enumerate(shifts)
        ]
        joined = reduce(op.BitwiseOr, parts)
    return op.Cast(op.Cast(joined, to=_UNSIGNED[new.itemsize]), to=dtype)


def _shifted(bits: Any, shift: int, direction: str) -> Any:
    return op.BitShift(bits, _uint64(shift), direction=direction) if shift else bits


def _uint64(value: int) -> Any:
    return op.Constant(value=numpy_helper.from_array(np.uint64(value)))
