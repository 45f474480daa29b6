"""Recognises resizes of images that libraries can compute.

Conditions: images have the layout N,C,H,W, one floating-point type, and known shapes. A resize is
one of two kinds:

- A linear resize, in which each pixel of the result is a weighted mean of four pixels. Its
  coordinates treat pixels as squares (`half_pixel`).
- A nearest-neighbour resize that enlarges height and width by whole factors. Its coordinates are
  `asymmetric` and rounded down, or `half_pixel` and rounded to the nearest pixel. The two roundings
  give the same result, because one pixel is always nearer than all others.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...program.library_op import library_op
from ..groups import Dataflow, Group, Shape, float_shape, float_type, recognises


@recognises("relax.image.resize2d", makes_images=True)
def resize2d(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The group that begins with the resize `call`; None if libraries cannot compute it."""
    data = call.args[0]
    dtype = float_type(data)
    if dtype is None or call.attrs.layout != "NCHW":
        return None
    shape, made = float_shape(data, dtype), float_shape(var, dtype)
    if shape is None or made is None:
        return None
    is_linear = call.attrs.method == "linear"
    if not (_is_mean(call.attrs, made) if is_linear else _is_nearest(call.attrs, shape, made)):
        return None
    description = library_op(
        op="resize2d",
        shapes=(shape, made),
        layouts=("plain", "plain"),
        dtype=dtype,
        is_linear=is_linear,
    )
    return Group([var], [call], [data], description)


def _is_mean(attrs: Any, made: Shape) -> bool:
    """Whether the coordinates of a linear resize treat pixels as squares.

    The mode `pytorch_half_pixel` treats pixels as squares, too, unless the result is one pixel high
    or wide.
    """
    coordinates = str(attrs.coordinate_transformation_mode)
    return coordinates == "half_pixel" or (
        coordinates == "pytorch_half_pixel" and min(made[2:]) > 1
    )


def _is_nearest(attrs: Any, shape: Shape, made: Shape) -> bool:
    """Whether a resize only repeats each pixel, by whole factors along height and width."""
    if attrs.method != "nearest_neighbor" or any(made[a] % shape[a] for a in (2, 3)):
        return False
    coordinates = str(attrs.coordinate_transformation_mode)
    rounding = str(attrs.rounding_method)
    if coordinates == "asymmetric":
        return rounding in ("floor", "")
    return coordinates == "half_pixel" and rounding.startswith("round")
