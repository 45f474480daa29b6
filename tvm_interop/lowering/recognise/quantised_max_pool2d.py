"""TVM's kernel of a quantised max pooling; `quantised.py` recognises the operator."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from ...program.kinds.quantised_max_pool2d import QuantisedMaxPool2d
from ..quantised_kernels import computes, dims


@computes("quantised_max_pool2d")
def quantised_max_pool2d(op: QuantisedMaxPool2d, data: te.Tensor) -> te.Tensor:
    """The largest integer of each window."""
    height, width = op.shapes[0][1:3]
    least = tirx.min_value(op.stored[0])
    dy, dx = (te.reduce_axis((0, size)) for size in op.window.size)

    def element(n: Any, y: Any, x: Any, c: Any) -> Any:
        at_y = y * op.window.strides[0] + dy * op.window.dilation[0] - op.window.padding[0]
        at_x = x * op.window.strides[1] + dx * op.window.dilation[1] - op.window.padding[1]
        inside = tirx.all(at_y >= 0, at_y < height, at_x >= 0, at_x < width)
        return te.max(tirx.if_then_else(inside, data[n, at_y, at_x, c], least), axis=[dy, dx])

    return te.compute(dims(op.shapes[-1]), element, name="pooled")
