"""Recognises concatenations that need no copy, because inputs can be computed in the result itself.

Conditions: float32 images of layout N,C,H,W and known shapes are joined along their channels. N is
1, so each input is contiguous in the result. Each input would begin at an aligned address in the
result.
"""

from __future__ import annotations

from math import prod

from tvm import relax

from ...program.concat_in_place import can_be_in_place
from ...program.library_op import library_op
from ...program.storage import Layout
from ..groups import Dataflow, Group, image_shape, recognises


@recognises("relax.concat", makes_images=True)
def concat(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The group of the concatenation `call`; None if inputs cannot be written into its result."""
    if not isinstance(call.args[0], relax.Tuple):
        return None
    fields = list(call.args[0].fields)
    shapes = [image_shape(expr) for expr in (*fields, var)]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    if int(call.attrs.axis) != 1 or not can_be_in_place([4 * prod(shape) for shape in known[:-1]]):
        return None
    plain: Layout = "plain"
    layouts = (plain,) * len(known)
    description = library_op(op="concat", shapes=tuple(known), layouts=layouts)
    return Group([var], [call], fields, description)
