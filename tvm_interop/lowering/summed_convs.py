"""Merges convolutions that read one image into one convolution, if their results are added.

Networks that are trained with parallel branches, such as RepVGG and MobileOne, are often exported
with these branches. A convolution is linear in its weights, so the sum of the branches equals one
convolution, whose weights are the sum of the branches' weights. Smaller kernels are padded with
zeros to the size of the largest kernel. A scale of the channels is treated as a 1x1 convolution.

Source: Ding et al., RepVGG: Making VGG-style ConvNets Great Again, CVPR 2021, section 3.3.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .groups import is_constant
from .names import NewBindings, readers_of, replace_bindings, values_of
from .static_shape import static_shape

_CONV = tvm.ir.Op.get("relax.nn.conv2d")
_ADD, _MULTIPLY = tvm.ir.Op.get("relax.add"), tvm.ir.Op.get("relax.multiply")

Array = npt.NDArray[np.float64]


@module_pass(opt_level=0, name="SummedConvs")
class SummedConvs:
    """Merge convolutions of one image whose results are only added to each other.

    The convolutions must agree in strides and groups, have float32 numbers and constant weights,
    and no dilation. An earlier pass has turned a batch norm of the image into a scale of its
    channels, which is merged with the convolutions. The results change only by rounding: the
    weights are summed in float64, and rounded once.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `main`; called by TVM's pass machinery."""
        main = mod["main"]
        sums = _Sums(main)
        merged = mod.clone()
        merged.update_func(merged.get_global_var("main"), replace_bindings(main, sums.rewritten))
        return merged


@dataclass(frozen=True)
class _Window:
    """A summand: a convolution, or a scale of channels.

    Attributes
    ----------
    image: the tensor that the summand reads.
    weights: shape (outputs, inputs of a group, height, width).
    padding: rows above, columns to the left, rows below, columns to the right.
    conv: the convolution; None for a scale of channels.
    """

    image: relax.Var
    weights: Array
    padding: tuple[int, ...]
    conv: relax.Call | None

    def within(self, other: _Window) -> Array | None:
        """The weights padded to the shape of the weights of `other`; None if they do not fit."""
        margins = [theirs - own for theirs, own in zip(other.padding, self.padding, strict=True)]
        size = self.weights.shape[2:]
        is_inside = min(margins) >= 0 and all(
            size[axis] + margins[axis] + margins[axis + 2] == other.weights.shape[axis + 2]
            for axis in (0, 1)
        )
        if not is_inside:
            return None
        around = [(margins[axis], margins[axis + 2]) for axis in (0, 1)]
        placed = np.pad(self.weights, [(0, 0), (0, 0), *around])
        if self.conv is not None:
            return placed
        # A scale computes each output channel from the input channel with the same index, by one
        # weight.
        whole, outputs = np.zeros_like(other.weights), np.arange(len(placed))
        whole[outputs, outputs % whole.shape[1]] = placed[:, 0]
        return whole


class _Sums:
    """The sums in a function, each with all of its summands."""

    def __init__(self, main: relax.Function) -> None:
        self._values, self._readers = values_of(main), readers_of(main)

    def rewritten(self, binding: relax.Binding) -> list[relax.Binding]:
        """The bindings that replace `binding`; a later pass removes bindings that nothing reads."""
        var = binding.var
        if not self._is_sum(var) or self._is_summand(var):
            return [binding]
        leaves = self._leaves(var)
        windows = {leaf: window for leaf in leaves if (window := self._window(leaf)) is not None}
        merged, gone = _merged(windows)
        if not merged:
            return [binding]
        new = NewBindings()
        parts = [leaf for leaf in leaves if leaf not in gone and not is_constant(leaf)]
        total: relax.Expr | None = None
        for leaf in parts:
            part: relax.Expr = leaf
            if leaf in merged:
                part = new.bind(merged[leaf], leaf.name)
            total = part if total is None else new.bind(relax.op.add(total, part), var.name)
            if leaf is parts[0] and (shift := _total_shift(leaves)) is not None:
                total = new.bind(relax.op.add(total, shift), var.name)
        # The last binding computes the whole sum. There is at least the binding of the merged
        # convolution.
        return new.defining(var)

    def _is_sum(self, var: relax.Expr) -> bool:
        value = self._values.get(var) if isinstance(var, relax.Var) else None
        shape = static_shape(var.ty)
        return (
            isinstance(value, relax.Call)
            and value.op == _ADD
            and not value.args[0].same_as(value.args[1])
            and shape is not None
            and len(shape) == 4
            and all(is_constant(arg) or static_shape(arg.ty) == shape for arg in value.args)
        )

    def _is_summand(self, var: relax.Var) -> bool:
        """Whether the only reader of a sum is another sum."""
        readers = self._readers.get(var, [])
        return len(readers) == 1 and readers[0] is not None and self._is_sum(readers[0])

    def _leaves(self, var: relax.Expr) -> list[relax.Expr]:
        """The summands of a sum, in order.

        If a summand is only a partial sum, its own summands replace it.
        """
        value = self._values[var]
        found = []
        for arg in value.args:
            is_inner = self._is_sum(arg) and len(self._readers.get(arg, [])) == 1
            found += self._leaves(arg) if is_inner else [arg]
        return found

    def _window(self, leaf: relax.Expr) -> _Window | None:
        if not isinstance(leaf, relax.Var) or len(self._readers.get(leaf, [])) != 1:
            return None
        value = self._values.get(leaf)
        if not isinstance(value, relax.Call) or str(leaf.ty.dtype) != "float32":
            return None
        if value.op == _CONV:
            return _window_of_conv(value)
        return _window_of_scale(value) if value.op == _MULTIPLY else None


