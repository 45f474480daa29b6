"""Computes 1x1 convolutions before the resizes of images that they read.

A 1x1 convolution computes each pixel of its result from the channels of the same pixel. A resize
computes each channel from the pixels of the same channel. Both are linear, so they may change
places. If the resize enlarges the image, the convolution then has fewer pixels to compute.

Decoders of segmentation networks such as SegFormer resize several images to one size, concatenate
them and convolve the result. The convolution becomes a sum of convolutions of the small images. The
necks of YOLO networks concatenate an enlarged image with another image.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .names import readers_of, replace_bindings, values_of
from .static_shape import static_shape

_ADD, _CONCAT, _CONV, _RESIZE = (
    tvm.ir.Op.get(f"relax.{name}") for name in ("add", "concat", "nn.conv2d", "image.resize2d")
)

_FEWEST_CHANNELS = 16
"""An image with fewer channels is convolved after its resize. Its convolution takes hardly longer
than the addition of its result."""

_KEEPS_PIXELS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""The modes of coordinates in which a resize to the same size copies the image."""


@module_pass(opt_level=0, name="ConvsBeforeResizes")
class ConvsBeforeResizes:
    """Convolve images before they are enlarged, and leave out resizes to the same size.

    A convolution has a 1x1 window, strides of 1, no padding, one group, and constant weights of
    float32. It reads an enlarged image, or a concatenation of images of which some are enlarged.
    Nothing else reads these images. The result of the convolution has at most as many channels as
    the enlarged image, so that the resize does not take longer than before. Results change only by
    rounding, unless numbers are infinite or NaN.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `main`; called by TVM's pass machinery."""
        main = mod["main"]
        if not any(_is_call(value, _RESIZE) for value in values_of(main).values()):
            return mod
        rewritten = mod.clone()
        var = rewritten.get_global_var("main")
        rewritten.update_func(var, replace_bindings(main, _copied))
        main = rewritten["main"]
        rewritten.update_func(var, replace_bindings(main, _Resizes(main).rewritten))
        return rewritten


def _copied(binding: relax.Binding) -> list[relax.Binding]:
    """`binding`, or a binding to the same image in place of a resize to the image's size."""
    value = getattr(binding, "value", None)
    if not _is_call(value, _RESIZE):
        return [binding]
    image, shape = value.args[0], static_shape(value.ty)
    keeps = str(value.attrs.coordinate_transformation_mode) in _KEEPS_PIXELS
    if shape is None or static_shape(image.ty) != shape or not keeps:
        return [binding]
    return [relax.VarBinding(binding.var, image)]


@dataclass(frozen=True)
class _Convolution:
    """A convolution of which some channels are enlarged.

    Attributes
    ----------
    call: the convolution.
    weights: its weights, of shape (outputs, inputs, 1, 1).
    parts: the images whose channels the convolution reads, in order.
    """

    call: relax.Call
    weights: npt.NDArray[np.float32]
    parts: list[relax.Expr]


