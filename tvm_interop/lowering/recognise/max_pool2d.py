"""Recognises max poolings that libraries can compute.

Conditions: images have the layout N,C,H,W, one floating-point type, and known shapes.
"""

from __future__ import annotations

from tvm import relax

from ..groups import Dataflow, Group, recognises
from ..poolings import pooled


@recognises("relax.nn.max_pool2d", makes_images=True)
def max_pool2d(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The group that begins with the max pooling `call`; None if libraries cannot compute it."""
    return pooled("max_pool2d", var, call)
