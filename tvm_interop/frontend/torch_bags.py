"""Converts PyTorch's `EmbeddingBag` to ONNX: a sum, a mean or a maximum of the rows of each bag."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from onnx import TensorProto
from onnxscript import ir
from onnxscript import opset18 as op

from .torch_shapes import fixed_sizes, ints

_SUM, _MEAN, _MAX = range(3)
"""PyTorch's numbers for the modes of `EmbeddingBag`."""


def conversions() -> Mapping[Any, Callable[..., Any]]:
    """Return the conversion of each operator of this module."""
    aten = torch.ops.aten
    return {
        aten._embedding_bag.default: _decomposed_bags,
        aten._embedding_bag_forward_only.default: _decomposed_bags,
        aten.embedding_bag.default: _bags,
        aten.embedding_bag.padding_idx: _bags,
    }


def _decomposed_bags(*given: Any, padding_idx: int = -1, **named: Any) -> Any:
    """Convert the operators into which PyTorch decomposes `embedding_bag`.

    If no row is padding, they have -1 as the index of the padding row, and not None.
    """
    padding_idx = given[8] if len(given) > 8 else padding_idx
    named["padding_idx"] = None if padding_idx < 0 else padding_idx
    return _bags(*given[:8], **named)


def _bags(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Convert `embedding_bag`. Indices that are equal to `padding_idx` do not count.

    The exporter's own conversion is a loop over the bags, with another loop inside it if there is
    padding. It ignores the factors of the rows of a single bag, and treats the index -1 as padding.
    """
    del scale_grad_by_freq, sparse
    rows = op.Cast(op.Gather(weight, indices), to=TensorProto.FLOAT)
    if per_sample_weights is not None:
        factors = op.Cast(per_sample_weights, to=TensorProto.FLOAT)
        rows = op.Mul(rows, op.Unsqueeze(factors, ints(-1)))
    if padding_idx is None:
        is_kept = op.Expand(op.Constant(value=ir.tensor(True)), op.Shape(indices))
    else:
        place = padding_idx % fixed_sizes(weight.shape, [0])[0]
        is_kept = op.Not(op.Equal(indices, op.CastLike(op.Constant(value_int=place), indices)))
    ignored = op.Constant(value_float=-math.inf if mode == _MAX else 0.0)
    rows = op.Where(op.Unsqueeze(is_kept, ints(-1)), rows, ignored)
    kept = op.Cast(is_kept, to=TensorProto.FLOAT)
    size = None if include_last_offset else _size_of_bags(offsets, indices)
    if size is not None:
        result, counts = _of_equal_bags(rows, kept, size, mode)
    else:
        result, counts = _of_bags(rows, kept, offsets, mode)
    one, zero = op.Constant(value_float=1.0), op.Constant(value_float=0.0)
    if mode == _MEAN:
        result = op.Div(result, op.Max(counts, one))
    elif mode == _MAX:
        result = op.Where(op.Equal(counts, zero), zero, result)
    if include_last_offset:
        result = op.Slice(result, ints(0), ints(-1), ints(0))
    # Stand-ins for the other results of PyTorch's operator, which only its gradient uses.
    others = (op.Constant(value_ints=[0]) for _ in range(3))
    return op.CastLike(result, weight), *others


def _size_of_bags(offsets: Any, indices: Any) -> int | None:
    """Return the number of indices in each bag; None if it differs between bags.

    It is the same for all bags in PyTorch's program for indices of two dimensions.
    """
    producer = offsets.producer()
    node: Any = producer.meta.get("node") if producer is not None else None
    if getattr(node, "target", None) is not torch.ops.aten.arange.start_step:
        return None
    start, end, step = (*node.args, 1)[:3]
    if not all(isinstance(each, int) for each in (start, end, step, *indices.shape)):
        return None
    is_equal = start == 0 and step > 0 and end % step == 0 and tuple(indices.shape) == (end,)
    return step if is_equal else None


def _of_equal_bags(rows: Any, kept: Any, size: int, mode: int) -> tuple[Any, Any]:
    """Return the sum or the maximum of each bag, and the number of its rows, as a column."""
    inner = op.Shape(rows, start=1)
    bags = op.Reshape(rows, op.Concat(ints(-1, size), inner, axis=0))
    reduce = op.ReduceMax if mode == _MAX else op.ReduceSum
    counts = op.ReduceSum(op.Reshape(kept, ints(-1, size)), ints(1), keepdims=1)
    return reduce(bags, ints(1), keepdims=0), counts


def _of_bags(rows: Any, kept: Any, offsets: Any, mode: int) -> tuple[Any, Any]:
    """Return the results of `_of_equal_bags` for bags that begin at `offsets`."""
    starts = op.Cast(offsets, to=TensorProto.INT64)
    zero, one = (op.Constant(value=ir.tensor([value])) for value in (0, 1))
    # A bag without rows may begin after the last row.
    marks = op.Expand(zero, op.Add(op.Shape(rows, start=0, end=1), one))
    ones = op.Expand(one, op.Shape(starts))
    marks = op.ScatterElements(marks, starts, ones, axis=0, reduction="add")
    bag = op.Slice(op.Sub(op.CumSum(marks, op.Constant(value_int=0)), one), ints(0), ints(-1))
    bag = op.Unsqueeze(bag, ints(1))
    nothing = op.Constant(value_float=-math.inf if mode == _MAX else 0.0)
    shape = op.Concat(op.Shape(starts), op.Shape(rows, start=1), axis=0)
    result = op.ScatterElements(
        op.Expand(nothing, shape),
        op.Expand(bag, op.Shape(rows)),
        rows,
        axis=0,
        reduction="max" if mode == _MAX else "add",
    )
    none = op.Expand(op.Constant(value_float=0.0), op.Concat(op.Shape(starts), one, axis=0))
    kept = op.Unsqueeze(kept, ints(1))
    return result, op.ScatterElements(none, bag, kept, axis=0, reduction="add")
