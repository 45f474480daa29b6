"""Largest numbers of windows that libraries compute.

Conditions: images are N,C,H,W, of one type of floats, and of a shape that is known.
"""

from __future__ import annotations

from tvm import relax

from ..groups import Dataflow, Group, recognises
from ..poolings import pooled


@recognises("relax.nn.max_pool2d", makes_images=True)
def max_pool2d(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The pooling `call`."""
    return pooled("max_pool2d", var, call)
