"""Computes convolutions with few output channels as 1x1 convolutions, followed by a sum of shifts.

Kernels of convolutions fill a vector with output channels. A convolution with one output channel
leaves the other lanes of each vector unused. Here, each tap (element of the window) becomes an
output channel of a 1x1 convolution. The results of the taps are then shifted to their places in the
window and added up. Source: A. Vasudevan, A. Anderson and D. Gregg, Parallel multi channel
convolution using general matrix multiplication (2017), where the method is called `kn2row`.
"""

from __future__ import annotations

from functools import reduce
from math import prod
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir.transform import PassContext, module_pass

from ..kernels import loops
from .names import bindings_of, replace_bindings
from .static_shape import static_shape

_CONV = tvm.ir.Op.get("relax.nn.conv2d")
_LANES = 16
"""The number of output channels in a vector of the kernel. The last vector is padded."""
_LEAST_GAIN = 3
"""A convolution is replaced only if the number of products becomes smaller by at least this factor.
Products of unused lanes are included.
"""
_LEAST_PRODUCTS = 1 << 20
"""A convolution is replaced only if it has at least this many products, including those of unused
lanes. A smaller convolution takes some microseconds, and a second operator would cost as much.
"""

_SHARED_TERMS = 1 << 17
"""The sum of shifts is divided between threads only if it has at least this many terms. One thread
takes about ten microseconds for this number of terms.
"""


@module_pass(opt_level=0, name="TapsAsChannels")
class TapsAsChannels:
    """Replace each convolution with few output channels by a 1x1 convolution and a sum of shifts.

    Conditions: images are float32 of layout N,C,H,W and have a known shape. The weights are
    constant. The stride is 1, and there is one group. The 1x1 convolution must have several times
    fewer products than the original one. In this count the channels of both are rounded up to whole
    vectors. The results of the taps must not take more memory than the image, because they are
    written and read again. Convolutions for a GPU are not replaced, because the speed there has not
    been measured.

    The order of addition changes: the products are added up over the channels of a tap first, and
    then over the taps. Both new operators keep the name of the operator that they replace.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `main`; called by TVM's pass machinery."""
        target = tvm.target.Target.current(allow_none=True)
        main = mod["main"]
        if target is not None and str(target.kind.name) != "llvm":
            return mod
        if not any(_window(binding) is not None for binding in bindings_of(main)):
            return mod
        builder = relax.BlockBuilder(mod)
        replaced = replace_bindings(main, lambda binding: _replaced(binding, builder))
        rewritten = builder.get()
        rewritten.update_func(rewritten.get_global_var("main"), replaced)
        return rewritten


class _Window(NamedTuple):
    """How a convolution slides its window over an image.

    Attributes
    ----------
    size: the height and the width of the window, in taps.
    dilation: the distances between taps along the height and along the width.
    before: the number of rows of padding above the image, and of columns of padding to its left.
    made: the height and the width of the result.
    """

    size: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]
    made: tuple[int, int]


def _window(binding: relax.Binding) -> _Window | None:
    """The window of a convolution that is to be replaced; None for other operators."""
    call = binding.value if isinstance(binding, relax.VarBinding) else None
    if not isinstance(call, relax.Call) or call.op != _CONV:
        return None
    attrs, (data, weights) = call.attrs, call.args
    shape, made = static_shape(data.ty), static_shape(call.ty)
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    types = {str(data.ty.dtype), str(weights.ty.dtype), str(call.ty.dtype)}
    if layouts != ("NCHW", "OIHW", "NCHW") or types != {"float32"} or shape is None or made is None:
        return None
    if not isinstance(weights, tvm.ir.GenericConst) or int(attrs.groups) != 1:
        return None
    if any(int(s) != 1 for s in attrs.strides):
        return None
    out_channels, channels, *size = weights.value.shape
    taps = out_channels * prod(size)
    products = _whole_vectors(out_channels) * prod(size)
    if taps > channels or products < _LEAST_GAIN * _whole_vectors(taps):
        return None
    if products * channels * shape[0] * prod(made[2:]) < _LEAST_PRODUCTS:
        return None
    dilation, padding = ([int(n) for n in numbers] for numbers in (attrs.dilation, attrs.padding))
    return _Window(
        (int(size[0]), int(size[1])),
        (dilation[0], dilation[1]),
        (padding[0], padding[1]),
        (made[2], made[3]),
    )


