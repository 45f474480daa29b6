"""Converts PyTorch's `interpolate` to ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, numpy_helper
from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib.ops.nn import aten_upsample_nearestnd_vec

from .torch_shapes import ints

_ANTIALIASED: Mapping[str, Any] = {"antialias": 1, "cubic_coeff_a": -0.5, "exclude_outside": 1}
"""The attributes that ONNX's `Resize` needs for PyTorch's resizing with antialiasing."""


def conversions() -> Mapping[Any, Callable[..., Any]]:
    """Return the conversion of each operator of this module."""
    aten = torch.ops.aten
    return {
        aten.upsample_linear1d.vec: partial(_resized, "linear"),
        aten.upsample_bilinear2d.vec: partial(_resized, "linear"),
        aten.upsample_trilinear3d.vec: partial(_resized, "linear"),
        aten.upsample_bicubic2d.vec: partial(_resized, "cubic"),
        aten._upsample_bilinear2d_aa.vec: partial(_resized, "linear", **_ANTIALIASED),
        aten._upsample_bicubic2d_aa.vec: partial(_resized, "cubic", **_ANTIALIASED),
        aten.upsample_nearest1d.vec: _nearest,
        aten.upsample_nearest2d.vec: _nearest,
        aten.upsample_nearest3d.vec: _nearest,
    }


def _nearest(
    x: Any, output_size: Sequence[Any] | None = None, scale_factors: Sequence[float] | None = None
) -> Any:
    """Convert the mode `nearest`.

    PyTorch multiplies a position by the old size divided by the new one, in float32, and ONNX
    divides it by the scale. Where the results differ by a rounding error around a whole number,
    another element is the nearest. So the elements are taken by PyTorch's positions.
    """
    old = list(x.shape)[2:]
    new = output_size or [None] * len(old)
    if not all(isinstance(size, int) for size in (*old, *(output_size or ()))):
        return aten_upsample_nearestnd_vec(x, output_size, scale_factors)
    scales: Sequence[float | None] = scale_factors or [None] * len(old)
    places = [_places(*each) for each in zip(old, new, scales, strict=True)]
    if all(map(_is_repetition, places, old, scales)):
        return aten_upsample_nearestnd_vec(x, output_size, scale_factors)
    for axis, (each, size) in enumerate(zip(places, old, strict=True), 2):
        if not np.array_equal(each, np.arange(size)):
            x = op.Gather(x, op.Constant(value_ints=each.tolist()), axis=axis)
    return op.Identity(x)


def _is_repetition(places: np.ndarray[Any, Any], old: int, scale: float | None) -> bool:
    """Whether each element is taken equally often, as ONNX's `Resize` does for whole scales."""
    count = len(places) // old
    is_whole = scale in (None, count) and len(places) == count * old
    return is_whole and np.array_equal(places, np.arange(len(places)) // max(1, count))


def _places(old: int, new: int | None, scale: float | None) -> np.ndarray[Any, Any]:
    """Return the index of the old element for each new element.

    Source: `nearest_idx` in PyTorch's file `aten/src/ATen/native/UpSample.h`.
    """
    count = math.floor(old * scale) if scale is not None else new
    assert count is not None
    at = np.arange(count)
    if count in (old, 2 * old):
        return at * old // count
    one = 1 / scale if scale is not None else np.float32(old) / np.float32(count)
    places: np.ndarray[Any, Any] = np.floor(at.astype(np.float32) * np.float32(one))
    nearest: np.ndarray[Any, Any] = np.minimum(places, old - 1).astype(np.int64)
    return nearest


def _resized(
    mode: str,
    x: Any,
    output_size: Sequence[Any] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None = None,
    **options: Any,
) -> Any:
    """Convert `interpolate`; `options` are attributes of ONNX's `Resize`.

    With `align_corners`, PyTorch computes positions from the size of the result, which is a whole
    number. ONNX computes them from the scale. So this function computes the size, in float64 as
    PyTorch does, and gives it to `Resize`.
    """
    form = {
        "mode": mode,
        "cubic_coeff_a": -0.75,
        # ONNX's mode `pytorch_half_pixel` is not used. For a result of one element, this mode
        # returns the first element of the input, and PyTorch does not.
        "coordinate_transformation_mode": "align_corners" if align_corners else "half_pixel",
        **options,
    }
    if output_size is None and not align_corners:
        scales = op.Constant(value_floats=[1.0, 1.0, *(scale_factors or ())])
        return op.Resize(x, None, scales, None, **form)
    if output_size is None:
        factors = numpy_helper.from_array(np.array(scale_factors, np.float64))
        given = op.Cast(op.Shape(x, start=2), to=TensorProto.DOUBLE)
        exact = op.Mul(given, op.Constant(value=factors))
        each = [op.Cast(op.Floor(exact), to=TensorProto.INT64)]
    else:
        each = [ints(d) if isinstance(d, int) else op.Reshape(d, ints(1)) for d in output_size]
    sizes = op.Concat(op.Shape(x, start=0, end=2), *each, axis=0)
    return op.Resize(x, None, None, sizes, **form)
