"""Changes inputs of nodes that TVM's converters or kernels handle wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax

from ..lowering.static_shape import static_rank, static_shape
from .constants import constant_array
from .empty import is_empty

_SCALARS_IN_KERNELS = {
    *("Add", "Sub", "Mul", "Mod", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
}


def as_tvm_takes_them(op: str, inputs: list[Any], attrs: Mapping[str, Any]) -> list[Any]:
    """Return the inputs of a node in a form that TVM handles correctly.

    TVM writes a scalar constant into the kernel, and negates it when it simplifies the kernel. This
    overflows for the smallest integer of a type, so such a scalar gets an axis and stays a tensor.

    `Gemm` does not read its third input if `beta` is 0. This input may hold NaN, so it is left out.

    Exporters write an empty constant for an input of `Resize` that is not given. Such a constant is
    left out.

    JAX's exporter writes the axes of `Unsqueeze` as a scalar, which becomes a vector here.

    TVM takes the diagonal of `Trilu` as an integer of 32 bits. If the diagonal is beyond the
    matrix, it is replaced by the nearest diagonal beyond the matrix.
    """
    if op == "Trilu" and len(inputs) > 1:
        return type(inputs)([inputs[0], _near_diagonal(*inputs[:2])])
    if op == "Gemm" and len(inputs) > 2 and float(attrs.get("beta", 1.0)) == 0:
        return type(inputs)([*inputs[:2], None])
    if op in ("Squeeze", "Unsqueeze") and len(inputs) > 1:
        axes = constant_array(inputs[1])
        if axes is not None and axes.ndim == 0:
            return type(inputs)([inputs[0], relax.const(axes.reshape(1), str(axes.dtype))])
    if op == "Resize":
        image, *others = inputs
        return type(inputs)([image, *(None if is_empty(value) else value for value in others)])
    if op not in _SCALARS_IN_KERNELS or len(inputs) != 2:
        return inputs
    changed = type(inputs)(inputs)
    for i, value in enumerate(inputs):
        array, rank = constant_array(value), static_rank(inputs[1 - i].ty)
        if array is None or array.size != 1 or not rank or array.dtype.kind != "i":
            continue
        if array.item() == np.iinfo(array.dtype).min:
            changed[i] = relax.const(array.reshape([1] * max(array.ndim, 1)), str(array.dtype))
    return changed


def _near_diagonal(x: Any, k: Any) -> Any:
    known, shape = constant_array(k), static_shape(x.ty)
    if known is None or shape is None or len(shape) < 2:
        return k
    rows, columns = shape[-2:]
    return relax.const(known.clip(-rows, columns), str(known.dtype))
