"""Recognises convolutions that libraries can compute.

Conditions: images have the layout N,C,H,W, weights have the layout O,I,H,W, and shapes are known.
Data, weight and result are all float32. Alternatively data and weight are float16, the sums are
float32, and a cast back to float16 follows.
"""

from __future__ import annotations

from tvm import relax

from ..groups import Dataflow, Group, recognises, window_fields
from ..static_shape import static_shape
from ..sums_of_products import sum_of_products


@recognises("relax.nn.conv2d", makes_images=True)
def conv2d(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """Return the group that begins with the convolution `call`; None if no library computes it."""
    attrs = call.attrs
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    weight = static_shape(call.args[1].ty)
    if layouts != ("NCHW", "OIHW", "NCHW") or weight is None:
        return None
    fields = window_fields(weight[2:], attrs)
    return sum_of_products("conv2d", var, call, graph, groups=int(attrs.groups), **fields)
