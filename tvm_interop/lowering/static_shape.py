"""Reads the shape of a Relax tensor as integers, if all of it is known."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax


def static_shape(ty: Any) -> tuple[int, ...] | None:
    """The shape of the type `ty`; None if `ty` is not a tensor type or a dimension is not known."""
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr):
        return None
    dims = list(shape.values)
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


def permuted(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with its dimensions in another order."""
    return tuple(shape[axis] for axis in order)