def _window_of_conv(conv: relax.Call) -> _Window | None:
    attrs = conv.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    is_plain = layouts == ("NCHW", "OIHW", "NCHW") and all(int(d) == 1 for d in attrs.dilation)
    image, weights = conv.args[:2]
    if not is_plain or not isinstance(image, relax.Var) or not is_constant(weights):
        return None
    array = weights.value.numpy()
    if array.dtype != np.float32 or not np.isfinite(array).all():
        return None
    return _Window(image, array.astype(np.float64), tuple(int(p) for p in attrs.padding), conv)


def _window_of_scale(scale: relax.Call) -> _Window | None:
    """A scale of an image's channels by constants, as a convolution with a 1x1 kernel."""
    image, factors = scale.args
    shape = static_shape(image.ty)
    if not isinstance(image, relax.Var) or shape is None or not is_constant(factors):
        return None
    array = factors.value.numpy()
    if array.shape != (1, shape[1], 1, 1) or not np.isfinite(array).all():
        return None
    return _Window(image, array.astype(np.float64).reshape(-1, 1, 1, 1), (0, 0, 0, 0), None)


def _total_shift(leaves: list[relax.Expr]) -> relax.Expr | None:
    """The sum of the constants among the summands; None if there is none."""
    arrays = [leaf.value.numpy().astype(np.float64) for leaf in leaves if is_constant(leaf)]
    if not arrays:
        return None
    return relax.const(np.asarray(sum(arrays)).astype(np.float32), "float32")


def _merged(
    windows: dict[relax.Expr, _Window],
) -> tuple[dict[relax.Expr, relax.Call], set[relax.Expr]]:
    """The merged convolutions, and the summands that are not merged.

    Each merged convolution replaces several summands. It takes the place of the summand with the
    largest kernel, or of the first summand of several equally large ones.
    """
    groups: dict[Hashable, list[relax.Expr]] = {}
    for leaf, window in windows.items():
        if window.conv is not None:
            groups.setdefault(_kind(window), []).append(leaf)
    merged: dict[relax.Expr, relax.Call] = {}
    gone: set[relax.Expr] = set()
    for group in groups.values():
        place = max(group, key=lambda leaf: windows[leaf].weights[0, 0].size)
        largest = windows[place]
        scales = [
            leaf
            for leaf, window in windows.items()
            if window.conv is None and leaf not in gone and _may_hold(largest, window)
        ]
        others = {leaf: windows[leaf].within(largest) for leaf in (*group, *scales)}
        del others[place]
        placed = {leaf: array for leaf, array in others.items() if array is not None}
        if not placed or largest.conv is None:
            continue
        with np.errstate(over="ignore"):
            weights = sum(placed.values(), largest.weights).astype(np.float32)
        if np.isfinite(weights).all():
            args = [largest.image, relax.const(weights, "float32")]
            merged[place] = relax.Call(largest.conv.op, args, largest.conv.attrs)
            gone |= placed.keys()
    return merged, gone


def _kind(window: _Window) -> Hashable:
    """A key. Convolutions with equal keys may be merged."""
    conv = window.conv
    assert conv is not None
    strides = tuple(int(stride) for stride in conv.attrs.strides)
    return window.image, strides, int(conv.attrs.groups), window.weights.shape[:2]


def _may_hold(window: _Window, scale: _Window) -> bool:
    """Whether a scale can be merged into a convolution.

    The convolution must have stride 1, read the image of the scale, and have as many output
    channels as the scale.
    """
    assert window.conv is not None
    return (
        window.image.same_as(scale.image)
        and all(int(stride) == 1 for stride in window.conv.attrs.strides)
        and window.weights.shape[0] == scale.weights.shape[0]
    )
