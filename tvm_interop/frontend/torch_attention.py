"""Converts PyTorch's attention where all keys of a row are masked, as in rows of padding."""

from __future__ import annotations

import math
from typing import Any

from onnx import TensorProto
from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib.ops.nn import aten_scaled_dot_product_attention

from .torch_shapes import ints


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Convert attention.

    If the mask excludes all keys for a row, the row of the result is 0. PyTorch's exporter would
    give other results for such a row. It adds a large negative number where a boolean mask is
    false, so the row would be the mean of all values. If the mask adds minus infinity, the row
    would be NaN.
    The exporter takes the root of `scale`, which may be negative here.
    """
    if dropout_p:
        raise TypeError(
            "it drops elements at random, as in training: export the model for inference, with "
            "`dropout_p=0.0`"
        )
    if scale is not None and scale < 0:
        opposite = op.Neg(query)
        # The exporter reads the shape and the type.
        opposite.shape, opposite.dtype = query.shape, query.dtype
        query, scale = opposite, -scale
    result = aten_scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )
    if attn_mask is None:
        return result
    if attn_mask.dtype == TensorProto.BOOL:
        marks = op.Cast(attn_mask, to=TensorProto.INT32)
        has_keys = op.Cast(op.ReduceMax(marks, ints(-1), keepdims=1), to=TensorProto.BOOL)
    else:
        most = op.ReduceMax(attn_mask, ints(-1), keepdims=1)
        has_keys = op.Greater(most, op.CastLike(op.Constant(value_float=-math.inf), most))
    return op.Where(has_keys, result, op.CastLike(op.Constant(value_float=0.0), result))
