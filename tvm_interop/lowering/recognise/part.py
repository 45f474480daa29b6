"""Recognises ranges of an image's channels that may be read where they lie in the image.

Conditions: the image is float32, of layout N,C,H,W and of a known shape. N is 1, so the channels
are contiguous. They begin at an aligned address. An operator computes the image, and the slice is
not the only reader of the image. A slice that is the only reader becomes one kernel with the
operator, which then computes only the slice.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax

from ...program.concat_in_place import can_be_in_place
from ...program.library_op import library_op
from ...program.storage import Layout
from ..groups import Dataflow, Group, image_shape, is_operator, recognises


@recognises("relax.strided_slice", makes_images=True)
def part(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The group of the slice `call`; None if it cannot be read in place."""
    data, *bounds = call.args
    whole, cut = image_shape(data), image_shape(var)
    if whole is None or cut is None:
        return None
    axes, begins, _, *strides = (_numbers(bound) for bound in bounds)
    if axes not in ([1], [-3]) or any(stride != [1] for stride in strides):
        return None
    begin = begins[0] + (whole[1] if begins[0] < 0 else 0)
    apart = can_be_in_place([4 * begin * prod(whole[2:]), 0])
    if not 0 <= begin <= whole[1] - cut[1] or not apart:
        return None
    if not is_operator(graph.values.get(data)) or graph.uses[data] < 2:
        return None
    plain: Layout = "plain"
    description = library_op(op="part", shapes=(whole, cut), layouts=(plain,) * 2, begin=begin)
    return Group([var], [call], [data], description)


def _numbers(bound: Any) -> list[int]:
    return [int(getattr(field, "value", field)) for field in bound.fields]
