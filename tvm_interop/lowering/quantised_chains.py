"""Finds chains: a product of quantised tensors, and the operators after it that a library fuses.

A product is a convolution or a matrix product. A rounding is a `QuantizeLinear`. A chain goes up to
the last rounding that a library can compute in the same call.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from ..program.integers import Step
from ..program.library_op import LibraryOp, library_op
from .activations import find_activation
from .groups import Dataflow
from .quantised_constants import constant_of
from .static_shape import static_shape

DEQUANTIZE, QUANTIZE = "relax.dequantize", "relax.quantize"

_LARGE = 1e30


@dataclass(frozen=True)
class Words:
    """The integers that represent a tensor of floats. The floats are `(var - zero) * scale`.

    Attributes
    ----------
    var: the tensor of integers, of int8 or uint8.
    scale, zero: one scale and one zero point for the whole tensor.
    """

    var: relax.Expr
    scale: float
    zero: int

    @property
    def dtype(self) -> str:
        return str(self.var.ty.dtype)


@dataclass
class Chain:
    """A product and the operators that follow it.

    Attributes
    ----------
    vars: the variables that the operators define, in order.
    bias: the bias in floats, one number for each channel; None if there is no bias.
    low, high: the bounds of a clip, in floats.
    words: the scale, zero point and type of the quantised product; None if no rounding follows.
    sum: the sum with another tensor after the rounding; None if there is no sum.
    """

    vars: list[relax.Var]
    bias: npt.NDArray[np.float32] | None = None
    low: float = -_LARGE
    high: float = _LARGE
    words: tuple[float, int, str] | None = None
    sum: Sum | None = None

    @property
    def made(self) -> tuple[float, int, str] | None:
        """The scale, zero point and type of the chain's result; None if the result is in floats."""
        return self.words if self.sum is None else self.sum.words


@dataclass(frozen=True)
class Sum:
    """The sum of a quantised product and another tensor. The sum is quantised again.

    Attributes
    ----------
    addend: the variable of the tensor that is added to the product. It has floats that were
        dequantised from integers.
    of: the scale, zero point and type of the integers from which `addend` was dequantised.
    low, high: the bounds of a clip of the sum.
    words: the scale, zero point and type of the result.
    """

    addend: relax.Var
    of: tuple[float, int, str]
    low: float
    high: float
    words: tuple[float, int, str]


def chain_of(
    graph: Dataflow, var: relax.Var, channel_axis: int, taken: Collection[relax.Var] = ()
) -> Chain:
    """Return the product `var` and the operators after it that a library computes in the same call.

    Parameters
    ----------
    channel_axis: the axis of the product along which a bias may vary.
    taken: the variables of other chains, which cannot be part of this chain.
    """
    chain = Chain([var])
    shape: tuple[int, ...] = static_shape(var.ty) or ()
    following = graph.only_user(var)
    if following is not None and name_of(following[1]) == "relax.add":
        added, value = following
        other = value.args[1] if value.args[0].same_as(var) else value.args[0]
        bias = constant_of(graph.values, other)
        if bias is not None and static_shape(value.ty) == shape:
            aligned: npt.NDArray[np.float32] = bias.reshape(
                (1,) * (len(shape) - bias.ndim) + bias.shape
            )
            if all(d == 1 for a, d in enumerate(aligned.shape) if a != channel_axis):
                spread = np.broadcast_to(aligned.reshape(-1), (shape[channel_axis],))
                chain.bias = spread.astype(np.float32)
                chain.vars.append(added)
    clipped, chain.low, chain.high = _clip_after(graph, chain.vars[-1])
    chain.vars.extend(clipped)
    rounded = rounding_after(graph, chain.vars[-1])
    if rounded is not None:
        chain.vars.append(rounded[0])
        chain.words = rounded[1]
        _add_sum(graph, chain, shape, taken)
    return chain


def rounding_after(
    graph: Dataflow, var: relax.Var
) -> tuple[relax.Var, tuple[float, int, str]] | None:
    """Return the rounding that reads `var`, if no other operator reads `var`.

    Returns
    -------
    The rounding's variable, and its scale, zero point and type. None if no rounding to int8 or
    uint8 reads `var`.
    """
    following = graph.only_user(var)
    if following is None or name_of(following[1]) != QUANTIZE:
        return None
    numbers, dtype = step_of(following[1]), str(following[1].ty.dtype)
    if numbers is None or dtype not in ("int8", "uint8"):
        return None
    return following[0], (*numbers, dtype)


