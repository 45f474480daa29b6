"""Computes convolutions of sequences as convolutions of images that are one pixel high."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .as_images import AsImages, Shape
from .static_shape import static_shape

_CONV = tvm.ir.Op.get("relax.nn.conv1d")
_POOLS = {
    tvm.ir.Op.get("relax.nn.max_pool1d"): relax.op.nn.max_pool2d,
    tvm.ir.Op.get("relax.nn.avg_pool1d"): relax.op.nn.avg_pool2d,
}


@module_pass(opt_level=0, name="RowsAsImages")
class RowsAsImages:
    """Replace each convolution and pooling of sequences by the same operator on images.

    The result of the original operator becomes a reshaped view of the image. The operators between
    two convolutions become operators on images too (see `AsImages`).
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `main`; called by TVM's pass machinery."""
        return _Rows().rewritten(mod)


class _Rows(AsImages):
    """Rewrites sequences (N, C, W) as images (N, C, 1, W)."""

    rank = 3
    anchors = frozenset({_CONV, *_POOLS})

    def to_image(self, expr: relax.Expr, shape: Shape) -> relax.Expr:
        array, wanted = self.array(expr), (*shape[:2], 1, shape[2])
        if array is not None:
            return relax.const(array.reshape(wanted), str(expr.ty.dtype))
        return relax.op.reshape(expr, wanted)

    def from_image(self, image: relax.Var, shape: Shape) -> relax.Expr:
        return relax.op.reshape(image, shape)

    def broadcast_shape(self, shape: Shape) -> Shape | None:
        return (*shape[:2], 1, shape[2])

    def anchor(self, call: relax.Call) -> relax.Expr | None:
        if any(static_shape(arg.ty) is None for arg in call.args):
            return None
        return self._pool(call) if call.op in _POOLS else self._conv(call)

    def _conv(self, call: relax.Call) -> relax.Expr | None:
        attrs = call.attrs
        layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
        if layouts != ("NCW", "OIW", "NCW"):
            return None
        before, after = (int(p) for p in attrs.padding)
        return relax.op.nn.conv2d(
            self.as_image(call.args[0]),
            self.as_image(call.args[1]),
            strides=[1, int(attrs.strides[0])],
            padding=[0, before, 0, after],
            dilation=[1, int(attrs.dilation[0])],
            groups=int(attrs.groups),
            out_dtype=str(attrs.out_dtype) if attrs.out_dtype else None,
        )

    def _pool(self, call: relax.Call) -> relax.Expr | None:
        attrs = call.attrs
        if (str(attrs.layout), str(attrs.out_layout)) != ("NCW", "NCW"):
            return None
        before, after = (int(p) for p in attrs.padding)
        return _POOLS[call.op](
            self.as_image(call.args[0]),
            pool_size=[1, int(attrs.pool_size[0])],
            strides=[1, int(attrs.strides[0])],
            padding=[0, before, 0, after],
            dilation=[1, int(attrs.dilation[0])],
            ceil_mode=bool(attrs.ceil_mode),
            count_include_pad=bool(attrs.count_include_pad),
        )
