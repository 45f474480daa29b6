"""Images enlarged or shrunk that libraries compute.

Conditions: images are N,C,H,W, of one type of floats and of shapes that are known. Pixels are
squares (`half_pixel`), and each of the result is a mean of four; or it is the nearest, height and
width grow by whole factors, and how a place is rounded comes to the same: from the corner down, or
from the middle to the nearest, of which there is one.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...program.library_op import library_op
from ..groups import Dataflow, Group, Shape, float_shape, float_type, recognises


@recognises("relax.image.resize2d", makes_images=True)
def resize2d(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The resize `call`."""
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
    """Whether a linear resize takes pixels for squares; to one of them PyTorch does not."""
    coordinates = str(attrs.coordinate_transformation_mode)
    return coordinates == "half_pixel" or (
        coordinates == "pytorch_half_pixel" and min(made[2:]) > 1
    )


def _is_nearest(attrs: Any, shape: Shape, made: Shape) -> bool:
    """Whether another resize takes each pixel as many times as it grows by."""
    if attrs.method != "nearest_neighbor" or any(made[a] % shape[a] for a in (2, 3)):
        return False
    coordinates = str(attrs.coordinate_transformation_mode)
    rounding = str(attrs.rounding_method)
    if coordinates == "asymmetric":
        return rounding in ("floor", "")
    return coordinates == "half_pixel" and rounding.startswith("round")
