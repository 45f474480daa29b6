"""Converts to ONNX PyTorch's operators that read or write at chosen places of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, numpy_helper
from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib.ops import core

from .torch_shapes import ints


def conversions() -> Mapping[Any, Callable[..., Any]]:
    """Return the conversion of each operator of this module."""
    aten = torch.ops.aten
    return {
        aten.cross.default: _cross,
        aten.diagonal.default: _diagonal,
        aten.diagonal_copy.default: _diagonal,
        aten.index.Tensor: _indexed,
        aten.index_put.default: _put,
        aten.repeat_interleave.self_int: _repeated,
        torch.ops.prims.as_strided_scatter.default: _strided,
    }


def _cross(x: Any, y: Any, dim: int | None = None) -> Any:
    """Convert `cross`. Without `dim`, PyTorch takes the first dimension of size 3."""
    axis = dim if dim is not None else list(x.shape).index(3)
    (a, b, c), (d, e, f) = (op.Split(each, axis=axis, num_outputs=3) for each in (x, y))
    pairs = ((b, f, c, e), (c, d, a, f), (a, e, b, d))
    parts = [op.Sub(op.Mul(p, q), op.Mul(r, s)) for p, q, r, s in pairs]
    return op.Concat(*parts, axis=axis)


def _diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Convert `diagonal`. The exporter multiplies all other elements by 0, which gives NaN if one
    of them is infinite.
    """
    rank = len(x.shape)
    axes = [dim1 % rank, dim2 % rank]
    rows, columns = (x.shape[axis] for axis in axes)
    if not (isinstance(rows, int) and isinstance(columns, int)):
        return core.aten_diagonal(x, offset, dim1, dim2)
    places = np.argwhere(np.eye(rows, columns, offset, dtype=bool))
    if not len(places):
        return core.aten_diagonal(x, offset, dim1, dim2)
    others = [axis for axis in range(rank) if axis not in axes]
    turned = op.Transpose(x, perm=[*axes, *others])
    found = op.GatherND(turned, op.Constant(value=numpy_helper.from_array(places)))
    return op.Transpose(found, perm=[*range(1, rank - 1), 0])


def _indexed(x: Any, indices: Sequence[Any]) -> Any:
    """Convert `index`. Beside a mask, the exporter takes integers for a mask too, and it ignores
    what follows a mask of several dimensions.
    """
    given = [index for index in indices if index is not None]
    if len(given) == 1 or not any(index.dtype == TensorProto.BOOL for index in given):
        return core.aten_index(x, indices)
    places: list[Any] = []
    ranks = []
    for index in indices:
        if index is None or index.dtype != TensorProto.BOOL:
            places.append(index)
            ranks += [] if index is None else [len(index.shape)]
            continue
        rank = len(index.shape)
        coordinates = op.NonZero(index)
        # A mask of several dimensions stands for the coordinates of its true elements.
        parts = (op.Slice(coordinates, ints(i), ints(i + 1), ints(0)) for i in range(rank))
        places += [op.Reshape(part, ints(-1)) for part in parts]
        ranks += [1] * rank
    return core._aten_index_onnx(x, places, ranks)


def _put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """Convert `index_put`. The exporter has no form of a mask after whole dimensions, as in
    `x[:, mask] = 0`.
    """
    given = [index for index in indices if index is not None]
    is_one = all(size == 1 for size in values.shape)
    is_mask = len(given) == 1 and given[0].dtype == TensorProto.BOOL
    if not (is_mask and is_one and indices[0] is None and not accumulate):
        return core.aten_index_put(x, indices, values, accumulate)
    axis, (mask,) = indices.index(given[0]), given
    after = len(x.shape) - axis - len(mask.shape)
    wide = op.Unsqueeze(mask, ints(*range(-after, 0))) if after else mask
    return op.Where(wide, op.Reshape(values, ints(1)), x)


def _strided(
    x: Any, source: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0
) -> Any:
    """Convert `as_strided_scatter`, into which PyTorch decomposes `fill_diagonal_`."""
    producer = x.producer()
    node = (x if producer is None else producer).meta["node"]
    if not node.meta["val"].is_contiguous():
        raise TypeError(
            "the tensor is not contiguous, so no part of it can be written by strides: call "
            "`.contiguous()` before"
        )
    places = storage_offset + sum(
        np.arange(n).reshape([-1] + [1] * (len(size) - 1 - i)) * step
        for i, (n, step) in enumerate(zip(size, stride, strict=True))
    )
    index = op.Constant(value_ints=np.broadcast_to(places, size).ravel().tolist())
    flat = op.ScatterElements(op.Reshape(x, ints(-1)), index, op.Reshape(source, ints(-1)), axis=0)
    return op.Reshape(flat, op.Shape(x))


def _repeated(x: Any, repeats: Any, dim: int | None = None, output_size: int | None = None) -> Any:
    """Convert `repeat_interleave`.

    The exporter is wrong if a vector is repeated by a size.
    """
    if isinstance(repeats, int):
        return core.aten_repeat_interleave_self_int(x, repeats, dim, output_size)
    if dim is None:
        x, dim = op.Reshape(x, ints(-1)), 0
    else:
        dim %= len(x.shape)
    count = op.Reshape(repeats, ints(1))
    wide = op.Concat(op.Shape(x, end=dim + 1), count, op.Shape(x, start=dim + 1), axis=0)
    shape = op.Concat(op.Shape(x, end=dim), ints(-1), op.Shape(x, start=dim + 1), axis=0)
    return op.Reshape(op.Expand(op.Unsqueeze(x, ints(dim + 1)), wide), shape)
