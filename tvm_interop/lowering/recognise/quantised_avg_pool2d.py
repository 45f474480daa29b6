"""TVM's kernel of a quantised average pooling; `quantised.py` recognises the operator."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from ...program.endings import Ending
from ...program.kinds.quantised_avg_pool2d import QuantisedAvgPool2d
from ..quantised_kernels import computes, dims, finished


@computes("quantised_avg_pool2d")
def quantised_avg_pool2d(op: QuantisedAvgPool2d, data: te.Tensor) -> te.Tensor:
    """The mean of each window, to which the steps (see `Integers`) and the rounding are applied."""
    return finished(op, Ending(), op.integers, _means(op, data))


def _means(op: QuantisedAvgPool2d, data: te.Tensor) -> Any:
    """The mean of the integers in each window, as float32."""
    window = op.window
    height, width = op.shapes[0][1:3]
    dy, dx = (te.reduce_axis((0, size)) for size in window.size)

    def inside(y: Any, x: Any, dy: Any, dx: Any) -> tuple[Any, Any, Any]:
        at_y = y * window.strides[0] + dy * window.dilation[0] - window.padding[0]
        at_x = x * window.strides[1] + dx * window.dilation[1] - window.padding[1]
        return at_y, at_x, tirx.all(at_y >= 0, at_y < height, at_x >= 0, at_x < width)

    def element(n: Any, y: Any, x: Any, c: Any) -> Any:
        at_y, at_x, is_inside = inside(y, x, dy, dx)
        read = tirx.if_then_else(is_inside, data[n, at_y, at_x, c].astype("int32"), 0)
        return te.sum(read, axis=[dy, dx])

    total = te.compute(dims(op.shapes[-1]), element, name="total")
    ky, kx = (te.reduce_axis((0, size)) for size in window.size)

    def counted(y: Any, x: Any) -> Any:
        is_inside = inside(y, x, ky, kx)[2]
        return te.sum(
            tirx.if_then_else(is_inside, tirx.const(1, "int32"), tirx.const(0, "int32")),
            axis=[ky, kx],
        )

    stays_inside = not any(window.padding) and all(
        (op.shapes[-1][1 + a] - 1) * window.strides[a] + (window.size[a] - 1) * window.dilation[a]
        < op.shapes[0][1 + a]
        for a in (0, 1)
    )
    if op.counts_padding or stays_inside:
        size = tirx.const(float(window.size[0] * window.size[1]), "float32")
        return te.compute(total.shape, lambda *i: total[i].astype("float32") / size, name="mean")
    count = te.compute(dims(op.shapes[-1][1:3]), counted, name="count")
    return te.compute(
        total.shape,
        lambda *i: total[i].astype("float32") / count[i[1], i[2]].astype("float32"),
        name="mean",
    )
