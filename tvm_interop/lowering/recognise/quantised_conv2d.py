"""TVM's kernel of a quantised convolution; `quantised.py` recognises the operator."""

from __future__ import annotations

from tvm import te, tirx

from ...program.kinds.quantised_conv2d import QuantisedConv2d
from ..quantised_kernels import computes, dims, scaled


@computes("quantised_conv2d")
def quantised_conv2d(
    op: QuantisedConv2d, data: te.Tensor, weight: te.Tensor, *more: te.Tensor
) -> te.Tensor:
    """The convolution of integers. The scale, the bias, the steps (see `Integers`) and the rounding
    are then applied to it.
    """
    return scaled(op, op.ending, op.integers, _products(op, data, weight), *more)


def _products(op: QuantisedConv2d, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """Sums of products of data (channels last) and weight, both minus their zero points, in
    int32.
    """
    top, left, bottom, right = op.window.padding
    batch, height, width, channels = op.shapes[0]
    padded = te.compute(
        dims((batch, height + top + bottom, width + left + right, channels)),
        lambda n, y, x, c: tirx.if_then_else(
            tirx.all(y >= top, y < top + height, x >= left, x < left + width),
            data[n, y - top, x - left, c].astype("int32") - op.integers.data_zero,
            tirx.const(0, "int32"),
        ),
        name="padded",
    )
    made, each = op.shapes[1][0] // op.groups, op.shapes[1][1]
    k, dy, dx = (te.reduce_axis((0, size)) for size in op.shapes[1][1:])
    (sy, sx), (ey, ex) = op.window.strides, op.window.dilation
    return te.compute(
        dims(op.shapes[-1]),
        lambda n, y, x, o: te.sum(
            padded[n, y * sy + dy * ey, x * sx + dx * ex, o // made * each + k]
            * (weight[o, k, dy, dx].astype("int32") - op.integers.weight_zero),
            axis=[dy, dx, k],
        ),
        name="total",
    )
