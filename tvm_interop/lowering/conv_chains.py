"""Finds convolutions that can be merged into one, each with the bias and activation after it.

IOS describes the merge of convolutions (Ding et al., MLSys 2021, section 3). `merge_convs` performs
the merge.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

import numpy as np
import tvm
from tvm import relax

from .chains import Array, Chain, ChainFinder
from .static_shape import static_shape

_CONV2D = tvm.ir.Op.get("relax.nn.conv2d")


class ConvChain(Chain):
    """A convolution with constant weights of shape (O, C, KH, KW)."""

    @property
    def axis(self) -> int:
        """The axis of the channels."""
        return 1

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides along height and width."""
        return tuple(int(stride) for stride in self.call.attrs.strides)

    @property
    def padding(self) -> tuple[int, ...]:
        """The padding at the top, left, bottom and right."""
        return tuple(int(pad) for pad in self.call.attrs.padding)

    @property
    def kernel(self) -> tuple[int, ...]:
        """The kernel's height and width."""
        return tuple(self.weight.shape[2:])

    def kind(self) -> Hashable:
        """A key. Chains with equal keys can be merged if their kernel sizes allow it."""
        return (
            "conv2d",
            self.data,
            str(self.weight.dtype),
            self.output_shape[2:],
            self.strides,
            self.activation_key(),
        )

    def why_not_merged(self, group: Sequence[Chain]) -> str | None:
        """The reason why the convolutions of `group` cannot be merged; None if they can.

        The convolutions must have the same strides, and the same output height and width (IOS,
        section 3). The merged kernel has the largest height and width of all kernels. Each kernel
        is placed into the merged kernel at an offset, and must fit there. This offset is the
        largest padding of the group minus the kernel's own padding.
        """
        chains = cast(Sequence[ConvChain], group)
        for chain in chains:
            differences = {
                "has other strides than": chain.strides != self.strides,
                "gives an image of another size than": chain.output_shape[2:]
                != self.output_shape[2:],
            }
            for what, differs in differences.items():
                if differs:
                    return f"`{chain.name}` {what} `{self.name}`"
        kernel, padding = _merged_window(chains)
        for chain in chains:
            for axis, offset in enumerate(_offsets(chain, padding)):
                if chain.kernel[axis] + offset > kernel[axis]:
                    return (
                        f"the kernel of `{chain.name}` ({_by(chain.kernel)}, "
                        f"{_by(chain.padding[:2])} padded) does not fit into one of {_by(kernel)}, "
                        f"{_by(padding[:2])} padded"
                    )
        data_shape = static_shape(self.data.ty)
        assert data_shape is not None, "a chain's shapes are static"
        for axis in range(2):
            room = data_shape[2 + axis] + padding[axis] + padding[2 + axis] - kernel[axis]
            if room // self.strides[axis] + 1 != self.output_shape[2 + axis]:
                return (
                    f"one kernel of {_by(kernel)} for `{self.name}` and the others would give an "
                    "image of another size"
                )
        return None

    def wider(self, group: Sequence[Chain], data: relax.Expr) -> relax.Call:
        """One convolution of `data` that has the kernels of all chains in `group`.

        Zeros pad each kernel to the same size.
        """
        chains = cast(Sequence[ConvChain], group)
        kernel, padding = _merged_window(chains)
        weight = np.concatenate([_padded(chain, kernel, padding) for chain in chains])
        return relax.op.nn.conv2d(
            data,
            relax.const(weight, str(weight.dtype)),
            strides=list(self.strides),
            padding=list(padding),
        )

    def shaped_bias(self, bias: Array) -> Array:
        """The bias, reshaped so that it has as many axes as the output."""
        return bias.reshape(1, -1, 1, 1)


def conv_chain(finder: ChainFinder, var: relax.Var) -> ConvChain | None:
    """The chain that begins with `var`, if `var` is a convolution that could be merged.

    A convolution could be merged if it has constant weights, static shapes, layout NCHW, one group
    and no dilation.
    """
    call = finder.values[var]
    if not isinstance(call, relax.Call) or call.op != _CONV2D:
        return None
    attrs = call.attrs
    plain = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == ("NCHW", "OIHW", "NCHW")
    single = int(attrs.groups) == 1 and all(int(d) == 1 for d in attrs.dilation)
    is_constant = isinstance(call.args[1], tvm.ir.GenericConst)
    shapes_known = static_shape(var.ty) and static_shape(call.args[0].ty)
    if not (plain and single and is_constant and shapes_known):
        return None
    variables, bias, activation = finder.ending(var, 1)
    weight = call.args[1].value.numpy()
    return ConvChain(str(var.name), variables, call, call.args[0], weight, bias, activation)


def _merged_window(chains: Sequence[ConvChain]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The largest kernel height and width of a group, and its largest padding on each side (top,
    left, bottom, right).
    """
    kernel = tuple(max(chain.kernel[axis] for chain in chains) for axis in range(2))
    padding = tuple(max(chain.padding[side] for chain in chains) for side in range(4))
    return kernel, padding


def _offsets(chain: ConvChain, padding: tuple[int, ...]) -> tuple[int, int]:
    """The row and column of a merged kernel at which the chain's kernel begins.

    Parameters
    ----------
    padding: the padding of the merged kernel: top, left, bottom and right.
    """
    return padding[0] - chain.padding[0], padding[1] - chain.padding[1]


def _padded(chain: ConvChain, kernel: tuple[int, ...], padding: tuple[int, ...]) -> Array:
    top, left = _offsets(chain, padding)
    bottom = kernel[0] - chain.kernel[0] - top
    right = kernel[1] - chain.kernel[1] - left
    return np.pad(chain.weight, ((0, 0), (0, 0), (top, bottom), (left, right)))


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
