"""The dimensions of an input as an ONNX model declares them."""

from __future__ import annotations

from typing import TypeAlias

import onnx

from ..program.row_axis import unnamed_dimension

Dims: TypeAlias = "tuple[int | str, ...] | None"
"""The dimensions of an input; None if its rank is unknown.

A dimension is a size, a name, or a sum such as `past + 1`. A dimension that the model does not name
has the name that `program.row_axis.unnamed_dimension` gives it.
"""


def declared_dims(value: onnx.ValueInfoProto) -> Dims:
    """Return the dimensions of an input as the model declares them.

    Some exporters write -1 as the size of an open dimension without a name.
    """
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        dim.dim_value
        if dim.HasField("dim_value") and dim.dim_value >= 0
        else dim.dim_param or unnamed_dimension(value.name, axis)
        for axis, dim in enumerate(tensor.shape.dim)
    )
