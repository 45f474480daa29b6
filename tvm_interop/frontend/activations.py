"""Converters for ONNX's activation functions.

TVM's own converters for activation functions give wrong results for some inputs: NaN, infinity,
small numbers, or dtypes other than float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from .constants import number_like


def _softplus(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x = inputs[0]
    small = bb.emit(relax.op.exp(relax.op.negative(relax.op.abs(x))))
    return relax.op.add(relax.op.maximum(x, number_like(x, 0)), _log1p(bb, small))


def _log1p(bb: relax.BlockBuilder, x: Any) -> Any:
    """Return log(1 + x) for x from 0 to 1, accurate for small x too.

    The sum 1 + x has a rounding error, which would spoil the logarithm. Kahan's correction cancels
    this error.
    """
    one = number_like(x, 1)
    shifted = bb.emit(relax.op.add(x, one))
    rounded = bb.emit(relax.op.subtract(shifted, one))
    lost_all = relax.op.equal(rounded, number_like(x, 0))
    divisor = relax.op.where(lost_all, one, rounded)
    corrected = relax.op.multiply(relax.op.log(shifted), relax.op.divide(x, divisor))
    return relax.op.where(lost_all, x, corrected)


def _mish(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # x * tanh(log(1 + e)) with e = exp(x) equals x * n / (n + 2) with n = e * (e + 2). The exponent
    # is limited to 20, so that e cannot overflow. Above 20 the quotient rounds to 1 in float32 and
    # in float64.
    x = inputs[0]
    e = bb.emit(relax.op.exp(relax.op.minimum(x, number_like(x, 20))))
    n = bb.emit(relax.op.multiply(e, relax.op.add(e, number_like(x, 2))))
    return relax.op.multiply(x, relax.op.divide(n, relax.op.add(n, number_like(x, 2))))


def _elu(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # TVM's converter of `Elu` supports only float32.
    return _exponential_below_zero(bb, inputs[0], float(attrs.get("alpha", 1.0)))


def _exponential_below_zero(bb: relax.BlockBuilder, x: Any, alpha: float) -> Any:
    """Return alpha * (exp(x) - 1) for negative elements, and x for all others."""
    zero, one = number_like(x, 0), number_like(x, 1)
    below = relax.op.subtract(relax.op.exp(relax.op.minimum(x, zero)), one)
    scaled = bb.normalize(relax.op.multiply(number_like(x, alpha), below))
    return relax.op.where(relax.op.less(x, zero), scaled, x)


def _celu(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # ONNX defines Celu by other operators. That definition is not used here, because it turns a
    # scalar into a vector.
    x = inputs[0]
    alpha = number_like(x, float(attrs.get("alpha", 1.0)))
    power = relax.op.exp(relax.op.divide(relax.op.minimum(x, number_like(x, 0)), alpha))
    scaled = relax.op.multiply(alpha, relax.op.subtract(power, number_like(x, 1)))
    return relax.op.where(relax.op.less(x, number_like(x, 0)), bb.normalize(scaled), x)


def _prelu(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # TVM's operator for `PRelu` needs an axis. A scalar has none, so element-wise operators compute
    # its `PRelu`.
    x, slope = inputs
    if int(x.ty.ndim) or int(slope.ty.ndim):
        return None
    scaled = bb.normalize(relax.op.multiply(x, slope))
    return relax.op.where(bb.normalize(relax.op.less(x, number_like(x, 0))), scaled, x)


def _selu(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # TVM's converter of `Selu` turns NaN into 0.
    x = inputs[0]
    alpha = float(attrs.get("alpha", 1.67326319217681884765625))
    gamma = float(attrs.get("gamma", 1.05070102214813232421875))
    chosen = bb.normalize(_exponential_below_zero(bb, x, alpha))
    return relax.op.multiply(number_like(x, gamma), chosen)


def _shrink(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # TVM's converter of `Shrink` has two faults. It rounds `lambd` and `bias` to the type of the
    # input, so 0.5 becomes 0 for integers. And it negates `lambd`, although unsigned integers have
    # no negative numbers.
    x = inputs[0]
    dtype = str(x.ty.dtype)
    if "float" in dtype:
        return None
    wide = bb.emit(relax.op.astype(x, "float64"))
    limit, bias = (float(attrs.get(name, usual)) for name, usual in (("lambd", 0.5), ("bias", 0.0)))
    result = number_like(wide, 0)
    for is_beyond, edge, shift in (
        (relax.op.greater, limit, -bias),
        (relax.op.less, -limit, bias),
    ):
        moved = bb.emit(relax.op.add(wide, number_like(wide, shift)))
        beyond = bb.emit(is_beyond(wide, number_like(wide, edge)))
        result = bb.emit(relax.op.where(beyond, moved, result))
    return relax.op.astype(bb.emit(relax.op.astype(result, "int64")), dtype)


def _thresholded_relu(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    # TVM's converter of `ThresholdedRelu` multiplies x by 0 or 1, so it turns minus infinity into
    # NaN.
    x = inputs[0]
    is_above = relax.op.greater(x, number_like(x, float(attrs.get("alpha", 1.0))))
    return relax.op.where(bb.normalize(is_above), x, number_like(x, 0))


ACTIVATIONS = {
    "Celu": _celu,
    "Elu": _elu,
    "Mish": _mish,
    "PRelu": _prelu,
    "Selu": _selu,
    "Shrink": _shrink,
    "Softplus": _softplus,
    "ThresholdedRelu": _thresholded_relu,
}
"""Maps the name of an activation operator to its converter."""