def _clip_after(graph: Dataflow, var: relax.Var) -> tuple[tuple[relax.Var, ...], float, float]:
    """The variables and the bounds of the ReLU or clip after `var`, if there is one.

    If there is no ReLU or clip, no variables are returned, and the bounds are `-_LARGE` and
    `_LARGE`.
    """
    found = find_activation(graph.values, graph.users, graph.uses, var)
    if found is None or found.activation.name not in ("relu", "clip"):
        return (), -_LARGE, _LARGE
    if found.activation.name == "relu":
        return found.vars, 0.0, _LARGE
    return found.vars, found.activation.low, found.activation.high


def _add_sum(
    graph: Dataflow, chain: Chain, shape: tuple[int, ...], taken: Collection[relax.Var]
) -> None:
    """Extend a chain that ends with a rounding by the sum after it, if the sum is rounded too."""
    following = graph.only_user(chain.vars[-1])
    if following is None or name_of(following[1]) != DEQUANTIZE:
        return
    floats = following[0]
    following = graph.only_user(floats)
    if chain.words is None or step_of(graph.values[floats]) != chain.words[:2]:
        return
    if following is None or following[0] in taken or name_of(following[1]) != "relax.add":
        return
    added, value = following
    addend = value.args[1] if value.args[0].same_as(floats) else value.args[0]
    source: Any = graph.values.get(addend) if isinstance(addend, relax.Var) else None
    is_float32 = str(value.ty.dtype) == "float32"
    if name_of(source) != DEQUANTIZE or static_shape(addend.ty) != shape or not is_float32:
        return
    step, dtype = step_of(source), str(source.args[0].ty.dtype)
    if step is None or dtype not in ("int8", "uint8") or static_shape(value.ty) != shape:
        return
    clipped, low, high = _clip_after(graph, added)
    rounded = rounding_after(graph, [added, *clipped][-1])
    if rounded is None:
        return
    chain.vars.extend([floats, added, *clipped, rounded[0]])
    chain.sum = Sum(addend, (*step, dtype), low, high, rounded[1])


def described(
    op: str,
    words: Words,
    chain: Chain,
    shapes: tuple[tuple[int, ...], ...],
    weight_zero: int,
    **fields: Any,
) -> LibraryOp:
    data, weight, made = shapes
    channels = (made[-1],)
    has_bias = chain.bias is not None or (chain.words is not None and chain.words[1] != 0)
    low, high = chain.low, chain.high
    steps: tuple[Step, ...] = ()
    if chain.sum is not None:
        steps = _steps(chain, chain.sum)
        low, high = _in_steps(chain.sum.low, chain.sum.high, chain.sum.words)
    elif chain.words is not None:
        low, high = _in_steps(low, high, chain.words)
    if chain.made is not None:
        least, most = np.iinfo(chain.made[2]).min, np.iinfo(chain.made[2]).max
        low, high = (low if low > least else -_LARGE), (high if high < most else _LARGE)
    clips = low > -_LARGE or high < _LARGE
    added = [] if chain.sum is None else [chain.sum.of[2]]
    dtype = chain.made[2] if chain.made is not None else "float32"
    layouts = ("plain",) * (4 + has_bias + len(added))
    return library_op(
        op=op,
        shapes=(data, weight, *[channels] * (1 + has_bias), *[made] * (1 + len(added))),
        layouts=layouts,
        dtype="int8",
        stored=(words.dtype, "int8", *["float32"] * (1 + has_bias), *added, dtype),
        has_bias=has_bias,
        has_sum=chain.sum is not None,
        steps=steps,
        activation="clip" if clips else "none",
        clip_low=float(low) if clips else 0.0,
        clip_high=float(high) if clips else 0.0,
        data_zero=words.zero,
        weight_zero=weight_zero,
        **fields,
    )


def _in_steps(low: float, high: float, words: tuple[float, int, str]) -> tuple[float, float]:
    """The bounds of a clip, converted to the integers of the quantised result, as floats.

    Parameters
    ----------
    words: the scale, zero point and type of the quantised result.
    """
    scale, zero, _ = words
    low = low / scale + zero if low > -_LARGE else low
    return low, (high / scale + zero if high < _LARGE else high)


