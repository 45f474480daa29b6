"""The dimensions of an input as an ONNX model declares them."""

from __future__ import annotations

from typing import TypeAlias

import onnx

Dims: TypeAlias = "tuple[int | str, ...] | None"
"""The dimensions of an input; None if its rank is unknown.

A dimension is a size, a name, a sum such as `past + 1`, or `?` if the model does not name it.
"""
UNNAMED = "?"


def declared_dims(value: onnx.ValueInfoProto) -> Dims:
    """Return the dimensions of an input as the model declares them."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or UNNAMED
        for dim in tensor.shape.dim
    )
