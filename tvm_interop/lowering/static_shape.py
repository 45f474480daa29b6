"""Reads the shape of a Relax tensor as integers, if all of it is known."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax


def static_shape(ty: Any) -> tuple[int, ...] | None:
    """The shape of the type `ty`; None if it is not a tensor's, or if a dimension is not known."""
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr):
        return None
    dims = list(shape.values)
    if not all(isinstance(dim, tvm.tirx.IntImm) for dim in dims):
        return None
    return tuple(int(dim) for dim in dims)
