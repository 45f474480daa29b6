"""Computes 1x1 convolutions where their image is small: before it is enlarged, or after a pooling.

A 1x1 convolution computes each pixel of its result from the channels of the same pixel. A resize
and an average pooling compute each channel from the pixels of the same channel. All three are
linear, so they may change places. If the image is smaller before the resize or after the pooling,
the convolution has fewer pixels to compute there.

Decoders of segmentation networks such as SegFormer resize several images to one size, concatenate
them and convolve the result. The convolution becomes a sum of convolutions of the small images. The
necks of YOLO networks concatenate an enlarged image with another image. DenseNet's transitions pool
the result of a convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .groups import is_call, is_constant
from .names import NewBindings, readers_of, replace_bindings, values_of
from .static_shape import static_shape

_ADD, _CONCAT, _CONV, _POOL, _RESIZE = (
    tvm.ir.Op.get(f"relax.{name}")
    for name in ("add", "concat", "nn.conv2d", "nn.avg_pool2d", "image.resize2d")
)

Weights: TypeAlias = npt.NDArray[np.float32]

_FEWEST_CHANNELS = 16
"""A convolution of an image with fewer channels stays after the resize, and a convolution with
fewer channels in its result stays before the pooling. Moving it would save hardly anything."""

_KEEPS_PIXELS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""The modes of coordinates in which a resize to the same size copies the image."""


@module_pass(opt_level=0, name="ConvsOfSmallImages")
class ConvsOfSmallImages:
    """Convolve images before they are enlarged and after they are pooled.

    A convolution has a 1x1 window, strides of 1, no padding, one group, and constant weights of
    float32. It may change places with the following:

    - A resize that enlarges its image, or one of several concatenated images. Nothing else reads
      these images. The result of the convolution has at most as many channels as the enlarged
      image, so that the resize does not take longer than before.
    - An average pooling of its result, without padding. Nothing else reads the result.

    Resizes to the same size are left out. Results change only by rounding, unless numbers are
    infinite or NaN.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `main`; called by TVM's pass machinery."""
        changes = (_RESIZE, _POOL)
        values = values_of(mod["main"]).values()
        if not any(is_call(value, op) for value in values for op in changes):
            return mod
        rewritten = mod.clone()
        var = rewritten.get_global_var("main")
        for rewriter in (_Copies, _Resizes, _Pools):
            main = rewritten["main"]
            rewritten.update_func(var, replace_bindings(main, rewriter(main).rewritten))
        return rewritten


class _Dataflow:
    """The values of a function and their readers."""

    def __init__(self, main: relax.Function) -> None:
        self._values, self._readers = values_of(main), readers_of(main)

    def rewritten(self, binding: relax.Binding) -> list[relax.Binding]:
        """The bindings that replace `binding`; a later pass removes bindings that nothing reads."""
        raise NotImplementedError

    def _is_read_once(self, var: relax.Expr) -> bool:
        return len(self._readers.get(var, [])) == 1

    def _pointwise(self, var: relax.Expr) -> tuple[relax.Call, Weights] | None:
        """The 1x1 convolution that computes `var`, and its weights; None if it is another value."""
        call: Any = self._values.get(var)
        if not is_call(call, _CONV) or static_shape(var.ty) is None:
            return None
        attrs = call.attrs
        layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
        usual = (*attrs.strides, attrs.groups, *(pad + 1 for pad in map(int, attrs.padding)))
        if layouts != ("NCHW", "OIHW", "NCHW") or any(int(number) != 1 for number in usual):
            return None
        weights = call.args[1]
        if not is_constant(weights) or str(var.ty.dtype) != "float32":
            return None
        array = weights.value.numpy()
        if array.dtype != np.float32 or array.shape[2:] != (1, 1) or not np.isfinite(array).all():
            return None
        return call, array

    def _shifted(self, value: Any) -> tuple[relax.Var, relax.Expr] | None:
        """The image and the constants that `value` adds, if the image has no other reader.

        The constants must be one number for each channel.
        """
        if not is_call(value, _ADD):
            return None
        image, shift = value.args
        if not isinstance(image, relax.Var):
            image, shift = shift, image
        shape = static_shape(image.ty)
        if not isinstance(image, relax.Var) or not is_constant(shift):
            return None
        if shape is None or len(shape) != 4:
            return None
        by_channel = shift.value.numpy().shape in ((1, shape[1], 1, 1), (shape[1], 1, 1))
        return (image, shift) if by_channel and self._is_read_once(image) else None


class _Copies(_Dataflow):
    """The resizes of images to the same size."""

    def rewritten(self, binding: relax.Binding) -> list[relax.Binding]:
        value: Any = self._values.get(binding.var)
        if not is_call(value, _RESIZE) or None in self._readers.get(binding.var, [None]):
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
    weights: Weights
    parts: list[relax.Expr]


