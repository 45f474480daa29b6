"""Means of windows that libraries compute.

Conditions: images are N,C,H,W, of a shape that is known. The images of a pooling are of one type of
floats. Those of a mean are of float32, and it is over all of height and width, which it keeps.
"""

from __future__ import annotations

from tvm import relax

from ..groups import Dataflow, Group, float_shape, group_of, recognises
from ..poolings import pooled


@recognises("relax.nn.avg_pool2d", makes_images=True)
def avg_pool2d(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The pooling `call`."""
    counts = bool(call.attrs.count_include_pad)
    return pooled("avg_pool2d", var, call, counts_padding=counts)


@recognises("relax.mean")
def mean(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The mean of an image is an average pooling whose window is all of it."""
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
