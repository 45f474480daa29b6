"""Recognises average poolings that libraries can compute.

Conditions: images have the layout N,C,H,W and a known shape. The input and the result of a pooling
have the same floating-point type. A mean over the whole height and width of float32 images is an
average pooling too, if it keeps these axes with size 1.
"""

from __future__ import annotations

from tvm import relax

from ..groups import Dataflow, Group, float_shape, group_of, recognises
from ..poolings import pooled


@recognises("relax.nn.avg_pool2d", makes_images=True)
def avg_pool2d(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The group that begins with the average pooling `call`; None if no library computes it."""
    counts = bool(call.attrs.count_include_pad)
    return pooled("avg_pool2d", var, call, counts_padding=counts)


@recognises("relax.mean")
def mean(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The group of the mean `call` over a whole image, as average pooling; None for other means."""
    shape = float_shape(call.args[0])
    axis = sorted(int(a) % 4 for a in call.attrs.axis or ())
    if shape is None or len(shape) != 4 or axis != [2, 3] or not call.attrs.keepdims:
        return None
    return group_of(
        "avg_pool2d",
        var,
        call,
        False,
        window=shape[2:],
        strides=(1, 1),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
    )
