"""Converters for PyTorch's indices and places, which TVM's importer of programs gets wrong.

A negative index counts from the end in PyTorch. TVM leaves it as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import static_shape
from .computed_parts import from_the_first

_LAST = 2**31 - 1
"""An end of a slice that no tensor reaches."""


def _select(node: Any, importer: Any) -> relax.Expr:
    """Convert `x[:, i]`, for one axis."""
    bb = importer.block_builder
    x, axis, index = importer.retrieve_args(node)
    if index >= 0:
        return bb.emit(relax.op.take(x, relax.const(index, "int64"), axis))
    end = _LAST if index == -1 else index + 1
    part = bb.emit(relax.op.strided_slice(x, [axis], [index], [end]))
    return bb.emit(relax.op.squeeze(part, [axis]))


def _index(node: Any, importer: Any) -> relax.Expr:
    """Convert `x[i, :, j]`, where `i` and `j` are tensors."""
    bb = importer.block_builder
    x, indices = importer.retrieve_args(node)
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    shape = static_shape(x.ty)
    if shape is None or any("int" not in str(index.ty.dtype) for _, index in given):
        return importer._index_tensor(node)
    positive = [from_the_first(bb, index, shape[axis]) for axis, index in given]
    axes = [axis for axis, _ in given]
    if len(axes) == 1:
        return bb.emit(relax.op.take(x, positive[0], axes[0]))
    others = [axis for axis in range(len(shape)) if axis not in axes]
    if axes != list(range(len(axes))):
        x = bb.emit(relax.op.permute_dims(x, [*axes, *others]))
    result = bb.emit(relax.op.index_tensor(x, positive))
    if not axes[0] or axes[-1] - axes[0] >= len(axes):
        return result
    # The indices' own dimensions take the place of adjacent axes.
    rank = max(int(index.ty.ndim) for index in positive)
    before = list(range(rank, rank + axes[0]))
    after = list(range(rank + axes[0], rank + len(others)))
    return bb.emit(relax.op.permute_dims(result, [*before, *range(rank), *after]))


def _grid_sample(node: Any, importer: Any) -> relax.Expr:
    """Convert `grid_sample` of images. PyTorch's grid has the two coordinates last."""
    x, grid, method, outside, align_corners = importer.retrieve_args(node)
    bb = importer.block_builder
    return bb.emit(
        relax.op.image.grid_sample(
            x,
            bb.emit(relax.op.permute_dims(grid, [0, 3, 1, 2])),
            method=("bilinear", "nearest", "bicubic")[method],
            layout="NCHW",
            padding_mode=("zeros", "border", "reflection")[outside],
            align_corners=align_corners,
        )
    )


def _max_pool(node: Any, importer: Any) -> relax.Expr:
    if any(user.target is operator.getitem and user.args[1] == 1 for user in node.users):
        raise UnsupportedModelError(
            f"TVM cannot import node `{node.name}`: the places of maxima (`return_indices=True`) "
            "are not computed. Export the program to ONNX (`torch.onnx.export(..., dynamo=True)`)"
        )
    return importer._max_pool2d_with_indices(node)


Converter = Callable[[Any, Any], "relax.Expr | Sequence[relax.Expr]"]
INDICES: Mapping[str, Converter] = {
    "grid_sampler_2d.default": _grid_sample,
    "index.Tensor": _index,
    "max_pool2d_with_indices.default": _max_pool,
    "select.int": _select,
}
