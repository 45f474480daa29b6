"""Converters for PyTorch's `interpolate` of images, which TVM's importer of programs gets wrong.

TVM rounds the positions of the mode `nearest` in another way than PyTorch, uses the quotient of the
sizes where the program states a scale, and leaves out antialiasing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..errors import UnsupportedModelError
from ..lowering.static_shape import static_shape
from .resize import import_resize
from .torch_indices import Converter

_IMAGE = (2, 3)
"""The axes that are resized: height and width."""


def _nearest(node: Any, importer: Any) -> relax.Expr:
    x, _, scales = importer.retrieve_args(node)
    old, new = _old_and_new(node, x)
    if all(
        b % a == 0 and scale in (None, b // a)
        for a, b, scale in zip(old, new, scales or (None, None), strict=True)
    ):
        return importer._upsample_nearest2d(node)
    for axis, index in zip(_IMAGE, _positions(old, new, scales), strict=True):
        x = importer.block_builder.emit(relax.op.take(x, relax.const(index, "int64"), axis))
    return x


def _positions(
    old: Sequence[int], new: Sequence[int], scales: Sequence[float] | None
) -> list[np.ndarray[Any, Any]]:
    """Return the positions that PyTorch reads along each axis. It computes them in float32."""
    found = []
    for a, b, scale in zip(old, new, scales or (None, None), strict=True):
        if b in (a, 2 * a):
            scale = None  # PyTorch then does not look at the scale.
        step = np.float32(1 / scale) if scale else np.float32(a) / np.float32(b)
        places = np.floor(np.arange(b, dtype=np.float32) * step)
        found.append(np.minimum(places.astype(np.int64), a - 1))
    return found


def _smooth(method: str) -> Converter:
    """Return the converter of `linear` or `cubic`."""

    def convert(node: Any, importer: Any) -> relax.Expr:
        x, _, align_corners, scales = importer.retrieve_args(node)
        return _resized(node, importer, x, method, align_corners, scales)

    return convert


def _antialiased(node: Any, importer: Any) -> relax.Expr:
    x, _, align_corners, *scales = importer.retrieve_args(node)
    known = scales if len(scales) == 2 and all(scales) else None
    return _resized(node, importer, x, "linear", align_corners, known, antialias=1)


def _resized(
    node: Any,
    importer: Any,
    x: Any,
    method: str,
    align_corners: bool,
    scales: Sequence[float] | None,
    antialias: int = 0,
) -> relax.Expr:
    bb = importer.block_builder
    old, new = _old_and_new(node, x)
    coordinates = "align_corners" if align_corners else "half_pixel"
    is_exact = scales is None or all(
        a * scale == b for a, b, scale in zip(old, new, scales, strict=True)
    )
    if (is_exact or align_corners) and not antialias and not (align_corners and 1 in new):
        return bb.emit(
            relax.op.image.resize2d(
                x,
                tuple(new),
                layout="NCHW",
                method=method,
                coordinate_transformation_mode=coordinates,
                cubic_alpha=-0.75,
            )
        )
    shape = static_shape(x.ty)
    if shape is None:
        raise UnsupportedModelError(
            f"TVM cannot import node `{node.name}`: an image whose size times the scale is not "
            "whole, or with antialiasing, is resized only if no dimension is open. Export the "
            "program with fixed shapes"
        )
    attrs = {
        "mode": method,
        "coordinate_transformation_mode": coordinates,
        "antialias": antialias,
        "exclude_outside": antialias,  # PyTorch divides by the sum of the weights inside.
        "cubic_coeff_a": -0.75,
    }
    by_scale = scales is not None and not align_corners
    factors = relax.const(np.array([1, 1, *(scales or ())], "float32")) if by_scale else None
    sizes = None if by_scale else relax.const(np.array([*shape[:2], *new], "int64"))
    result = import_resize(bb, [x, None, factors, sizes], attrs)
    if result is not None:
        result = bb.normalize(result)
    if result is None or static_shape(result.ty) != (*shape[:2], *new):
        raise UnsupportedModelError(
            f"TVM cannot import node `{node.name}`: it resizes an image from {tuple(old)} to "
            f"{tuple(new)} by scales of {scales}. State the size (`size=`) in place of the scale"
        )
    return bb.emit(result)


def _old_and_new(node: Any, x: Any) -> tuple[list[int], list[int]]:
    """Return the height and the width before and after."""
    old, new = ([shape[axis] for axis in _IMAGE] for shape in (x.ty.shape, node.meta["val"].shape))
    if not all(isinstance(n, tirx.IntImm) for n in old) or not all(type(n) is int for n in new):
        raise UnsupportedModelError(
            f"TVM cannot import node `{node.name}`: the size of its image is open. Export the "
            "program with a fixed height and width, or export it to ONNX"
        )
    return [int(n) for n in old], new


RESIZED: Mapping[str, Converter] = {
    "_upsample_bilinear2d_aa.default": _antialiased,
    "upsample_bicubic2d.vec": _smooth("cubic"),
    "upsample_bilinear2d.vec": _smooth("linear"),
    "upsample_nearest2d.vec": _nearest,
}