class _Resizes:
    """The resizes of a function, and the convolutions that read them."""

    def __init__(self, main: relax.Function) -> None:
        self._values, self._readers = values_of(main), readers_of(main)

    def rewritten(self, binding: relax.Binding) -> list[relax.Binding]:
        """The bindings that replace `binding`; a later pass removes bindings that nothing reads."""
        var = binding.var
        conv, shift = self._convolution(var), None
        if conv is None:
            # A shift of the channels must stay next to a convolution, so that libraries compute
            # both in one call.
            value = self._values.get(var)
            if _is_call(value, _ADD) and (before := self._shifted(value)) is not None:
                conv, shift = self._convolution(before[0]), before[1]
        elif self._shift_after(var):
            return [binding]
        return [binding] if conv is None else self._made(var, conv, shift)

    def _made(
        self, var: relax.Var, conv: _Convolution, shift: relax.Expr | None
    ) -> list[relax.Binding]:
        made: list[relax.Binding] = []
        builder = relax.BlockBuilder()

        def bound(call: relax.Expr, name: str) -> relax.Var:
            call = builder.normalize(call)
            made.append(relax.VarBinding(relax.DataflowVar(name, call.ty), call))
            return made[-1].var

        def convolved(image: relax.Expr, weights: npt.NDArray[np.float32]) -> relax.Var:
            args = [image, relax.const(np.ascontiguousarray(weights), "float32")]
            return bound(relax.Call(conv.call.op, args, conv.call.attrs), var.name)

        begins = np.cumsum([0, *(static_shape(part.ty)[1] for part in conv.parts)])  # type: ignore[index]
        slices = [conv.weights[:, a:b] for a, b in zip(begins, begins[1:], strict=False)]
        outputs = len(conv.weights)
        late = [self._resize(part, outputs) is None for part in conv.parts]
        plain = [part for part, stays in zip(conv.parts, late, strict=True) if stays]
        summands = []
        if plain:
            image = plain[0] if len(plain) == 1 else bound(relax.op.concat(plain, 1), var.name)
            kept = [each for each, stays in zip(slices, late, strict=True) if stays]
            summands = [convolved(image, np.concatenate(kept, axis=1))]
        for part, weights in zip(conv.parts, slices, strict=True):
            resize = self._resize(part, outputs)
            if resize is not None:
                small = convolved(resize.args[0], weights)
                args = [small, *resize.args[1:]]
                summands.append(bound(relax.Call(resize.op, args, resize.attrs), part.name))
        total = summands[0]
        for i, summand in enumerate(summands):
            if i > 0:
                total = bound(relax.op.add(total, summand), var.name)
            if i == 0 and shift is not None:
                total = bound(relax.op.add(total, shift), var.name)
        return [*made[:-1], relax.VarBinding(var, made[-1].value)]

    def _convolution(self, var: relax.Expr) -> _Convolution | None:
        """The convolution that computes `var`, if it can be computed before a resize."""
        call: Any = self._values.get(var)
        if not _is_call(call, _CONV) or static_shape(var.ty) is None:
            return None
        attrs = call.attrs
        layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
        usual = (*attrs.strides, attrs.groups, *(pad + 1 for pad in map(int, attrs.padding)))
        image, weights = call.args[:2]
        if layouts != ("NCHW", "OIHW", "NCHW") or any(int(number) != 1 for number in usual):
            return None
        if not _is_constant(weights) or str(var.ty.dtype) != "float32":
            return None
        array = weights.value.numpy()
        if array.dtype != np.float32 or array.shape[2:] != (1, 1) or not np.isfinite(array).all():
            return None
        parts = self._parts(image)
        if all(self._resize(part, len(array)) is None for part in parts):
            return None
        return _Convolution(call, array, parts)

    def _parts(self, image: relax.Expr) -> list[relax.Expr]:
        """The images that are concatenated along the channels to make `image`."""
        value: Any = self._values.get(image)
        if not _is_call(value, _CONCAT) or len(self._readers.get(image, [])) != 1:
            return [image]
        tensors = value.args[0]
        is_tuple = isinstance(tensors, relax.Tuple) and value.attrs.axis is not None
        if not is_tuple or int(value.attrs.axis) not in (1, -3):
            return [image]
        parts = list(tensors.fields)
        shapes = [static_shape(part.ty) for part in parts]
        return [image] if None in shapes else parts

    def _resize(self, part: relax.Expr, outputs: int) -> relax.Call | None:
        """The resize that makes `part`, if a convolution to `outputs` channels should precede it."""
        value: Any = self._values.get(part)
        if not _is_call(value, _RESIZE) or len(self._readers.get(part, [])) != 1:
            return None
        before, after = static_shape(value.args[0].ty), static_shape(part.ty)
        if before is None or after is None or value.attrs.layout != "NCHW":
            return None
        is_larger = prod(after[2:]) > prod(before[2:])
        is_worth_it = is_larger and before[1] >= max(outputs, _FEWEST_CHANNELS)
        copies = str(value.attrs.coordinate_transformation_mode) in _KEEPS_PIXELS
        return value if is_worth_it and copies else None

    def _shifted(self, value: Any) -> tuple[relax.Var, relax.Expr] | None:
        """The tensor and the constants that `value` adds, if the tensor has no other reader.

        The constants must be one number for each channel.
        """
        image, shift = value.args
        if not isinstance(image, relax.Var):
            image, shift = shift, image
        shape = static_shape(image.ty)
        if not isinstance(image, relax.Var) or not _is_constant(shift) or shape is None:
            return None
        by_channel = shift.value.numpy().shape in ((1, shape[1], 1, 1), (shape[1], 1, 1))
        only = len(self._readers.get(image, [])) == 1 and len(shape) == 4
        return (image, shift) if by_channel and only else None

    def _shift_after(self, var: relax.Var) -> bool:
        """Whether the only reader of `var` adds a constant for each channel."""
        readers = self._readers.get(var, [])
        if len(readers) != 1 or readers[0] is None:
            return False
        value = self._values[readers[0]]
        return _is_call(value, _ADD) and self._shifted(value) is not None


def _is_call(value: Any, op: tvm.ir.Op) -> bool:
    return isinstance(value, relax.Call) and value.op == op


def _is_constant(expr: relax.Expr) -> bool:
    return isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.ty, relax.TensorType)
