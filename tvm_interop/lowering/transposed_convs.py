"""Computes transposed convolutions as sub-pixel convolutions.

Along each axis, a transposed convolution of stride s is s convolutions with interleaved results:
one for each remainder of the output index modulo s ("sub-pixel convolution", Shi et al., CVPR 2016,
"Is the deconvolution layer the same as a convolutional layer?"). Here the s convolutions are
computed as one convolution, with s times the output channels for each axis. This convolution uses
the same fast kernels as all convolutions. TVM's own kernel inserts zeros between the elements of
the input, and multiplies these zeros too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .names import NewBindings, replace_bindings
from .static_shape import static_shape

_CONVS = {
    tvm.ir.Op.get("relax.nn.conv1d_transpose"): (relax.op.nn.conv1d, "NCW", "IOW"),
    tvm.ir.Op.get("relax.nn.conv2d_transpose"): (relax.op.nn.conv2d, "NCHW", "IOHW"),
    tvm.ir.Op.get("relax.nn.conv3d_transpose"): (relax.op.nn.conv3d, "NCDHW", "IODHW"),
}


@module_pass(opt_level=0, name="TransposedConvs")
class TransposedConvs:
    """Replace each transposed convolution that has constant weights and one group.

    A transposed convolution is not replaced if it has dilation, open shapes, or another layout or
    output type than the default. It is not replaced either if its output has margins to which no
    input contributes, or if its padding is so large that some inputs contribute to no output. The
    new convolution and the final result both keep the name of the replaced operator.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `main`; called by TVM's pass machinery."""
        rewritten = mod.clone()
        rewritten.update_func(
            rewritten.get_global_var("main"), replace_bindings(mod["main"], _replaced)
        )
        return rewritten


@dataclass(frozen=True)
class _Axis:
    """How the new convolution computes one axis of a transposed convolution.

    Let `before` be the padding of the transposed convolution at the start of the axis. Output index
    `o` has the position `q = (o + before) // stride` and the remainder `r = (o + before) % stride`.
    The output at `o` is the sum of `x[q - t] * w[r + t * stride]` over all taps `t`.

    Attributes
    ----------
    size: the length of the output.
    stride: the number of output indices for each input index.
    taps: the number of products that are added up for each output.
    padding: the number of zeros before the input, and the number of zeros after it.
    positions: the number of values of `q` for which outputs are computed.
    skipped: the number of computed outputs before the first output that is needed.
    """

    size: int
    stride: int
    taps: int
    padding: tuple[int, int]
    positions: int
    skipped: int

    @property
    def is_whole(self) -> bool:
        """Whether all computed outputs belong to the result, so that none has to be removed."""
        return self.skipped == 0 and self.positions * self.stride == self.size


def _axis(
    length: int, kernel: int, stride: int, before: int, after: int, extra: int
) -> _Axis | None:
    """The axis for an input of `length` elements; None if a convolution cannot compute all outputs.

    Parameters
    ----------
    kernel, stride: size and stride of the transposed convolution.
    before, after: the transposed convolution's padding.
    extra: additional outputs at the end (`output_padding`).
    """
    size = (length - 1) * stride + kernel - before - after + extra
    taps = -(-kernel // stride)
    first, last = before // stride, (before + size - 1) // stride
    padding = (taps - 1 - first, last - (length - 1))
    if size < 1 or min(padding) < 0 or padding[1] > taps - 1:
        return None
    return _Axis(size, stride, taps, padding, last - first + 1, before - first * stride)


def _replaced(binding: relax.Binding) -> list[relax.Binding]:
    call = binding.value if isinstance(binding, relax.VarBinding) else None
    if not isinstance(call, relax.Call) or call.op not in _CONVS:
        return [binding]
    axes = _axes(call)
    if axes is None:
        return [binding]
    conv, _, _ = _CONVS[call.op]
    array = _sub_pixel_weights(call.args[1].value.numpy(), axes)
    weights = relax.const(array, str(array.dtype))
    padding = [axis.padding[end] for end in (0, 1) for axis in axes]
    wide = conv(call.args[0], weights, padding=padding)
    new, name = NewBindings(), binding.var.name
    pixels = new.bind(wide, name)
    batch = static_shape(call.args[0].ty)[0]  # type: ignore[index]  # `_axes` checked the shape.
    channels = int(call.args[1].ty.shape[1])
    rank = len(axes)
    apart = [batch, channels, *(a.stride for a in axes), *(a.positions for a in axes)]
    together = [batch, channels, *(a.stride * a.positions for a in axes)]
    order = [0, 1, *(2 + i for axis in range(rank) for i in (rank + axis, axis))]
    split = new.bind(relax.op.reshape(pixels, apart), f"{name}_split")
    turned = new.bind(relax.op.permute_dims(split, order), f"{name}_turned")
    result: Any = relax.op.reshape(turned, together)
    if not all(axis.is_whole for axis in axes):
        result = relax.op.strided_slice(
            new.bind(result, f"{name}_whole"),
            axes=list(range(2, 2 + rank)),
            begin=[axis.skipped for axis in axes],
            end=[axis.skipped + axis.size for axis in axes],
        )
    new.bind(result, name)
    return new.defining(binding.var)


def _axes(call: relax.Call) -> list[_Axis] | None:
    """The axes of a transposed convolution; None if it cannot be replaced."""
    _, layout, kernel_layout = _CONVS[call.op]
    attrs = call.attrs
    data, weights = call.args
    shape = static_shape(data.ty)
    if shape is None or not isinstance(weights, tvm.ir.GenericConst):
        return None
    if str(attrs.data_layout) != layout or str(attrs.kernel_layout) != kernel_layout:
        return None
    if int(attrs.groups) != 1 or any(int(d) != 1 for d in attrs.dilation):
        return None
    if str(attrs.out_layout) != layout or attrs.out_dtype not in (None, "", "void"):
        return None
    rank = len(shape) - 2
    padding = [int(p) for p in attrs.padding]
    found = [
        _axis(length, int(kernel), int(stride), before, after, int(extra))
        for length, kernel, stride, before, after, extra in zip(
            shape[2:],
            list(weights.ty.shape)[2:],
            attrs.strides,
            padding[:rank],
            padding[rank:],
            attrs.output_padding,
            strict=True,
        )
    ]
    axes = [axis for axis in found if axis is not None]
    return axes if len(axes) == len(found) else None


def _sub_pixel_weights(weights: npt.NDArray[Any], axes: list[_Axis]) -> npt.NDArray[Any]:
    """The weights of the sub-pixel convolution.

    The shape of the weights changes from (in, out, kernel...) to (out * stride..., in, taps...). If
    the stride does not divide the kernel, the last taps of some remainders are zero.
    """
    rank = len(axes)
    ends = [
        (0, axis.taps * axis.stride - k) for axis, k in zip(axes, weights.shape[2:], strict=True)
    ]
    padded = np.pad(weights, [(0, 0), (0, 0), *ends])
    pairs = [size for axis in axes for size in (axis.taps, axis.stride)]
    apart = padded.reshape(*weights.shape[:2], *pairs)
    # The taps are reversed: a convolution multiplies its first input by its first tap, but `_Axis`
    # counts taps backwards.
    apart = np.flip(apart, tuple(2 + 2 * i for i in range(rank)))
    order = [1, *(3 + 2 * i for i in range(rank)), 0, *(2 + 2 * i for i in range(rank))]
    turned = apart.transpose(order)
    strides = np.prod([axis.stride for axis in axes], dtype=int)
    return np.ascontiguousarray(
        turned.reshape(weights.shape[1] * strides, weights.shape[0], *(a.taps for a in axes))
    )
