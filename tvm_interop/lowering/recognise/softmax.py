"""Recognises softmaxes that libraries can compute.

Conditions: the softmax goes along the last axis of a float32 tensor of known shape.
"""

from __future__ import annotations

from tvm import relax

from ..groups import Dataflow, Group, float_shape, group_of, recognises


@recognises("relax.nn.softmax")
def softmax(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The group that begins with the softmax `call`; None if libraries cannot compute it."""
    shape = float_shape(call.args[0])
    if shape is None or int(call.attrs.axis) not in (-1, len(shape) - 1):
        return None
    return group_of("softmax", var, call, False)