def _steps(chain: Chain, then: Sum) -> tuple[Step, ...]:
    """The steps (see `Integers`) after a product whose quantised result is added to another tensor.

    The steps round the product, add another tensor to it, and convert the sum to the scale of the
    result. The integers of the added tensor stay unchanged, so the product is first converted to
    the scale of this tensor.
    """
    assert chain.words is not None
    scale, zero, dtype = chain.words
    low, high = _in_steps(chain.low, chain.high, chain.words)
    bounds = np.iinfo(dtype)
    ratio = scale / then.of[0]
    return (
        ("clip", max(low, float(bounds.min)), min(high, float(bounds.max))),
        ("round", 0.0, 0.0),
        ("linear", ratio, -zero * ratio - then.of[1]),
        ("add_tensor", 0.0, 0.0),
        ("linear", then.of[0] / then.words[0], float(then.words[1])),
    )


def epilogue(
    op: LibraryOp, words: Words, steps: npt.NDArray[np.float32], chain: Chain
) -> list[relax.Expr]:
    """The arguments of a library call for the scale and the bias of a product.

    If a rounding follows, the scale and the bias are divided by the scale of the rounding, and the
    zero point of the rounding is added to the bias.

    Parameters
    ----------
    steps: the scales of the weight: one number, or one number for each channel.
    """
    scale, zero, _ = chain.words or (1.0, 0, "")
    channels = op.shapes[-1][-1]
    scales = np.broadcast_to(steps.astype(np.float64), channels) * words.scale / scale
    result = [relax.const(scales.astype(np.float32))]
    if op.has_bias:
        bias = np.zeros(channels) if chain.bias is None else chain.bias.astype(np.float64)
        result.append(relax.const((bias / scale + zero).astype(np.float32)))
    return result


def mean_of(call: relax.Call) -> dict[str, Any] | None:
    """The window and the shapes of a mean over height and width, as fields of `LibraryOp`.

    The field `shapes` holds the shapes N,C,H,W of the input and of the output. None is returned for
    other means.
    """
    data, attrs = static_shape(call.args[0].ty), call.attrs
    if data is None or len(data) != 4:
        return None
    if name_of(call) == "relax.mean":
        axes = sorted(int(axis) % 4 for axis in attrs.axis) if attrs.axis is not None else []
        if axes != [2, 3]:
            return None
        window = {"window": data[2:], "strides": (1, 1), "padding": (0,) * 4, "dilation": (1, 1)}
        return {"shapes": (data, (*data[:2], 1, 1)), "counts_padding": False, **window}
    made = static_shape(call.ty)
    if (attrs.layout, attrs.out_layout) != ("NCHW", "NCHW") or made is None:
        return None
    return {
        "shapes": (data, made),
        "window": tuple(int(size) for size in attrs.pool_size),
        "strides": tuple(int(s) for s in attrs.strides),
        "padding": tuple(int(p) for p in attrs.padding),
        "dilation": tuple(int(d) for d in attrs.dilation),
        "counts_padding": bool(attrs.count_include_pad),
    }


def step_of(call: relax.Call) -> tuple[float, int] | None:
    """The scale and zero point of a rounding; None unless both are constants of one number."""
    scale, zero = call.args[1:3]
    if not all(isinstance(each, tvm.ir.GenericConst) for each in (scale, zero)):
        return None
    scales, zeros = scale.value.numpy(), zero.value.numpy()
    if scales.size != 1 or zeros.size != 1 or not scales.reshape(-1)[0] > 0:
        return None
    return float(scales.reshape(-1)[0]), int(zeros.reshape(-1)[0])


def name_of(value: Any) -> str:
    """The name of the operator that `value` calls; empty if it calls no operator."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return ""
    return str(value.op.name)


def label(expr: relax.Expr) -> str:
    """The name of a variable, or "constant" for any other expression."""
    return str(expr.name) if isinstance(expr, relax.Var) else "constant"


def variables(args: Sequence[relax.Expr]) -> list[relax.Var]:
    """The variables among the arguments, including variables in tuples."""
    each = [x for arg in args for x in (arg.fields if isinstance(arg, relax.Tuple) else [arg])]
    return [x for x in each if isinstance(x, relax.Var)]
