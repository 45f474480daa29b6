"""Makes kernels of operators that TVM's own way of doing it gets wrong.

What adds many terms of float16 up (a mean, a sum, a softmax, an average pooling) does it in
float32. TVM would do it in float16, which is off in the second digit after some hundred terms. The
casts are part of the operator's kernel, so it stays one kernel.

Rounding to integers of 8 bits goes as ONNX says: halves to the even number.

The largest of numbers that are all minus infinity is minus infinity, and the smallest likewise. TVM
begins with the smallest finite number, and so never sees that a row of a mask hides everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from .quantised_kernels import rounded_to_steps
from .static_shape import static_shape

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]

_SUMMING = (
    "relax.mean",
    "relax.nn.adaptive_avg_pool1d",
    "relax.nn.adaptive_avg_pool2d",
    "relax.nn.adaptive_avg_pool3d",
    "relax.nn.avg_pool1d",
    "relax.nn.avg_pool2d",
    "relax.nn.avg_pool3d",
    "relax.nn.log_softmax",
    "relax.nn.softmax",
    "relax.std",
    "relax.sum",
    "relax.variance",
)
_EXTREMES = {"relax.max": (tirx.max, -math.inf), "relax.min": (tirx.min, math.inf)}


def legalizations() -> dict[str, Legalization]:
    """How to make kernels of operators, by their names: what `LegalizeOps` takes."""
    own: dict[str, Legalization] = {"relax.quantize": _quantize}
    own |= {name: _sum(name) for name in _SUMMING}
    return own | {name: _extreme(name) for name in _EXTREMES}


def _quantize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM would round halves away from zero."""
    usual = tvm.ir.Op.get("relax.quantize").get_attr("FLegalize")
    dtype = _dtype(call)
    if dtype not in ("int8", "uint8") or str(call.args[0].ty.dtype) != "float32":
        return usual(bb, call)
    scale, zero = (_single_number(arg) for arg in call.args[1:3])
    axis = int(call.attrs.axis)
    return bb.call_te(
        lambda data, *rest: _rounded(data, _filled([scale, zero], rest), axis, dtype),
        call.args[0],
        *(arg for arg, known in zip(call.args[1:3], (scale, zero), strict=True) if known is None),
        primfunc_name_hint="quantize",
    )


def _rounded(data: te.Tensor, step: list[Any], axis: int, dtype: str) -> te.Tensor:
    scale, zero = step
    return rounded_to_steps(data, scale, zero, axis, dtype)


def _single_number(expr: relax.Expr) -> Any:
    """The number that a constant is, as TIR; None for anything else."""
    if not isinstance(expr, tvm.ir.GenericConst) or expr.value.numpy().size != 1:
        return None
    return tirx.const(expr.value.numpy().reshape(-1)[0].item(), str(expr.ty.dtype))


def _filled(known: list[Any], rest: tuple[Any, ...]) -> list[Any]:
    """`known` with the next of `rest` in place of each None."""
    waiting = iter(rest)
    return [next(waiting) if each is None else each for each in known]


def _sum(name: str) -> Legalization:
    usual = tvm.ir.Op.get(name).get_attr("FLegalize")

    def legalization(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return usual(_WideBuilder(bb) if _dtype(call) == "float16" else bb, call)

    return legalization


class _WideBuilder:
    """A block builder as TVM's legalizations use it, whose kernels compute in float32."""

    def __init__(self, bb: relax.BlockBuilder) -> None:
        self._bb = bb

    def call_te(self, function: Callable[..., te.Tensor], *args: Any, **attrs: Any) -> relax.Call:
        def in_float32(x: te.Tensor, *args: Any, **attrs: Any) -> te.Tensor:
            return topi.cast(function(topi.cast(x, "float32"), *args, **attrs), x.dtype)

        hint = attrs.pop("primfunc_name_hint", function.__name__)
        return self._bb.call_te(in_float32, *args, primfunc_name_hint=hint, **attrs)


def _extreme(name: str) -> Legalization:
    usual = tvm.ir.Op.get(name).get_attr("FLegalize")
    better, worst = _EXTREMES[name]
    reducer = te.comm_reducer(
        lambda a, b: better(a, b), lambda dtype: tirx.const(worst, dtype), name=better.__name__
    )

    def legalization(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        (x,), attrs = call.args, call.attrs
        shape = static_shape(x.ty)
        if "float" not in _dtype(call) or shape is None or 0 in shape:
            return usual(bb, call)
        rank = len(shape)
        axes = {int(a) % rank for a in attrs.axis} if attrs.axis is not None else set(range(rank))
        keepdims = bool(attrs.keepdims)
        return bb.call_te(
            lambda x: _reduced(x, reducer, axes, keepdims), x, primfunc_name_hint=better.__name__
        )

    return legalization


def _reduced(
    x: te.Tensor, reducer: Callable[..., Any], axes: Set[int], keepdims: bool
) -> te.Tensor:
    """`x` reduced over `axes`, which stay with a size of one or go."""
    reduced = {axis: te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in sorted(axes)}
    kept = [axis for axis in range(len(x.shape)) if keepdims or axis not in axes]

    def element(*indices: Any) -> Any:
        at = dict(zip(kept, indices, strict=True)) | reduced
        element = x(*(at[axis] for axis in range(len(x.shape))))
        return reducer(element, axis=list(reduced.values())) if reduced else element

    return te.compute([1 if a in axes else x.shape[a] for a in kept], element)


def _dtype(call: relax.Call) -> str:
    return str(getattr(call.ty, "dtype", ""))
