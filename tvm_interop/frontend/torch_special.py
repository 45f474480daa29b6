"""Conversions to ONNX of PyTorch's special functions, computed in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper
from onnxscript import opset18 as op

_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313,
    -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6,
    1.5056327351493116e-7,
)  # fmt: skip
"""Coefficients of Lanczos's series for g = 7 and nine terms.

Source: Press et al., "Numerical Recipes", section 6.1, with the coefficients of Godfrey.
"""

_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
"""Coefficients of the asymptotic series of digamma (Abramowitz and Stegun, 6.3.18)."""

_STEPS = 6
"""The series of digamma is used from this number on."""

_ERF_INVERSE_NEAR = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
    -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_ERF_INVERSE_FAR = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
    0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip
"""Coefficients of the inverse of erf, the highest power first.

Source: Giles, "Approximating the erfinv function", GPU Computing Gems, 2011.
"""


def log_gamma(x: Any) -> Any:
    """Convert `lgamma`: by Lanczos's series, and by the reflection below one half."""
    wide = op.Cast(x, to=TensorProto.DOUBLE)
    below = op.Less(wide, _number(0.5))
    # The series of 1 - z takes the place of the series of z.
    reflected = op.Where(below, op.Sub(_number(1), wide), wide)
    rest = op.Sub(reflected, _number(1))
    total = _number(_LANCZOS[0])
    for i, factor in enumerate(_LANCZOS[1:], 1):
        total = op.Add(total, op.Div(_number(factor), op.Add(rest, _number(i))))
    base = op.Add(rest, _number(7.5))
    power = op.Mul(op.Add(rest, _number(0.5)), op.Log(base))
    series = op.Add(op.Sub(power, base), op.Log(op.Mul(total, _number(math.sqrt(2 * math.pi)))))
    # The sine of a whole multiple of pi would not be 0, so the rest of the division is taken.
    part = op.Sub(wide, op.Floor(wide))
    sine = op.Abs(op.Sin(op.Mul(part, _number(math.pi))))
    below_half = op.Sub(op.Log(op.Div(_number(math.pi), sine)), series)
    result = op.Where(below, below_half, series)
    infinite = op.IsInf(wide)
    return op.CastLike(op.Where(infinite, op.Abs(wide), result), x)


def digamma(x: Any) -> Any:
    """Convert `digamma`: by the recurrence to larger numbers, and the reflection below 0."""
    wide = op.Cast(x, to=TensorProto.DOUBLE)
    zero, one = _number(0), _number(1)
    below = op.Less(wide, zero)
    y = op.Where(below, op.Sub(one, wide), wide)
    taken = zero
    for _ in range(_STEPS):
        is_small = op.Less(y, _number(_STEPS))
        taken = op.Add(taken, op.Where(is_small, op.Div(one, y), zero))
        y = op.Where(is_small, op.Add(y, one), y)
    square = op.Div(one, op.Mul(y, y))
    series = op.Mul(square, _polynomial(square, _DIGAMMA[::-1]))
    half = op.Div(_number(0.5), y)
    result = op.Sub(op.Sub(op.Sub(op.Log(y), half), series), taken)
    part = op.Mul(op.Sub(wide, op.Floor(wide)), _number(math.pi))
    turned = op.Sub(result, op.Div(_number(math.pi), op.Tan(part)))
    is_pole = op.And(below, op.Equal(wide, op.Floor(wide)))
    negative = op.Where(is_pole, _number(math.nan), turned)
    return op.CastLike(op.Where(below, negative, result), x)


def erf_inverse(x: Any) -> Any:
    """Convert `erfinv`: by Giles's polynomials."""
    wide = op.Cast(x, to=TensorProto.DOUBLE)
    one = _number(1)
    w = op.Neg(op.Log(op.Mul(op.Sub(one, wide), op.Add(one, wide))))
    near = _polynomial(op.Sub(w, _number(2.5)), _ERF_INVERSE_NEAR)
    far = _polynomial(op.Sub(op.Sqrt(w), _number(3)), _ERF_INVERSE_FAR)
    result = op.Mul(op.Where(op.Less(w, _number(5)), near, far), wide)
    is_end = op.Equal(op.Abs(wide), one)
    end = op.Mul(wide, _number(math.inf))
    return op.CastLike(op.Where(is_end, end, result), x)


def _number(value: float) -> Any:
    return op.Constant(value=numpy_helper.from_array(np.float64(value)))


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Return the polynomial in `x`, whose coefficient of the highest power comes first."""
    result = _number(coefficients[0])
    for each in coefficients[1:]:
        result = op.Add(op.Mul(result, x), _number(each))
    return result
