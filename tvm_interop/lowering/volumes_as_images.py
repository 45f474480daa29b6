"""Computes convolutions of volumes and videos as convolutions of their slices.

Each slice of the result depends on the few input slices that the kernel covers. The channels of
these input slices are concatenated into one image, and a convolution of this image gives the slice
of the result. All images form one batch, which several cores can share.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir.transform import PassContext, module_pass

from .as_images import AsImages, Shape
from .static_shape import static_shape

_CONV = tvm.ir.Op.get("relax.nn.conv3d")


@module_pass(opt_level=0, name="VolumesAsImages")
class VolumesAsImages:
    """Replace each convolution of volumes that has constant weights by a convolution of images.

    A convolution with several groups is not replaced if its kernel covers several slices. The
    operators between two convolutions become operators on images too (see `AsImages`).
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `main`; called by TVM's pass machinery."""
        return _Volumes().rewritten(mod)


class _Volumes(AsImages):
    """Rewrites volumes (N, C, D, H, W) as images (N * D, C, H, W)."""

    rank = 5
    anchors = frozenset({_CONV})

    def to_image(self, expr: relax.Expr, shape: Shape) -> relax.Expr:
        n, c, d, h, w = shape
        if c == 1 or d == 1:
            return relax.op.reshape(expr, (n * d, c, h, w))
        turned = self.bound(relax.op.permute_dims(expr, [0, 2, 1, 3, 4]), "slices")
        return relax.op.reshape(turned, (n * d, c, h, w))

    def from_image(self, image: relax.Var, shape: Shape) -> relax.Expr:
        n, c, d, h, w = shape
        if c == 1 or d == 1:
            return relax.op.reshape(image, shape)
        apart = self.bound(relax.op.reshape(image, (n, d, c, h, w)), f"{image.name}_slices")
        return relax.op.permute_dims(apart, [0, 2, 1, 3, 4])

    def broadcast_shape(self, shape: Shape) -> Shape | None:
        # A tensor can be broadcast as an image only if it is the same for all volumes and slices.
        return (1, shape[1], *shape[3:]) if shape[0] == shape[2] == 1 else None

    def anchor(self, call: relax.Call) -> relax.Expr | None:
        attrs = call.attrs
        layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
        shape, made = static_shape(call.args[0].ty), static_shape(call.ty)
        weights = self.array(call.args[1])
        if layouts != ("NCDHW", "OIDHW", "NCDHW") or weights is None or None in (shape, made):
            return None
        groups, reach = int(attrs.groups), weights.shape[2]
        if groups > 1 and reach > 1:
            return None
        strides, dilation, padding = (
            [int(number) for number in numbers]
            for numbers in (attrs.strides, attrs.dilation, attrs.padding)
        )
        assert shape is not None
        assert made is not None
        image: Any = self.as_image(call.args[0])
        if (reach, strides[0], padding[0], padding[3]) != (1, 1, 0, 0):
            taps = self.kernel(
                lambda x: _taps(x, shape[2], made[2], reach, strides[0], dilation[0], padding[0]),
                image,
                name="depth_taps",
            )
            image = self.bound(taps, "taps")
        # The shape of the weights changes from (O, C, D, H, W) to (O, D * C, H, W).
        flat = np.ascontiguousarray(weights.transpose(0, 2, 1, 3, 4))
        flat = flat.reshape(len(weights), -1, *weights.shape[3:])
        return relax.op.nn.conv2d(
            image,
            relax.const(flat, str(flat.dtype)),
            strides=strides[1:],
            padding=[*padding[1:3], *padding[4:]],
            dilation=dilation[1:],
            groups=groups,
            out_dtype=str(attrs.out_dtype) if attrs.out_dtype else None,
        )


def _taps(
    images: te.Tensor, depth: int, made: int, reach: int, stride: int, dilation: int, before: int
) -> te.Tensor:
    """The input slices that each result slice needs, as one tensor.

    The tensor has the shape (N * made, reach * C, H, W).

    Parameters
    ----------
    images: `depth` slices of each of N volumes, of shape (N * depth, C, H, W).
    made: the number of result slices of each volume.
    reach: the number of input slices that the kernel covers.
    stride, dilation: the stride and the dilation of the convolution along the depth.
    before: the number of slices of zeros before the first input slice.
    """
    slices, channels, height, width = (int(size) for size in images.shape)

    def element(i: Any, c: Any, h: Any, w: Any) -> Any:
        volume, at = tirx.floordiv(i, made), tirx.floormod(i, made)
        tap, channel = tirx.floordiv(c, channels), tirx.floormod(c, channels)
        position = at * stride + tap * dilation - before
        inside = tirx.all(position >= 0, position < depth)
        zero = tirx.const(0, images.dtype)
        found = images[volume * depth + position, channel, h, w]
        return tirx.if_then_else(inside, found, zero)

    shape = (slices // depth * made, reach * channels, height, width)
    return te.compute(shape, element, name="depth_taps")
