"""Finds convolutions that can be merged into one, with the bias and activation after each.

IOS describes this merge (Ding et al., MLSys 2021, section 3). `merge_convs` performs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from .names import bindings_of, is_meaningful
from .static_shape import static_shape

_CONV2D = tvm.ir.Op.get("relax.nn.conv2d")
_ADD = tvm.ir.Op.get("relax.add")
_RELU = tvm.ir.Op.get("relax.nn.relu")
_CLIP = tvm.ir.Op.get("relax.clip")

_Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class ConvChain:
    """A convolution with constant weights, and the bias and the ReLU or clip that may follow it.

    Attributes
    ----------
    name: the name of the convolution's binding, and so of its schedule unit.
    vars: the variables that the operators define, in order. Each of them except the last is read
        only by the next operator.
    conv: the call of the convolution.
    data: the convolution's input.
    weight: the weights, of shape (O, C, KH, KW).
    bias: the bias, of shape (O,), or None.
    activation: the call of ReLU or clip, or None.
    """

    name: str
    vars: tuple[relax.Var, ...]
    conv: relax.Call
    data: relax.Expr
    weight: _Array
    bias: _Array | None
    activation: relax.Call | None

    @property
    def result(self) -> relax.Var:
        """The variable that the rest of the model reads."""
        return self.vars[-1]

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The output's shape, (N, O, H, W)."""
        return tuple(int(dim) for dim in self.result.ty.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides along height and width."""
        return tuple(int(stride) for stride in self.conv.attrs.strides)

    @property
    def padding(self) -> tuple[int, ...]:
        """The padding at the top, left, bottom and right."""
        return tuple(int(pad) for pad in self.conv.attrs.padding)

    @property
    def kernel(self) -> tuple[int, ...]:
        """The kernel's height and width."""
        return tuple(self.weight.shape[2:])

    def kind(self) -> Hashable:
        """A key that is equal for chains that could be merged, if their kernel sizes allow it."""
        activation = self.activation
        return (
            self.data,
            str(self.weight.dtype),
            self.output_shape[2:],
            self.strides,
            None if activation is None else (activation.op.name, *map(str, activation.args[1:])),
        )


def find_conv_chains(main: relax.Function) -> dict[str, ConvChain]:
    """The convolutions that could be merged with other convolutions, by name.

    They are in the order of `main`. They have constant weights, static shapes, layout NCHW, one
    group and no dilation. Their names come from the model and are unique.
    """
    finder = _Finder(main)
    chains = [chain for chain in map(finder.chain, finder.values) if chain is not None]
    names = Counter(chain.name for chain in chains)
    return {c.name: c for c in chains if names[c.name] == 1 and is_meaningful(c.name)}


def mergeable_sets(chains: dict[str, ConvChain]) -> list[tuple[str, ...]]:
    """Sets of two or more convolutions of the same kind; only convolutions of one set can merge."""
    sets: dict[Hashable, list[str]] = {}
    for name, chain in chains.items():
        sets.setdefault(chain.kind(), []).append(name)
    return [tuple(names) for names in sets.values() if len(names) > 1]


def why_not_merged(chains: Sequence[ConvChain]) -> str | None:
    """The reason why these convolutions cannot be merged (IOS, section 3); None if they can.

    They must read the same tensor, and have the same data type, strides, output height and width,
    and activation. The merged kernel has the largest height and width of all kernels. Each kernel
    is placed into it at an offset, and must fit there. This offset is the largest padding less the
    kernel's own padding.
    """
    first = chains[0]
    if len(chains) < 2:
        return "merging takes two or more convolutions"
    for chain in chains[1:]:
        differences = {
            "reads another tensor than": not chain.data.same_as(first.data),
            "has another type than": chain.weight.dtype != first.weight.dtype,
            "has other strides than": chain.strides != first.strides,
            "gives an image of another size than": chain.output_shape[2:] != first.output_shape[2:],
            "has another activation than": chain.kind() != first.kind(),
        }
        for what, differs in differences.items():
            if differs:
                return f"`{chain.name}` {what} `{first.name}`"
    kernel, padding = merged_window(chains)
    for chain in chains:
        for axis, offset in enumerate(offsets(chain, padding)):
            if chain.kernel[axis] + offset > kernel[axis]:
                return (
                    f"the kernel of `{chain.name}` ({_by(chain.kernel)}, {_by(chain.padding[:2])} "
                    f"padded) does not fit into one of {_by(kernel)}, {_by(padding[:2])} padded"
                )
    data_shape = static_shape(first.data.ty)
    assert data_shape is not None, "a chain's shapes are static"
    for axis in range(2):
        room = data_shape[2 + axis] + padding[axis] + padding[2 + axis] - kernel[axis]
        if room // first.strides[axis] + 1 != first.output_shape[2 + axis]:
            return (
                f"one kernel of {_by(kernel)} for `{first.name}` and the others would give an "
                "image of another size"
            )
    return None


def merged_window(chains: Sequence[ConvChain]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The largest kernel height and width, and the largest padding (top, left, bottom, right)."""
    kernel = tuple(max(chain.kernel[axis] for chain in chains) for axis in range(2))
    padding = tuple(max(chain.padding[side] for chain in chains) for side in range(4))
    return kernel, padding


def offsets(chain: ConvChain, padding: tuple[int, ...]) -> tuple[int, int]:
    """The row and column of a merged kernel at which the chain's kernel begins.

    Parameters
    ----------
    padding: the padding of the merged kernel: top, left, bottom and right.
    """
    return padding[0] - chain.padding[0], padding[1] - chain.padding[1]


class _Finder:
    """Finds chains of a convolution, a bias and an activation in a function."""

    def __init__(self, main: relax.Function) -> None:
        self.values = {b.var: b.value for b in bindings_of(main) if isinstance(b, relax.VarBinding)}
        self._readers: dict[relax.Var, list[relax.Var | None]] = {}
        for var, value in self.values.items():
            for used in relax.analysis.free_vars(value):
                self._readers.setdefault(used, []).append(var)
        for used in relax.analysis.free_vars(main.body.body):
            self._readers.setdefault(used, []).append(None)

    def chain(self, var: relax.Var) -> ConvChain | None:
        """The chain that begins with `var`, if it is a convolution that could be merged."""
        conv = self.values[var]
        if not isinstance(conv, relax.Call) or conv.op != _CONV2D:
            return None
        attrs = conv.attrs
        plain = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == (
            "NCHW",
            "OIHW",
            "NCHW",
        )
        single = int(attrs.groups) == 1 and all(int(d) == 1 for d in attrs.dilation)
        is_constant = isinstance(conv.args[1], tvm.ir.GenericConst)
        shapes_known = static_shape(var.ty) and static_shape(conv.args[0].ty)
        if not (plain and single and is_constant and shapes_known):
            return None
        chain = [var]
        bias = activation = None
        following = self._only_reader(var)
        if following is not None:
            bias = self._bias(following, var)
            if bias is not None:
                chain.append(following)
                following = self._only_reader(following)
        if following is not None:
            value = self.values[following]
            if isinstance(value, relax.Call) and value.op in (_RELU, _CLIP):
                activation = value
                chain.append(following)
        weight = conv.args[1].value.numpy()
        return ConvChain(str(var.name), tuple(chain), conv, conv.args[0], weight, bias, activation)

    def _only_reader(self, var: relax.Var) -> relax.Var | None:
        readers = self._readers.get(var, [])
        return readers[0] if len(readers) == 1 else None

    def _bias(self, var: relax.Var, conv: relax.Var) -> _Array | None:
        """The constant that `var` adds to `conv`, if it has one number for each channel."""
        value = self.values[var]
        if not isinstance(value, relax.Call) or value.op != _ADD:
            return None
        other = value.args[1] if value.args[0].same_as(conv) else value.args[0]
        if not isinstance(other, tvm.ir.GenericConst):
            return None
        array = other.value.numpy()
        channels = int(conv.ty.shape[1])
        shape = (1,) * (4 - array.ndim) + array.shape
        return array.reshape(-1) if shape == (1, channels, 1, 1) else None


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
