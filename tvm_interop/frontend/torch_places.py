"""Converts to ONNX PyTorch's operators that read or write at chosen places of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, numpy_helper
from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib.ops.core import aten_diagonal, aten_index_put

from .torch_shapes import ints


def conversions() -> Mapping[Any, Callable[..., Any]]:
    """Return the conversion of each operator of this module."""
    aten = torch.ops.aten
    return {
        aten.cross.default: _cross,
        aten.diagonal.default: _diagonal,
        aten.diagonal_copy.default: _diagonal,
        aten.index_put.default: _put,
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
        return aten_diagonal(x, offset, dim1, dim2)
    places = np.argwhere(np.eye(rows, columns, offset, dtype=bool))
    if not len(places):
        return aten_diagonal(x, offset, dim1, dim2)
    others = [axis for axis in range(rank) if axis not in axes]
    turned = op.Transpose(x, perm=[*axes, *others])
    found = op.GatherND(turned, op.Constant(value=numpy_helper.from_array(places)))
    return op.Transpose(found, perm=[*range(1, rank - 1), 0])


def _put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """Convert `index_put`. The exporter has no form of a mask after whole dimensions, as in
    `x[:, mask] = 0`.
    """
    given = [index for index in indices if index is not None]
    is_one = all(size == 1 for size in values.shape)
    is_mask = len(given) == 1 and given[0].dtype == TensorProto.BOOL
    if not (is_mask and is_one and indices[0] is None and not accumulate):
        return aten_index_put(x, indices, values, accumulate)
    axis, (mask,) = indices.index(given[0]), given
    after = len(x.shape) - axis - len(mask.shape)
    wide = op.Unsqueeze(mask, ints(*range(-after, 0))) if after else mask
    return op.Where(wide, op.Reshape(values, ints(1)), x)
