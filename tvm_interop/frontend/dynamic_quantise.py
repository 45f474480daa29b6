"""Converts `DynamicQuantizeLinear`. TVM's converter would divide by 0 if all numbers are 0.

Source: the definition of `DynamicQuantizeLinear` in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from .constants import number_like

_LARGEST = 255


def import_dynamic_quantize(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the numbers in 8 bits, their scale and their zero point.

    The scale is the length of the smallest range that contains all numbers and 0, divided by 255.
    If all numbers are 0, the scale is 1. If the range begins at minus infinity, the zero point is
    255. ONNX does not define the last two cases. In both, the result is the same as in onnxruntime.
    """
    x = inputs[0]
    zero = number_like(x, 0)
    least = bb.emit(relax.op.minimum(zero, bb.emit(relax.op.min(x))))
    most = bb.emit(relax.op.maximum(zero, bb.emit(relax.op.max(x))))
    scale = bb.emit(
        relax.op.divide(bb.emit(relax.op.subtract(most, least)), number_like(x, _LARGEST))
    )
    is_zero = bb.emit(relax.op.equal(scale, zero))
    scale = bb.emit(relax.op.where(is_zero, number_like(x, 1), scale))
    place = bb.emit(relax.op.subtract(zero, bb.emit(relax.op.divide(least, scale))))
    is_nan = bb.emit(relax.op.isnan(place))
    place = bb.emit(relax.op.where(is_nan, number_like(x, _LARGEST), place))
    whole = bb.emit(relax.op.round(bb.emit(relax.op.clip(place, 0, _LARGEST))))
    point = bb.emit(relax.op.astype(whole, "uint8"))
    rounded = relax.op.quantize(x, scale, point, axis=0, out_dtype="uint8")
    return relax.Tuple([bb.emit(rounded), scale, point])
