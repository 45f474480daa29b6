"""Converts PyTorch's special functions to ONNX. They are computed in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto
from onnxscript import opset18 as op

from .torch_floats import float64

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
"""From this number on, digamma is computed by its asymptotic series."""

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


_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""The Bernoulli numbers B2, B4 and so on, which occur in the series of polygamma."""

_TERMS = 10
"""The number of terms of polygamma that are added one by one. The asymptotic series gives the rest.
"""

_BESSEL_FAR = 20.0
"""From this number on, Bessel functions are computed by their asymptotic series."""

_BESSEL_TERMS = 42
"""The number of terms of the power series that gives float64's precision below `_BESSEL_FAR`."""

_NDTRI_MIDDLE = (
    (
        -59.9633501014107895267, 98.0010754185999661536, -56.6762857469070293439,
        13.9312609387279679503, -1.23916583867381258016,
    ),
    (
        1.0, 1.95448858338141759834, 4.67627912898881538453, 86.3602421390890590575,
        -225.462687854119370527, 200.260212380060660359, -82.0372256168333339912,
        15.9056225126211695515, -1.18331621121330003142,
    ),
)  # fmt: skip
_NDTRI_TAIL = (
    (
        4.05544892305962419923, 31.5251094599893866154, 57.1628192246421288162,
        44.0805073893200834700, 14.6849561928858024014, 2.18663306850790267539,
        -0.140256079171354495875, -0.0350424626827848203418, -8.57456785154685413611e-4,
    ),
    (
        1.0, 15.7799883256466749731, 45.3907635128879210584, 41.3172038254672030440,
        15.0425385692907503408, 2.50464946208309415979, -0.142182922854787788574,
        -0.0380806407691578277194, -9.33259480895457427372e-4,
    ),
)  # fmt: skip
_NDTRI_FAR_TAIL = (
    (
        3.23774891776946035970, 6.91522889068984211695, 3.93881025292474443415,
        1.33303460815807542389, 0.201485389549179081538, 0.0123716634817820021358,
        3.01581553508235416007e-4, 2.65806974686737550832e-6, 6.23974539184983293730e-9,
    ),
    (
        1.0, 6.02427039364742014255, 3.67983563856160859403, 1.37702099489081330271,
        0.216236993594496635890, 0.0134204006088543189037, 3.28014464682127739104e-4,
        2.89247864745380683936e-6, 6.79019408009981274425e-9,
    ),
)  # fmt: skip
"""The coefficients of the numerator and the denominator in each of the three ranges of
`normal_quantile`, with the highest power first.
"""


def log_gamma(x: Any) -> Any:
    """Convert `lgamma`: by Lanczos's series, and below one half by the reflection formula."""
    wide = op.Cast(x, to=TensorProto.DOUBLE)
    below = op.Less(wide, float64(0.5))
    # For z below one half, the series is computed for 1 - z, as the reflection formula needs it.
    reflected = op.Where(below, op.Sub(float64(1), wide), wide)
    rest = op.Sub(reflected, float64(1))
    total = float64(_LANCZOS[0])
    for i, factor in enumerate(_LANCZOS[1:], 1):
        total = op.Add(total, op.Div(float64(factor), op.Add(rest, float64(i))))
    base = op.Add(rest, float64(7.5))
    power = op.Mul(op.Add(rest, float64(0.5)), op.Log(base))
    series = op.Add(op.Sub(power, base), op.Log(op.Mul(total, float64(math.sqrt(2 * math.pi)))))
    # The computed sine of a whole multiple of pi is not exactly 0. So compute the sine of pi times
    # the fractional part.
    part = op.Sub(wide, op.Floor(wide))
    sine = op.Abs(op.Sin(op.Mul(part, float64(math.pi))))
    below_half = op.Sub(op.Log(op.Div(float64(math.pi), sine)), series)
    result = op.Where(below, below_half, series)
    infinite = op.IsInf(wide)
    return op.CastLike(op.Where(infinite, op.Abs(wide), result), x)


