"""Recognises layer normalisations that libraries can compute.

Conditions: the normalisation goes along the last axis of a float32 tensor of known shape, and has
both a scale and a shift.
"""

from __future__ import annotations

from tvm import relax

from ..groups import Dataflow, Group, float_shape, group_of, recognises


@recognises("relax.nn.layer_norm")
def layer_norm(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The group that begins with the layer normalisation `call`; None if no library computes it."""
    shape = float_shape(call.args[0])
    axes = [int(axis) for axis in call.attrs.axes]
    both = call.attrs.center and call.attrs.scale
    if shape is None or not both or axes not in ([-1], [len(shape) - 1]):
        return None
    return group_of("layer_norm", var, call, False, epsilon=float(call.attrs.epsilon))
