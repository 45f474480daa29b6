"""Recognises products of an image and one number for each channel, if libraries can compute them.

Conditions: a library makes the image, which has the layout N,C,H,W and more than one pixel. Image
and factor are float32 and have known shapes.
"""

from __future__ import annotations

from tvm import relax

from ...program.library_op import library_op
from ..groups import Dataflow, Group, float_shape, recognises


@recognises("relax.multiply")
def scale(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """Recognise the product of an image and one number for each channel.

    Squeeze-and-excitation blocks end with a product of an image and one number for each channel,
    and so do batch norms. The product becomes a group only if a library computes the image.
    Otherwise TVM fuses it with its neighbours.
    """
    data, factor = call.args
    if _is_by_channel_of(data, factor):
        data, factor = factor, data
    if not _is_by_channel_of(factor, data) or not graph.comes_from_library(data):
        return None
    shape = float_shape(data)
    factor_shape = float_shape(factor)
    assert shape is not None
    assert factor_shape is not None
    description = library_op(
        op="scale", shapes=(shape, factor_shape, shape), layouts=("plain",) * 3
    )
    return Group([var], [call], [data, factor], description, takes_more=True)


def _is_by_channel_of(factor: relax.Expr, data: relax.Expr) -> bool:
    """Whether `factor` has one number for each channel of the image `data`."""
    wide, narrow = float_shape(data), float_shape(factor)
    if wide is None or narrow is None or len(wide) != 4 or len(narrow) != 4:
        return False
    fits = narrow[0] in (1, wide[0]) and narrow[1:] == (wide[1], 1, 1)
    return fits and wide[2] * wide[3] > 1
