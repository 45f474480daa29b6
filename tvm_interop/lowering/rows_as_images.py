"""Computes convolutions of sequences as convolutions of images that are one pixel high.

Libraries, and all that knows of convolutions here, know those of images. A change of shape ends
what a library computes in one go, so the operators between two convolutions become operators of
images too.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .names import bindings_of, replace_bindings
from .static_shape import static_shape

_CONV = tvm.ir.Op.get("relax.nn.conv1d")
_POOLS = {
    tvm.ir.Op.get("relax.nn.max_pool1d"): relax.op.nn.max_pool2d,
    tvm.ir.Op.get("relax.nn.avg_pool1d"): relax.op.nn.avg_pool2d,
}
_CONCAT = tvm.ir.Op.get("relax.concat")
_RESHAPE = tvm.ir.Op.get("relax.reshape")
_ELEMENT_WISE = {
    tvm.ir.Op.get(f"relax.{name}")
    for name in (
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power"),
        *("abs", "ceil", "clip", "cos", "erf", "exp", "floor", "log", "negative", "round"),
        *("rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "tanh"),
        *("nn.relu", "nn.leakyrelu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.softplus"),
    )
}


@module_pass(opt_level=0, name="RowsAsImages")
class RowsAsImages:
    """Replace each convolution and pooling of sequences by one of images.

    A convolution keeps its name for that of images, and what it made is a view of that. So with
    element-wise operators and concatenations of channels that read such.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `main`; called by TVM's pass machinery."""
        main = mod["main"]
        bindings = [b for b in bindings_of(main) if isinstance(b, relax.VarBinding)]
        if not any(getattr(b.value, "op", None) in (_CONV, *_POOLS) for b in bindings):
            return mod
        rewriter = _Rewriter({b.var: b.value for b in bindings})
        rewritten = mod.clone()
        rewritten.update_func(
            rewritten.get_global_var("main"), replace_bindings(main, rewriter.replaced)
        )
        return rewritten


class _Rewriter:
    """Goes through the bindings in order, and knows which values are there as images."""

    def __init__(self, values: dict[relax.Var, relax.Expr]) -> None:
        self._values = values
        self._images: dict[relax.Var, relax.Var] = {}
        self._builder = relax.BlockBuilder()
        self._made: list[relax.Binding] = []

    def replaced(self, binding: relax.Binding) -> list[relax.Binding]:
        """What to have in place of `binding`."""
        call = binding.value if isinstance(binding, relax.VarBinding) else None
        if not isinstance(call, relax.Call):
            return [binding]
        shape = static_shape(binding.var.ty)
        self._made = []
        image = None if shape is None or len(shape) != 3 else self._image(call)
        if image is None or shape is None:
            return [binding]
        var = self._bound(image, binding.var.name)
        self._images[binding.var] = var
        view = self._builder.normalize(relax.op.reshape(var, shape))
        return [*self._made, relax.VarBinding(binding.var, view)]

    def _image(self, call: relax.Call) -> relax.Expr | None:
        """The operator of images for `call`; None if it stays as it is."""
        if call.op == _CONV:
            return self._conv(call)
        if call.op in _POOLS:
            return self._pool(call)
        if call.op == _CONCAT:
            return self._concat(call)
        if call.op in _ELEMENT_WISE and any(arg in self._images for arg in call.args):
            return self._element_wise(call)
        return None

    def _conv(self, call: relax.Call) -> relax.Expr | None:
        attrs = call.attrs
        layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
        if layouts != ("NCW", "OIW", "NCW"):
            return None
        if static_shape(call.args[0].ty) is None or static_shape(call.args[1].ty) is None:
            return None
        before, after = (int(p) for p in attrs.padding)
        return relax.op.nn.conv2d(
            self._as_image(call.args[0]),
            self._as_image(call.args[1]),
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
        if static_shape(call.args[0].ty) is None:
            return None
        before, after = (int(p) for p in attrs.padding)
        return _POOLS[call.op](
            self._as_image(call.args[0]),
            pool_size=[1, int(attrs.pool_size[0])],
            strides=[1, int(attrs.strides[0])],
            padding=[0, before, 0, after],
            dilation=[1, int(attrs.dilation[0])],
            ceil_mode=bool(attrs.ceil_mode),
            count_include_pad=bool(attrs.count_include_pad),
        )

    def _concat(self, call: relax.Call) -> relax.Expr | None:
        fields = getattr(call.args[0], "fields", ())
        if int(call.attrs.axis) != 1 or not any(field in self._images for field in fields):
            return None
        return relax.op.concat([self._as_image(field) for field in fields], 1)

    def _element_wise(self, call: relax.Call) -> relax.Expr | None:
        if any(_is_tensor(arg) and static_shape(arg.ty) is None for arg in call.args):
            return None
        args = [self._as_image(arg) if _is_tensor(arg) else arg for arg in call.args]
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _as_image(self, expr: relax.Expr) -> relax.Expr:
        """`expr` with a height of 1 before its last axis, where it has an axis before that."""
        if expr in self._images:
            return self._images[expr]
        shape = static_shape(expr.ty)
        assert shape is not None
        if len(shape) < 2:
            return expr
        wanted = (*shape[:-1], 1, shape[-1])
        constant = self._constant(expr)
        if constant is not None:
            return relax.const(constant.value.numpy().reshape(wanted), str(expr.ty.dtype))
        image = self._bound(relax.op.reshape(expr, wanted), f"{_name(expr)}_image")
        if isinstance(expr, relax.Var):
            self._images[expr] = image
        return image

    def _constant(self, expr: relax.Expr) -> Any:
        """The constant that `expr` is or is a view of; None if it is none."""
        value = self._values.get(expr) if isinstance(expr, relax.Var) else None
        if isinstance(value, relax.Call) and value.op == _RESHAPE:
            expr = value.args[0]
        return expr if isinstance(expr, tvm.ir.GenericConst) else None

    def _bound(self, value: relax.Expr, name: str) -> relax.Var:
        value = self._builder.normalize(value)
        var = relax.DataflowVar(name, value.ty)
        self._made.append(relax.VarBinding(var, value))
        return var


def _is_tensor(expr: relax.Expr) -> bool:
    return isinstance(expr.ty, relax.TensorType)


def _name(expr: relax.Expr) -> str:
    return str(expr.name) if isinstance(expr, relax.Var) else "value"