def _whole_vectors(channels: int) -> int:
    return -(-channels // _LANES) * _LANES


def _replaced(binding: relax.Binding, builder: relax.BlockBuilder) -> list[relax.Binding]:
    window = _window(binding)
    if window is None:
        return [binding]
    call = binding.value
    # The shape of the weights changes from (O, C, KH, KW) to (O * KH * KW, C, 1, 1).
    weights = call.args[1].value.numpy().transpose(0, 2, 3, 1)
    flat = np.ascontiguousarray(weights.reshape(-1, weights.shape[-1], 1, 1))
    taps = builder.normalize(relax.op.nn.conv2d(call.args[0], relax.const(flat)))
    var = relax.DataflowVar(binding.var.name, taps.ty)
    kernel = builder.add_func(_sum_of_shifts(static_shape(taps.ty), window), "sum_of_shifts")
    summed = builder.normalize(relax.call_tir(kernel, [var], call.ty))
    return [relax.VarBinding(var, taps), relax.VarBinding(binding.var, summed)]


def _sum_of_shifts(shape: Any, window: _Window) -> tirx.PrimFunc:
    """Return a kernel that adds up the results of all taps, each shifted to its place in the
    window.

    The kernel reads the results of the taps, of shape (N, O * KH * KW, H, W), and writes the result
    of the convolution. Each row of the result is computed in up to three ranges. In the middle
    range, all taps lie within the width of the image. This range needs no checks, so LLVM can
    vectorise its loop.

    Parameters
    ----------
    shape: the shape of the results of the taps.
    """
    images, channels, height, width = shape
    rows, columns = window.size
    made = channels // (rows * columns)
    taps = tirx.decl_buffer(shape, "float32", "taps")
    result = tirx.decl_buffer((images, made, *window.made), "float32", "result")
    zero = tirx.const(0, "float32")
    reach = (columns - 1) * window.dilation[1]
    left = min(window.before[1], window.made[1])
    right = max(min(width - reach + window.before[1], window.made[1]), left)

    def row(i: Any) -> tirx.Stmt:
        y, plane = i % window.made[0], i // window.made[0]
        n, o = plane // made, plane % made

        def tap(at: tuple[int, int], x: Any, is_inside: bool) -> tirx.Expr:
            at_y = y + (at[0] * window.dilation[0] - window.before[0])
            at_x = x + (at[1] * window.dilation[1] - window.before[1])
            channel = (o * rows + at[0]) * columns + at[1]
            has_row = tirx.all(at_y >= 0, at_y < height)
            if is_inside:
                # `Select` evaluates both of its values, so the row must be limited to the image.
                nearest = tirx.max(tirx.min(at_y, height - 1), 0)
                return tirx.Select(has_row, taps[n, channel, nearest, at_x], zero)
            inside = tirx.all(has_row, at_x >= 0, at_x < width)
            return tirx.if_then_else(inside, taps[n, channel, at_y, at_x], zero)

        def pixel(x: Any, is_inside: bool) -> tirx.Stmt:
            each = [tap((a, b), x, is_inside) for a in range(rows) for b in range(columns)]
            total = reduce(lambda total, value: total + value, each)
            return tirx.BufferStore(result, total, [n, o, y, x])

        return loops.in_turn([
            loops.loop(left, lambda x: pixel(x, False)),
            loops.loop(right - left, lambda x: pixel(x + left, True)),
            loops.loop(window.made[1] - right, lambda x: pixel(x + right, False)),
        ])  # fmt: skip

    number = images * made * window.made[0]
    is_shared = number * window.made[1] * rows * columns >= _SHARED_TERMS
    kind = tirx.ForKind.PARALLEL if is_shared else tirx.ForKind.SERIAL
    attrs: dict[str, Any] = {"op_pattern": loops.OPAQUE, loops.ROWS: [0, 0]}
    return loops.kernel([taps, result], loops.loop(number, row, kind), **attrs)