def digamma(x: Any) -> Any:
    """Convert `digamma`, by a series for large numbers and the recurrence formula for small ones.
    Negative numbers use the reflection formula.
    """
    wide = op.Cast(x, to=TensorProto.DOUBLE)
    zero, one = float64(0), float64(1)
    below = op.Less(wide, zero)
    y = op.Where(below, op.Sub(one, wide), wide)
    taken = zero
    for _ in range(_STEPS):
        is_small = op.Less(y, float64(_STEPS))
        taken = op.Add(taken, op.Where(is_small, op.Div(one, y), zero))
        y = op.Where(is_small, op.Add(y, one), y)
    square = op.Div(one, op.Mul(y, y))
    series = op.Mul(square, _polynomial(square, _DIGAMMA[::-1]))
    half = op.Div(float64(0.5), y)
    result = op.Sub(op.Sub(op.Sub(op.Log(y), half), series), taken)
    part = op.Mul(op.Sub(wide, op.Floor(wide)), float64(math.pi))
    turned = op.Sub(result, op.Div(float64(math.pi), op.Tan(part)))
    is_pole = op.And(below, op.Equal(wide, op.Floor(wide)))
    negative = op.Where(is_pole, float64(math.nan), turned)
    return op.CastLike(op.Where(below, negative, result), x)


def erf_inverse(x: Any) -> Any:
    """Convert `erfinv`: by Giles's polynomials."""
    wide = op.Cast(x, to=TensorProto.DOUBLE)
    one = float64(1)
    w = op.Neg(op.Log(op.Mul(op.Sub(one, wide), op.Add(one, wide))))
    near = _polynomial(op.Sub(w, float64(2.5)), _ERF_INVERSE_NEAR)
    far = _polynomial(op.Sub(op.Sqrt(w), float64(3)), _ERF_INVERSE_FAR)
    result = op.Mul(op.Where(op.Less(w, float64(5)), near, far), wide)
    is_end = op.Equal(op.Abs(wide), one)
    end = op.Mul(wide, float64(math.inf))
    return op.CastLike(op.Where(is_end, end, result), x)


def polygamma(n: int, x: Any) -> Any:
    """Convert `polygamma`, the derivative of order `n` of digamma.

    Polygamma is computed as a sum of powers plus an asymptotic series (Abramowitz and Stegun,
    6.4.10 and 6.4.11). For negative numbers, the reflection formula 6.4.7 is used.
    """
    if n == 0:
        return digamma(x)
    wide = op.Cast(x, to=TensorProto.DOUBLE)
    zero, one = float64(0), float64(1)
    below = op.Less(wide, zero)
    y = op.Where(below, op.Sub(one, wide), wide)
    total = zero
    for _ in range(_TERMS):
        total = op.Add(total, _power(op.Div(one, y), n + 1))
        y = op.Add(y, one)
    part = op.Div(one, y)
    factors = [
        number * math.factorial(2 * k + n - 1) / math.factorial(2 * k) / math.factorial(n)
        for k, number in enumerate(_BERNOULLI, 1)
    ]
    square = op.Mul(part, part)
    series = op.Mul(square, _polynomial(square, factors[::-1]))
    series = op.Add(series, op.Add(float64(1 / n), op.Mul(float64(0.5), part)))
    total = op.Add(total, op.Mul(_power(part, n), series))
    sign = (-1) ** (n + 1)
    result = op.Mul(float64(sign * math.factorial(n)), total)
    angle = op.Mul(op.Sub(wide, op.Floor(wide)), float64(math.pi))
    cotangent = _polynomial(op.Div(one, op.Tan(angle)), _cotangent_derivative(n))
    turned = op.Sub(op.Mul(float64(-sign), result), op.Mul(float64(math.pi ** (n + 1)), cotangent))
    is_pole = op.And(op.LessOrEqual(wide, zero), op.Equal(wide, op.Floor(wide)))
    result = op.Where(is_pole, float64(sign * math.inf), op.Where(below, turned, result))
    return op.CastLike(result, x)


