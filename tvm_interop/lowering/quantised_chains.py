"""A product of quantised tensors and what follows it, up to the next rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from ..program.library_op import LibraryOp
from .activations import find_activation
from .library_calls import Dataflow
from .quantised_constants import constant_of
from .static_shape import static_shape

DEQUANTIZE, QUANTIZE = "relax.dequantize", "relax.quantize"

_LARGE = 1e30


@dataclass(frozen=True)
class Words:
    """What a tensor of floats is made of: `(words - zero) * scale`, with one scale for all."""

    var: relax.Expr
    scale: float
    zero: int

    @property
    def dtype(self) -> str:
        return str(self.var.ty.dtype)


@dataclass
class Chain:
    """A product and what follows it: the operators' variables, and what becomes of the sum.

    Attributes
    ----------
    bias: in the floats that the model speaks of; None for none.
    low, high: the bounds of a clip.
    """

    vars: list[relax.Var]
    bias: npt.NDArray[np.float32] | None = None
    low: float = -_LARGE
    high: float = _LARGE
    words: tuple[float, int, str] | None = None  # The result's scale, zero and type, if rounded.


def chain_of(graph: Dataflow, var: relax.Var, channel_axis: int) -> Chain:
    """What follows the product `var` and can be done on the way."""
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
    found = find_activation(graph.values, graph.users, graph.uses, chain.vars[-1])
    if found is not None and found.activation.name in ("relu", "clip"):
        clips = found.activation.name == "clip"
        chain.low, chain.high = (
            (found.activation.low, found.activation.high) if clips else (0.0, _LARGE)
        )
        chain.vars.extend(found.vars)
    following = graph.only_user(chain.vars[-1])
    if following is not None and name_of(following[1]) == QUANTIZE:
        numbers, dtype = step_of(following[1]), str(following[1].ty.dtype)
        if numbers is not None and dtype in ("int8", "uint8"):
            chain.words = (*numbers, dtype)
            chain.vars.append(following[0])
    return chain


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
    _, zero, dtype = chain.words or (1.0, 0, "float32")
    has_bias = chain.bias is not None or zero != 0
    scale, low, high = chain.words[0] if chain.words else 1.0, chain.low, chain.high
    if chain.words is not None:
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        low = low / scale + zero if low > -_LARGE else low
        high = high / scale + zero if high < _LARGE else high
        low, high = (low if low > least else -_LARGE), (high if high < most else _LARGE)
    clips = low > -_LARGE or high < _LARGE
    layouts = ("plain",) * (4 + has_bias)
    return LibraryOp(
        op=op,  # type: ignore[arg-type]
        shapes=(data, weight, channels, *([channels] if has_bias else []), made),
        layouts=layouts,  # type: ignore[arg-type]
        dtype="int8",
        stored=(words.dtype, "int8", "float32", *["float32"] * has_bias, dtype),  # type: ignore[arg-type]
        has_bias=has_bias,
        activation="clip" if clips else "none",
        clip_low=float(low) if clips else 0.0,
        clip_high=float(high) if clips else 0.0,
        data_zero=words.zero,
        weight_zero=weight_zero,
        **fields,
    )


def epilogue(
    op: LibraryOp, words: Words, steps: npt.NDArray[np.float32], chain: Chain
) -> list[relax.Expr]:
    """The scale and the bias, in steps of the result where that is rounded."""
    scale, zero, _ = chain.words or (1.0, 0, "")
    channels = op.shapes[-1][-1]
    scales = np.broadcast_to(steps.astype(np.float64), channels) * words.scale / scale
    result = [relax.const(scales.astype(np.float32))]
    if op.has_bias:
        bias = np.zeros(channels) if chain.bias is None else chain.bias.astype(np.float64)
        result.append(relax.const((bias / scale + zero).astype(np.float32)))
    return result


def step_of(call: relax.Call) -> tuple[float, int] | None:
    """Scale and zero of a rounding that has one of each; None for others."""
    scale, zero = call.args[1:3]
    if not all(isinstance(each, tvm.ir.GenericConst) for each in (scale, zero)):
        return None
    scales, zeros = scale.value.numpy(), zero.value.numpy()
    if scales.size != 1 or zeros.size != 1 or not scales.reshape(-1)[0] > 0:
        return None
    return float(scales.reshape(-1)[0]), int(zeros.reshape(-1)[0])


def name_of(value: Any) -> str:
    """The operator that `value` calls; empty for anything else."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return ""
    return str(value.op.name)
