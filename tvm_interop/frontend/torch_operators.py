"""Conversions to ONNX that PyTorch's exporter lacks or gets wrong. They need the extra `torch`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from onnxscript import opset18 as op

from ..errors import UnsupportedModelError


def translations() -> Mapping[Any, Callable[..., Any]]:
    """Return the conversions by PyTorch's operator, for `custom_translation_table`."""
    aten, prims = torch.ops.aten, torch.ops.prims
    return {
        aten._cdist_forward.default: _cdist,
        aten.amax.default: _amax,
        aten.amin.default: _amin,
        aten.atan2.default: _atan2,
        aten.masked_select.default: _masked_select,
        aten.sort.stable: _sort,
        prims.fmax.default: _fmax,
        prims.fmin.default: _fmin,
    }


def check_program(program: Any, origin: str) -> None:
    """Refuse what PyTorch's exporter would convert without a word to something else.

    Raises
    ------
    UnsupportedModelError
        The program returns something else than tensors, or an average pool divides by a number of
        its own, which the exporter drops.
    """
    for output in program.graph_signature.user_outputs:
        if output is not None and not isinstance(output, str):
            raise UnsupportedModelError(
                f"{origin} returns `{output}`, which is not a tensor: return tensors only"
            )
    pools = {torch.ops.aten.avg_pool2d.default, torch.ops.aten.avg_pool3d.default}
    for node in program.graph.nodes:
        given = [*node.args, None] if node.target in pools else []
        divisor = node.kwargs.get("divisor_override", given[6] if len(given) > 7 else None)
        if node.target in pools and divisor is not None:
            raise UnsupportedModelError(
                f"{origin}: node `{node.name}` has `divisor_override`, which PyTorch's exporter to "
                "ONNX leaves out: leave it out, and scale the result"
            )


def _ints(*values: int) -> Any:
    return op.Constant(value_ints=list(values))


def _amax(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    return _extreme(op.ReduceMax, x, dim, keepdim)


def _amin(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    return _extreme(op.ReduceMin, x, dim, keepdim)


def _extreme(reduce: Any, x: Any, dim: Sequence[int], keepdim: bool) -> Any:
    if not len(x.shape):
        return op.Identity(x)
    axes = _ints(*(dim or range(len(x.shape))))
    is_bool = x.dtype == 9
    result = reduce(op.Cast(x, to=6) if is_bool else x, axes, keepdims=int(keepdim))
    return op.Cast(result, to=9) if is_bool else result


def _sort(x: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Convert `sort`. Of equal elements, ONNX's `TopK` takes the one with the lower index first."""
    del stable
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    count = op.Shape(x, start=dim, end=dim + 1 if dim != -1 else None)
    return op.TopK(x, count, axis=dim, largest=int(descending), sorted=1)


def _atan2(y: Any, x: Any) -> Any:
    """Convert `atan2`. The exporter's own formula gives -pi where y is 0 and x is negative."""
    pi = op.Constant(value_float=math.pi)
    zero = op.Constant(value_float=0.0)
    half = op.Where(op.Less(y, zero), op.Neg(pi), pi)
    turned = op.Where(op.Less(x, zero), op.Add(op.Atan(op.Div(y, x)), half), op.Atan(op.Div(y, x)))
    return op.Where(op.And(op.Equal(x, zero), op.Equal(y, zero)), op.Mul(y, zero), turned)


def _masked_select(x: Any, mask: Any) -> Any:
    wide = op.Expand(x, op.Shape(mask)) if len(mask.shape) > len(x.shape) else x
    shape = op.Shape(op.Add(op.Cast(wide, to=1), op.Cast(mask, to=1)))
    places = op.NonZero(op.Expand(mask, shape))
    return op.GatherND(op.Expand(x, shape), op.Transpose(places))


def _cdist(x: Any, y: Any, p: float, mode: int | None = None) -> Any:
    """Convert `cdist`: the p-norms of the differences of all rows of `x` and all rows of `y`."""
    del mode
    differences = op.Abs(op.Sub(op.Unsqueeze(x, _ints(-2)), op.Unsqueeze(y, _ints(-3))))
    last = _ints(-1)
    if p == 0:
        marks = op.Cast(op.Greater(differences, op.Constant(value_float=0.0)), to=1)
        return op.ReduceSum(marks, last, keepdims=0)
    if p == 1:
        return op.ReduceSum(differences, last, keepdims=0)
    if p == 2:
        return op.ReduceL2(differences, last, keepdims=0)
    if math.isinf(p):
        return op.ReduceMax(differences, last, keepdims=0)
    powers = op.Pow(differences, op.Constant(value_float=p))
    sums = op.ReduceSum(powers, last, keepdims=0)
    return op.Pow(sums, op.Constant(value_float=1 / p))


def _fmax(x: Any, y: Any) -> Any:
    return _of_numbers(op.Max, x, y)


def _fmin(x: Any, y: Any) -> Any:
    return _of_numbers(op.Min, x, y)


def _of_numbers(compare: Any, x: Any, y: Any) -> Any:
    """Compare; where one of the two is not a number, the result is the other one."""
    if not x.dtype.is_floating_point():
        return compare(x, y)
    return op.Where(op.IsNaN(x), y, op.Where(op.IsNaN(y), x, compare(x, y)))
