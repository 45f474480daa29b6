"""Converts ONNX's reductions, such as `ReduceSum`.

A reduction operator has three steps: an element-wise function of the input, a sum or another plain
reduction, and an element-wise function of the result. For example, the steps of `ReduceL2` are
square, sum and square root. If `noop_with_empty_axes` is set and no axes are given, ONNX leaves out
only the second step. TVM's importer leaves out all three steps.

Source: the operators' definitions in the ONNX specification, opsets 1 to 20.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from .constants import constant_array

Each = Callable[[Any], Any]


@dataclass(frozen=True)
class _Reduction:
    """The steps of a reduction operator.

    Attributes
    ----------
    reduce: the plain reduction, such as the sum, between the two element-wise functions.
    before: the element-wise function of the input; None if there is none.
    after: the element-wise function of the result; None if there is none.
    is_real: whether the result for integer inputs can be fractional. Such a result is computed in
        float64 and truncated.
    """

    reduce: Callable[..., Any]
    before: Each | None = None
    after: Each | None = None
    is_real: bool = False


def _square(x: Any) -> Any:
    return relax.op.multiply(x, x)


_REDUCTIONS = {
    "ReduceL1": _Reduction(relax.op.sum, before=relax.op.abs),
    "ReduceL2": _Reduction(relax.op.sum, before=_square, after=relax.op.sqrt, is_real=True),
    "ReduceLogSum": _Reduction(relax.op.sum, after=relax.op.log, is_real=True),
    "ReduceMax": _Reduction(relax.op.max),
    "ReduceMean": _Reduction(relax.op.mean, is_real=True),
    "ReduceMin": _Reduction(relax.op.min),
    "ReduceProd": _Reduction(relax.op.prod),
    "ReduceSum": _Reduction(relax.op.sum),
    "ReduceSumSquare": _Reduction(relax.op.sum, before=_square),
}
REDUCTIONS = (*_REDUCTIONS, "ReduceLogSumExp")
"""The operators that `import_reduction` converts."""


def import_reduction(
    bb: relax.BlockBuilder, op_type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the result of a reduction node, whose type `op_type` is one of `REDUCTIONS`.

    The axes are an attribute, or a constant input in later opsets. Without axes, the node reduces
    over all axes unless it has `noop_with_empty_axes`.
    """
    x = inputs[0]
    dtype, rank = str(x.ty.dtype), int(x.ty.ndim)
    axes = reduced_axes(inputs, attrs, rank)
    keepdims = bool(attrs.get("keepdims", 1))
    if op_type == "ReduceLogSumExp":
        wide = x if "float" in dtype else bb.emit(relax.op.astype(x, "float64"))
        result = _log_sum_exp(bb, wide, axes, keepdims)
    else:
        wanted = _REDUCTIONS[op_type]
        result = x if dtype != "bool" else bb.emit(relax.op.astype(x, "uint8"))
        if wanted.is_real and "float" not in dtype:
            result = bb.emit(relax.op.astype(result, "float64"))
        if wanted.before is not None:
            result = bb.normalize(wanted.before(result))
        if axes:
            result = bb.normalize(wanted.reduce(result, axes, keepdims))
        if wanted.after is not None:
            result = bb.normalize(wanted.after(result))
    result = bb.normalize(result)
    return result if str(result.ty.dtype) == dtype else relax.op.astype(result, dtype)


def reduced_axes(inputs: Sequence[Any], attrs: Mapping[str, Any], rank: int) -> list[int]:
    """Return the axes to reduce over, made positive; an empty list if nothing is reduced."""
    given = attrs.get("axes")
    if len(inputs) > 1 and inputs[1] is not None:
        given = constant_array(inputs[1])
    if given is None or len(given) == 0:
        return [] if attrs.get("noop_with_empty_axes", 0) else list(range(rank))
    # A tensor without dimensions has no axis to reduce over. If axes are given, they are ignored,
    # as in onnxruntime.
    return sorted({int(axis) % rank for axis in given}) if rank else []


def _log_sum_exp(bb: relax.BlockBuilder, x: Any, axes: list[int], keepdims: bool) -> Any:
    """Return log(sum(exp(x))) over `axes`.

    The largest element is subtracted first, because its exponential could overflow.
    """
    if not axes:
        return x
    largest = bb.emit(relax.op.max(x, axes, keepdims=True))
    # A maximum that is infinite is not subtracted, because infinity minus infinity is NaN.
    is_infinite = bb.emit(relax.op.isinf(largest))
    shift = bb.emit(relax.op.where(is_infinite, relax.const(0, str(x.ty.dtype)), largest))
    powers = bb.normalize(relax.op.exp(bb.normalize(relax.op.subtract(x, shift))))
    total = bb.normalize(relax.op.sum(powers, axes, keepdims=True))
    result = bb.normalize(relax.op.add(bb.normalize(relax.op.log(total)), shift))
    return result if keepdims else relax.op.squeeze(result, axes)
