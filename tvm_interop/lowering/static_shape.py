"""Reads the shape of a Relax tensor as integers, if all dimensions are known."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax


def static_shape(ty: Any) -> tuple[int, ...] | None:
    """The shape of the type `ty`; None if `ty` is not a tensor type or a dimension is not known."""
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr):
        return None
    # Iterating over a slice takes half as long as iterating over TVM's array itself.
    dims = shape.values[:]
    if not all(isinstance(dim, tvm.tirx.IntImm) for dim in dims):
        return None
    return tuple(int(dim) for dim in dims)


def known_shape(value: Any) -> tuple[int, ...]:
    """The shape of a tensor in a model that is imported with static shapes."""
    shape = static_shape(value.ty)
    assert shape is not None
    return shape


def static_rank(ty: Any) -> int:
    """The number of dimensions of the type `ty`; -1 if its shape is not known."""
    shape = static_shape(ty)
    return -1 if shape is None else len(shape)


def swaps_last_axes(call: relax.Call) -> bool:
    """Whether a `relax.permute_dims` of a tensor of known shape only swaps its last two axes."""
    rank = static_rank(call.args[0].ty)
    given = call.attrs.axes
    axes = range(rank)[::-1] if given is None else [int(axis) % rank for axis in given]
    return rank >= 2 and list(axes) == [*range(rank - 2), rank - 1, rank - 2]


def permuted(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with its dimensions in another order."""
    return tuple(shape[axis] for axis in order)