class _Resizes(_Dataflow):
    """The resizes of images, and the convolutions that read them."""

    def rewritten(self, binding: relax.Binding) -> list[relax.Binding]:
        var = binding.var
        conv, shift = self._convolution(var), None
        if conv is None:
            # A shift of the channels must stay next to a convolution, so that libraries compute
            # both in one call.
            before = self._shifted(self._values.get(var))
            if before is not None:
                conv, shift = self._convolution(before[0]), before[1]
        elif self._shift_after(var):
            return [binding]
        return [binding] if conv is None else self._made(var, conv, shift)

    def _made(
        self, var: relax.Var, conv: _Convolution, shift: relax.Expr | None
    ) -> list[relax.Binding]:
        new = NewBindings()

        def convolved(image: relax.Expr, weights: Weights) -> relax.Var:
            args = [image, relax.const(np.ascontiguousarray(weights), "float32")]
            return new.bind(relax.Call(conv.call.op, args, conv.call.attrs), var.name)

        begins = np.cumsum([0, *(static_shape(part.ty)[1] for part in conv.parts)])  # type: ignore[index]
        slices = [conv.weights[:, a:b] for a, b in pairwise(begins)]
        resizes = [self._resize(part, len(conv.weights)) for part in conv.parts]
        read = list(zip(conv.parts, slices, resizes, strict=True))
        plain = [(part, weights) for part, weights, resize in read if resize is None]
        summands = []
        if plain:
            images = [part for part, _ in plain]
            image = (
                images[0] if len(images) == 1 else new.bind(relax.op.concat(images, 1), var.name)
            )
            kept = np.concatenate([weights for _, weights in plain], axis=1)
            summands = [convolved(image, kept)]
        for part, weights, resize in read:
            if resize is not None:
                args = [convolved(resize.args[0], weights), *resize.args[1:]]
                summands.append(new.bind(relax.Call(resize.op, args, resize.attrs), part.name))
        total, *rest = summands
        for addend in (*([] if shift is None else [shift]), *rest):
            total = new.bind(relax.op.add(total, addend), var.name)
        return new.defining(var)

    def _convolution(self, var: relax.Expr) -> _Convolution | None:
        """The convolution that computes `var`, if it can be computed before a resize."""
        found = self._pointwise(var)
        if found is None:
            return None
        call, array = found
        parts = self._parts(call.args[0])
        if all(self._resize(part, len(array)) is None for part in parts):
            return None
        return _Convolution(call, array, parts)

    def _parts(self, image: relax.Expr) -> list[relax.Expr]:
        """The images that are concatenated along the channels to make `image`."""
        value: Any = self._values.get(image)
        if not is_call(value, _CONCAT) or not self._is_read_once(image):
            return [image]
        tensors = value.args[0]
        is_tuple = isinstance(tensors, relax.Tuple) and value.attrs.axis is not None
        if not is_tuple or int(value.attrs.axis) not in (1, -3):
            return [image]
        parts = list(tensors.fields)
        shapes = [static_shape(part.ty) for part in parts]
        return [image] if None in shapes else parts

    def _resize(self, part: relax.Expr, outputs: int) -> relax.Call | None:
        """The resize that makes `part`, if a convolution to `outputs` channels comes first."""
        value: Any = self._values.get(part)
        if not is_call(value, _RESIZE) or not self._is_read_once(part):
            return None
        before, after = static_shape(value.args[0].ty), static_shape(part.ty)
        if before is None or after is None or value.attrs.layout != "NCHW":
            return None
        is_larger = prod(after[2:]) > prod(before[2:])
        is_worth_it = is_larger and before[1] >= max(outputs, _FEWEST_CHANNELS)
        copies = str(value.attrs.coordinate_transformation_mode) in _KEEPS_PIXELS
        return value if is_worth_it and copies else None

    def _shift_after(self, var: relax.Var) -> bool:
        """Whether the only reader of `var` adds a constant for each channel."""
        readers = self._readers.get(var, [])
        if len(readers) != 1 or readers[0] is None:
            return False
        return self._shifted(self._values[readers[0]]) is not None


class _Pools(_Dataflow):
    """The average poolings of images, and the convolutions that they read."""

    def rewritten(self, binding: relax.Binding) -> list[relax.Binding]:
        var = binding.var
        pool: Any = self._values.get(var)
        if not is_call(pool, _POOL) or not self._is_smaller_mean(pool):
            return [binding]
        image, shift = pool.args[0], None
        before = self._shifted(self._values.get(image))
        if before is not None and self._is_read_once(image):
            image, shift = before
        found = self._pointwise(image) if self._is_read_once(image) else None
        if found is None or len(found[1]) < _FEWEST_CHANNELS:
            return [binding]
        conv, new = found[0], NewBindings()
        pooled = new.bind(relax.Call(pool.op, [conv.args[0]], pool.attrs), var.name)
        convolved = new.bind(relax.Call(conv.op, [pooled, conv.args[1]], conv.attrs), image.name)
        if shift is not None:
            new.bind(relax.op.add(convolved, shift), var.name)
        return new.defining(var)

    @staticmethod
    def _is_smaller_mean(pool: relax.Call) -> bool:
        """Whether each pixel of a pooling is the mean of a whole window, and there are fewer pixels
        than before.

        At the border of an image, windows may be cut off or contain padding. The mean of such a
        window is not shifted by the same number as the channel.
        """
        attrs = pool.attrs
        before, after = static_shape(pool.args[0].ty), static_shape(pool.ty)
        layouts = str(attrs.layout), str(attrs.out_layout)
        numbers = (attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation)
        size, strides, padding, dilation = ([int(n) for n in each] for each in numbers)
        if before is None or after is None or layouts != ("NCHW", "NCHW"):
            return False
        fits = all(
            (made - 1) * step + window <= given
            for made, step, window, given in zip(after[2:], strides, size, before[2:], strict=True)
        )
        usual = not any(padding) and set(dilation) == {1}
        return usual and fits and prod(after[2:]) < prod(before[2:])
