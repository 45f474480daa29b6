"""Rounds numbers to floats of 8 and 4 bits, which are kept as float32 numbers.

NumPy and TVM's kernels lack floats of 8 and 4 bits. All numbers of these types are also numbers of
float32, so a tensor of such a type is a tensor of float32 here.

Source: the tables of these types in the ONNX specification.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from onnx import TensorProto
from tvm import relax, te, tirx


class SmallFloat(NamedTuple):
    """A type of floats.

    Attributes
    ----------
    bits: the number of bits after the leading bit.
    least: the exponent of the smallest normal number.
    most: the largest number.
    beyond: the result for larger numbers, if the conversion does not saturate.
    has_negative_zero: whether the type has a zero with a sign.
    """

    bits: int
    least: int
    most: float
    beyond: float
    has_negative_zero: bool = True


SMALL_FLOATS = {
    TensorProto.FLOAT8E4M3FN: SmallFloat(3, -6, 448.0, math.nan),
    TensorProto.FLOAT8E4M3FNUZ: SmallFloat(3, -7, 240.0, math.nan, has_negative_zero=False),
    TensorProto.FLOAT8E5M2: SmallFloat(2, -14, 57344.0, math.inf),
    TensorProto.FLOAT8E5M2FNUZ: SmallFloat(2, -15, 57344.0, math.nan, has_negative_zero=False),
    TensorProto.FLOAT4E2M1: SmallFloat(1, 0, 6.0, 6.0),
}
"""The types, by ONNX's numbers of data types."""
_EXPONENT = 0x7F800000
"""The bits of the exponent of a float32 number."""


def as_small_float(bb: relax.BlockBuilder, x: Any, kind: SmallFloat, saturates: bool) -> Any:
    """Return numbers rounded to a small type, as float32. Ties go to even.

    Parameters
    ----------
    x: numbers of any type, which are first converted to float32.
    saturates: whether numbers beyond the largest number become the largest number.
    """
    wide = bb.emit(relax.op.astype(x, "float32")) if str(x.ty.dtype) != "float32" else x

    def kernel(data: Any) -> Any:
        return te.compute(data.shape, lambda *at: _rounded(data(*at), kind, saturates))

    return bb.call_te(kernel, wide, primfunc_name_hint="round_to_small_float")


def _rounded(x: Any, kind: SmallFloat, saturates: bool) -> Any:
    def number(value: float) -> Any:
        return tirx.const(value, "float32")

    limit = kind.most if saturates else 2 * kind.most
    inside = tirx.Select(x > number(limit), number(limit), x)
    inside = tirx.Select(inside < number(-limit), number(-limit), inside)
    exponent = tirx.reinterpret("int32", inside) & tirx.const(_EXPONENT, "int32")
    power = tirx.max(tirx.reinterpret("float32", exponent), number(2.0**kind.least))
    step = power * number(2.0**-kind.bits)
    result = tirx.nearbyint(inside / step) * step
    if not saturates:
        result = tirx.Select(result > number(kind.most), number(kind.beyond), result)
        result = tirx.Select(result < number(-kind.most), number(-kind.beyond), result)
    if not kind.has_negative_zero:
        result = tirx.Select(tirx.EQ(result, number(0.0)), number(0.0), result)
    # A comparison with NaN is false, so NaN has come through until here.
    return tirx.Select(tirx.isnan(x), x, result)
