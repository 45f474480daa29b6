"""Rewrites operators on sequences and volumes as operators on images of shape (N, C, H, W).

Kernel libraries and this package's passes for convolutions handle only convolutions of images. A
library computes a group of operators in one call, and a change of shape would end such a group. So
the element-wise operators and concatenations between two convolutions become operators on images
too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import tvm
from tvm import relax

from .names import bindings_of, replace_bindings
from .static_shape import static_shape

Shape = tuple[int, ...]

_CONCAT = tvm.ir.Op.get("relax.concat")
_VIEWS = {tvm.ir.Op.get(f"relax.{name}") for name in ("reshape", "expand_dims", "squeeze")}
_ELEMENT_WISE = {
    tvm.ir.Op.get(f"relax.{name}")
    for name in (
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power"),
        *("abs", "ceil", "clip", "cos", "erf", "exp", "floor", "log", "negative", "round"),
        *("rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "tanh"),
        *("nn.relu", "nn.leakyrelu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.softplus"),
    )
}


class AsImages(ABC):
    """Rewrites the bindings of `main` in order, and remembers which values exist as images.

    Attributes
    ----------
    rank: the number of axes that a tensor has before it becomes an image.
    anchors: the operators that always become operators on images. Element-wise operators and
        concatenations of channels do so only if an input is an image already.
    """

    rank: int
    anchors: frozenset[tvm.ir.Op]

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """`mod` with operators on images. Each keeps the name of the operator that it replaces."""
        main = mod["main"]
        bindings = [b for b in bindings_of(main) if isinstance(b, relax.VarBinding)]
        if not any(getattr(b.value, "op", None) in self.anchors for b in bindings):
            return mod
        self._values = {b.var: b.value for b in bindings}
        self._images: dict[relax.Var, relax.Var] = {}
        self._builder = relax.BlockBuilder(mod)
        self._made: list[relax.Binding] = []
        replaced = replace_bindings(main, self._replaced)
        rewritten = self._builder.get()
        rewritten.update_func(rewritten.get_global_var("main"), replaced)
        return rewritten

    @abstractmethod
    def anchor(self, call: relax.Call) -> relax.Expr | None:
        """The operator on images that replaces `call`, one of the `anchors`; None to keep
        `call`.
        """

    @abstractmethod
    def to_image(self, expr: relax.Expr, shape: Shape) -> relax.Expr:
        """An expression that converts `expr` to an image; a constant if possible.

        `expr` has `rank` axes.
        """

    @abstractmethod
    def from_image(self, image: relax.Var, shape: Shape) -> relax.Expr:
        """An expression that turns an image back into a tensor of shape `shape`."""

    @abstractmethod
    def broadcast_shape(self, shape: Shape) -> Shape | None:
        """The shape that a broadcast operand gets as an image; None if it cannot become an image.

        `shape` has `rank` axes.
        """

    def as_image(self, expr: relax.Expr) -> relax.Expr:
        """The tensor `expr`, which has `rank` axes, as an image."""
        if expr in self._images:
            return self._images[expr]
        shape = static_shape(expr.ty)
        assert shape is not None
        made = self.to_image(expr, shape)
        if isinstance(made, tvm.ir.GenericConst):
            return made
        name = str(expr.name) if isinstance(expr, relax.Var) else "value"
        image = self.bound(made, f"{name}_image")
        if isinstance(expr, relax.Var):
            self._images[expr] = image
        return image

    def array(self, expr: relax.Expr) -> Any:
        """The NumPy array of `expr`, if `expr` is a constant or a view of a constant; else None."""
        if isinstance(expr, tvm.ir.GenericConst):
            return expr.value.numpy()
        value = self._values.get(expr) if isinstance(expr, relax.Var) else None
        if not isinstance(value, relax.Call) or value.op not in _VIEWS:
            return None
        viewed, shape = self.array(value.args[0]), static_shape(expr.ty)
        return None if viewed is None or shape is None else viewed.reshape(shape)

    def bound(self, value: relax.Expr, name: str) -> relax.Var:
        """Bind `value` to a new variable, and return the variable."""
        value = self._builder.normalize(value)
        var = relax.DataflowVar(name, value.ty)
        self._made.append(relax.VarBinding(var, value))
        return var

    def kernel(self, compute: Any, *args: relax.Expr, name: str) -> relax.Expr:
        """A call of a new kernel, with the inputs `args`. `compute` defines the kernel on TE
        tensors.
        """
        return self._builder.call_te(compute, *args, primfunc_name_hint=name)

    def _replaced(self, binding: relax.Binding) -> Iterable[relax.Binding]:
        call = binding.value if isinstance(binding, relax.VarBinding) else None
        shape = static_shape(binding.var.ty)
        if not isinstance(call, relax.Call) or shape is None or len(shape) != self.rank:
            return [binding]
        self._made = []
        image = self._image(call, shape)
        if image is None:
            return [binding]
        var = self.bound(image, binding.var.name)
        self._images[binding.var] = var
        value = self._builder.normalize(self.from_image(var, shape))
        return [*self._made, relax.VarBinding(binding.var, value)]

    def _image(self, call: relax.Call, shape: Shape) -> relax.Expr | None:
        if call.op in self.anchors:
            return self.anchor(call)
        if call.op == _CONCAT:
            fields = getattr(call.args[0], "fields", ())
            if int(call.attrs.axis) != 1 or not any(field in self._images for field in fields):
                return None
            return relax.op.concat([self.as_image(field) for field in fields], 1)
        if call.op in _ELEMENT_WISE and any(arg in self._images for arg in call.args):
            return self._element_wise(call, shape)
        return None

    def _element_wise(self, call: relax.Call, shape: Shape) -> relax.Expr | None:
        made = []
        for arg in call.args:
            operand = self._operand(arg, shape)
            if operand is None:
                return None
            made.append(operand)
        return relax.Call(call.op, made, call.attrs, call.ty_args)

    def _operand(self, arg: relax.Expr, shape: Shape) -> relax.Expr | None:
        """The argument that replaces `arg` in an element-wise operator on images.

        `shape` is the shape of the original operator's result. None if the shape of `arg` is not
        known, or if `arg` cannot be broadcast as an image.
        """
        if not isinstance(arg.ty, relax.TensorType):
            return arg
        own = static_shape(arg.ty)
        if own == shape:
            return self.as_image(arg)
        if own is None or not own:
            return None if own is None else arg
        wanted = self.broadcast_shape((1,) * (self.rank - len(own)) + own)
        if wanted is None:
            return None
        array = self.array(arg)
        if array is not None:
            return relax.const(array.reshape(wanted), str(arg.ty.dtype))
        return self.bound(relax.op.reshape(arg, wanted), "broadcast_image")