def _cotangent_derivative(n: int) -> list[int]:
    """Return the derivative of order `n` of the cotangent, as a polynomial of the cotangent.

    The coefficient of the highest power comes first.
    """
    found = np.polynomial.Polynomial([0, 1])
    for _ in range(n):
        found = -found.deriv() * np.polynomial.Polynomial([1, 0, 1])
    return [int(factor) for factor in found.coef[::-1]]


def bessel(order: int, is_scaled: bool, x: Any) -> Any:
    """Convert the modified Bessel functions of the first kind, `i0` and `i1`.

    `i0` and `i1` are computed by their power series or, for large numbers, by their asymptotic
    series (Abramowitz and Stegun, 9.6.10 and 9.7.1).

    Parameters
    ----------
    order: 0 or 1.
    is_scaled: whether the result is multiplied by exp(-|x|), as in `i0e` and `i1e`.
    """
    wide = op.Cast(x, to=TensorProto.DOUBLE)
    size = op.Abs(wide)
    half = op.Mul(op.Min(size, float64(_BESSEL_FAR)), float64(0.5))
    factors = [1 / math.factorial(k) / math.factorial(k + order) for k in range(_BESSEL_TERMS)]
    near = _polynomial(op.Mul(half, half), factors[::-1])
    near = op.Mul(near, half) if order else near
    factors = [1.0]
    for k in range(1, _BESSEL_TERMS // 2):
        factors.append(-factors[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    large = op.Max(size, float64(_BESSEL_FAR))
    series = _polynomial(op.Div(float64(1), large), factors[::-1])
    far = op.Div(series, op.Sqrt(op.Mul(large, float64(2 * math.pi))))
    if is_scaled:
        near = op.Mul(near, op.Exp(op.Neg(size)))
    else:
        far = op.Mul(far, op.Exp(large))
    result = op.Where(op.Less(size, float64(_BESSEL_FAR)), near, far)
    if order:
        result = op.Where(op.Less(wide, float64(0)), op.Neg(result), result)
    return op.CastLike(result, x)


def normal_quantile(x: Any) -> Any:
    """Convert `special.ndtri`, the quantiles of the normal distribution.

    Source: Moshier, Cephes Math Library, function `ndtri`.
    """
    wide = op.Cast(x, to=TensorProto.DOUBLE)
    zero, one, half, edge = map(float64, (0, 1, 0.5, math.exp(-2)))
    is_upper = op.Greater(wide, op.Sub(one, edge))
    side = op.Where(is_upper, op.Sub(one, wide), wide)
    middle = op.Sub(wide, half)
    square = op.Mul(middle, middle)
    inner = op.Mul(op.Mul(middle, square), _ratio(square, _NDTRI_MIDDLE))
    inner = op.Mul(op.Add(middle, inner), float64(math.sqrt(2 * math.pi)))
    distance = op.Sqrt(op.Mul(float64(-2), op.Log(side)))
    part = op.Div(one, distance)
    tails = [op.Mul(part, _ratio(part, given)) for given in (_NDTRI_TAIL, _NDTRI_FAR_TAIL)]
    tail = op.Where(op.Less(distance, float64(8)), *tails)
    outer = op.Sub(op.Sub(distance, op.Mul(op.Log(distance), part)), tail)
    outer = op.Where(is_upper, outer, op.Neg(outer))
    result = op.Where(op.Greater(side, edge), inner, outer)
    result = op.Where(op.Equal(wide, zero), float64(-math.inf), result)
    return op.CastLike(op.Where(op.Equal(wide, one), float64(math.inf), result), x)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Return the value of a polynomial at `x`. The coefficient of the highest power comes first."""
    result = float64(coefficients[0])
    for each in coefficients[1:]:
        result = op.Add(op.Mul(result, x), float64(each))
    return result


def _ratio(x: Any, given: tuple[Sequence[float], Sequence[float]]) -> Any:
    return op.Div(*(_polynomial(x, coefficients) for coefficients in given))


def _power(x: Any, exponent: int) -> Any:
    """Return a power of `x`, computed by multiplications."""
    if exponent == 1:
        return x
    root = _power(x, exponent // 2)
    square = op.Mul(root, root)
    return op.Mul(square, x) if exponent % 2 else square
