"""Transcendental functions of float32 as expressions that LLVM turns into vector instructions.

TVM's LLVM back end calls the C library for functions such as `exp`, once for each element. In this
module each function reduces the argument to a small range, evaluates a polynomial, and selects
between a few cases. All elements need the same operations, so LLVM can vectorise a loop over
elements for any processor.

The error of each function is at most 2 units in the last place for every argument, including
subnormal numbers, infinities and NaN (`tests/unit/test_vector_math.py` measures the error). The
polynomials are fitted to minimise the largest relative error on the range that each comment states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from tvm import tirx

Expr: TypeAlias = Any
"""A TIR expression; TVM's Python types do not declare its arithmetic operators."""

_LOG2_E = math.log2(math.e)
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860677e-06
"""Two numbers whose sum is ln 2.

The first number has 15 bits, so that its product with the exponent of a float32 is exact.
"""
_SQRT_HALF_BITS = 0x3F3504F3
_ROUNDING = 12582912.0
_ROUNDING_BITS = 0x4B400000
"""The bits of `_ROUNDING`, 1.5 * 2**23.

If a number is added to `_ROUNDING`, the sum is rounded, and its low bits hold the number rounded to
an integer.
"""
_MINUS_INFINITY_BITS = int(np.float32(-math.inf).view(np.int32))
_ROUNDING_64 = 6755399441055744.0
_ROUNDING_64_BITS = 0x4338000000000000

# (e**r - 1 - r) / r**2 as a polynomial of r, for |r| <= ln(2) / 2.
_EXP = (
    0.5,
    0.1666666716337204,
    0.041666269302368164,
    0.008333264850080013,
    0.0013946190010756254,
    0.000199179703486152,
)
# (e**r - 1 - r) / r**2 as a polynomial of r in float64, for |r| <= ln(2) / 2.
_EXP_64 = (
    0.49999999999600503,
    0.16666666666571128,
    0.04166666699107892,
    0.008333333387484708,
    0.0013888807248989869,
    0.0001984116426350716,
    2.4882438293009877e-05,
    2.764330854005516e-06,
)
# (tanh(x) / x - 1) / x**2 as a polynomial of x**2, for |x| <= 0.625.
_TANH = (
    -0.3333333134651184,
    0.13333210349082947,
    -0.05394720286130905,
    0.021702965721488,
    -0.00818267185240984,
    0.00214753532782197,
)
# erf(x) / x - 1 as a polynomial of x**2, for |x| <= 0.93.
_ERF = (
    0.12837916612625122,
    -0.37612631916999817,
    0.11283687502145767,
    -0.026858940720558167,
    0.005199906881898642,
    -0.0008130012429319322,
    8.316773164551705e-05,
)
# ln(1 - erf(x)) as a polynomial of x, for 0.92 <= x <= 4.
_ERF_TAIL = (
    0.00017468392616137862,
    -1.1295149326324463,
    -0.6333469152450562,
    -0.10828008502721786,
    0.025119423866271973,
    -0.004171061795204878,
    0.00043446235940791667,
    -2.1095027477713302e-05,
)
# (ln(1 + f) - f + f**2 / 2) / f**3 as a polynomial of f, for sqrt(1/2) <= 1 + f <= sqrt(2).
_LOG = (
    0.3333331346511841,
    -0.25000008940696716,
    0.2000211924314499,
    -0.1666799634695053,
    0.14219550788402557,
    -0.1240558996796608,
    0.11888178437948227,
    -0.11675652861595154,
    0.06746608018875122,
)
# (ln((1 + s) / (1 - s)) - 2 s) / s**3 as a polynomial of s**2 in float64, for
# sqrt(1/2) <= (1 + s) / (1 - s) <= sqrt(2).
_LOG_64 = (
    0.6666666666658717,
    0.40000000052262846,
    0.2857141713213303,
    0.2222337148216275,
    0.18123650284249102,
    0.16819715196083918,
)


def exp(x: Expr) -> Expr:
    """e to the power of `x`."""
    return _let(x, _exp)


def exp2(x: Expr) -> Expr:
    """2 to the power of `x`."""
    return _let(_as_float64(x), lambda wide: _as_float32(_exp2_64(wide)))


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x))."""
    return _let(x, lambda x: _let(_exp(minus_size(x)), lambda e: sigmoid_from_exponential(x, e)))


def minus_size(x: Expr) -> Expr:
    """Minus the absolute value of `x`. The exponential of this value never overflows."""
    return tirx.Select(x < _f32(0), x, -x)


def sigmoid_from_exponential(x: Expr, e: Expr) -> Expr:
    """1 / (1 + exp(-x)), where `e` is the exponential of `minus_size(x)`."""
    # For x >= 0 the result is computed as 1 - e / (1 + e), and for x < 0 as e - e * (e / (1 + e)).
    # For x < 0 the shorter formula e / (1 + e) has a larger error, because it divides by a rounded
    # sum.
    scale = tirx.Select(x < _f32(0), e, _f32(1))
    return _let(scale, lambda scale: scale - scale * (e / (_f32(1) + e)))


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent of `x`."""

    def of(x: Expr) -> Expr:
        near = _let(x * x, lambda square: x + x * square * _polynomial(_TANH, square))
        far = _f32(1) - _f32(2) / (_exp(tirx.abs(x) * _f32(2)) + _f32(1))
        return _near_or_far(x, 0.625, near, far)

    return _let(x, of)


def erf(x: Expr) -> Expr:
    """The error function of `x`."""
    return _let(x, lambda x: erf_from_tail(x, _let(erf_tail(x), _exp)))


def erf_tail(x: Expr) -> Expr:
    """The logarithm of 1 - erf(abs(x)), with abs(x) bounded by 4.

    The expression `x` occurs several times in the result, so pass a variable.
    """
    bounded = tirx.Select(tirx.abs(x) > _f32(4), _f32(4), tirx.abs(x))
    return _let(bounded, lambda size: _polynomial(_ERF_TAIL, size))


def erf_from_tail(x: Expr, tail: Expr) -> Expr:
    """The error function of `x`, where `tail` is the exponential of `erf_tail`."""
    near = _let(x * x, lambda square: x + x * _polynomial(_ERF, square))
    return _near_or_far(x, 0.925, near, _f32(1) - tail)


def log(x: Expr) -> Expr:
    """The natural logarithm of `x`."""

    def of(x: Expr) -> Expr:
        is_subnormal = x < _f32(2.0**-126)
        normal = tirx.Select(is_subnormal, x * _f32(2.0**23), x)

        def of_bits(bits: Expr) -> Expr:
            exponent = tirx.shift_right(bits - _i32(_SQRT_HALF_BITS), _i32(23))
            return _let(exponent, lambda e: of_parts(e, bits - tirx.shift_left(e, _i32(23))))

        def of_parts(exponent: Expr, mantissa: Expr) -> Expr:
            whole = exponent - tirx.Select(is_subnormal, _i32(23), _i32(0))
            fraction = tirx.reinterpret("float32", mantissa) - _f32(1)
            return _let(whole.astype("float32"), lambda n: _let(fraction, lambda f: sum_of(n, f)))

        def sum_of(n: Expr, f: Expr) -> Expr:
            square = f * f
            small = f * square * _polynomial(_LOG, f) - _f32(0.5) * square + n * _f32(_LN2_LOW)
            return n * _f32(_LN2_HIGH) + (f + small)

        def with_special(found: Expr) -> Expr:
            found = tirx.Select(x < _f32(math.inf), found, x)  # Infinity and NaN are unchanged.
            found = tirx.Select(x == _f32(0), _f32(-math.inf), found)
            return tirx.Select(x < _f32(0), _f32(math.nan), found)

        return _let(_let(tirx.reinterpret("int32", normal), of_bits), with_special)

    return _let(x, of)


def log2(x: Expr) -> Expr:
    """The logarithm of `x` to base 2."""
    return _log_through_float64(x, 1.0)


def log10(x: Expr) -> Expr:
    """The logarithm of `x` to base 10."""
    return _log_through_float64(x, math.log10(2))


def rsqrt(x: Expr) -> Expr:
    """1 / sqrt(x)."""
    return _f32(1) / tirx.sqrt(x)


def power(x: Expr, y: Expr) -> Expr:
    """`x` to the power of `y`; infinities, zeros and negative numbers are handled as in C."""
    if has_simple_power(y):
        return _let(x, _POWERS[float(y.value)])
    return _let(x, lambda x: _let(y, lambda y: _power(x, y)))


def has_simple_power(y: Expr) -> bool:
    """Whether `y` is a constant, and `x ** y` can be computed by a root or a few products."""
    return isinstance(y, tirx.FloatImm) and float(y.value) in _POWERS


def _near_or_far(x: Expr, limit: float, near: Expr, far: Expr) -> Expr:
    """`near` if the absolute value of `x` is below `limit`, else `far` with the sign of `x`."""

    def of(near: Expr, far: Expr) -> Expr:
        far = tirx.Select(x < _f32(0), -far, far)
        return tirx.Select(tirx.abs(x) < _f32(limit), near, far)

    return _let(near, lambda near: _let(far, lambda far: of(near, far)))


def _exp(x: Expr) -> Expr:
    """e to the power of `x`; pass a variable, since `x` occurs several times in the result."""
    low, high = -104.5, 88.72283  # The result is 0 below `low`, and infinite above `high`.
    bounded = tirx.Select(x > _f32(high), _f32(high), tirx.Select(x < _f32(low), _f32(low), x))

    def of(x: Expr) -> Expr:
        rounded = x * _f32(_LOG2_E) + _f32(_ROUNDING)
        bits = tirx.reinterpret("int32", rounded) - _i32(_ROUNDING_BITS)
        return _let(bits, lambda exponent: of_parts(x, exponent))

    def of_parts(x: Expr, exponent: Expr) -> Expr:
        # The exponent is read from the bits of `rounded`, because TVM would simplify `rounded -
        # _ROUNDING` to an expression that does not round.
        n = exponent.astype("float32")
        return _let(n, lambda n: of_rest(x - n * _f32(_LN2_HIGH), n, exponent))

    def of_rest(exact: Expr, n: Expr, exponent: Expr) -> Expr:
        # The difference `exact - low` is rounded, so the linear term uses `exact` and `low`
        # separately.
        low = n * _f32(_LN2_LOW)

        def of(exact: Expr, rest: Expr) -> Expr:
            # This long expression is not bound to a variable, because it is used only once (see
            # `_let`).
            grown = exact + (rest * rest * _polynomial(_EXP, rest) - low) + _f32(1)
            return _scaled(grown, exponent)

        return _let(exact, lambda exact: _let(exact - low, lambda rest: of(exact, rest)))

    # For large arguments the result is set to infinity, and not computed by an overflow. LLVM may
    # fuse a product and a later sum into one instruction, in which the product does not overflow.
    # The result of `infinity - infinity` would then not be NaN.
    return tirx.Select(x > _f32(high), _f32(math.inf), _let(bounded, of))


def _scaled(x: Expr, n: Expr) -> Expr:
    """`x` times 2 to the power of `n`, as two products, because a single factor may be out of
    range.
    """

    def of(half: Expr) -> Expr:
        return x * _two_to_the(half) * _two_to_the(n - half)

    return _let(tirx.shift_right(n, _i32(1)), of)


def _two_to_the(n: Expr) -> Expr:
    return tirx.reinterpret("float32", tirx.shift_left(n + _i32(127), _i32(23)))


def _exp2_64(x: Expr) -> Expr:
    """2 to the power of a float64, to the precision of float32 and within its range."""
    bounded = tirx.Select(x > _f64(200), _f64(200), tirx.Select(x < _f64(-200), _f64(-200), x))

    def of(x: Expr) -> Expr:
        bits = tirx.reinterpret("int64", x + _f64(_ROUNDING_64)) - _i64(_ROUNDING_64_BITS)
        return _let(bits, lambda n: of_parts(x, n))

    def of_parts(x: Expr, n: Expr) -> Expr:
        scale = tirx.reinterpret("float64", tirx.shift_left(n + _i64(1023), _i64(52)))
        rest = (x - _from_int64(n)) * _f64(math.log(2))
        grown = _let(rest, lambda r: r * r * _polynomial(_EXP_64, r, _f64) + r + _f64(1))
        return grown * scale

    return _let(bounded, of)


def _log2_64(x: Expr) -> Expr:
    """The logarithm to base 2 of a float64 that is not negative and was converted from float32."""

    def of_bits(bits: Expr) -> Expr:
        sqrt_half = int(np.float64(math.sqrt(0.5)).view(np.int64))
        exponent = tirx.shift_right(bits - _i64(sqrt_half), _i64(52))
        return _let(exponent, lambda e: of_parts(e, bits - tirx.shift_left(e, _i64(52))))

    def of_parts(exponent: Expr, mantissa: Expr) -> Expr:
        m = tirx.reinterpret("float64", mantissa)
        return _let(m, lambda m: _let((m - _f64(1)) / (m + _f64(1)), lambda s: of(exponent, s)))

    def of(exponent: Expr, s: Expr) -> Expr:
        logarithm = _let(
            s * s, lambda square: _f64(2) * s + s * square * _polynomial(_LOG_64, square, _f64)
        )
        return _from_int64(exponent) + logarithm * _f64(_LOG2_E)

    def with_special(found: Expr) -> Expr:
        found = tirx.Select(x < _f64(math.inf), found, x)
        return tirx.Select(x == _f64(0), _f64(-math.inf), found)

    return _let(_let(tirx.reinterpret("int64", x), of_bits), with_special)


def _log_through_float64(x: Expr, factor: float) -> Expr:
    def of(x: Expr) -> Expr:
        narrow = _as_float32(_let(_as_float64(x), _log2_64) * _f64(factor))
        return _let(narrow, lambda found: tirx.Select(x < _f32(0), _f32(math.nan), found))

    return _let(x, of)


def _power(x: Expr, y: Expr) -> Expr:
    return power_from_exponent(x, y, _let(power_exponent(x, y), _exp2_64))


def power_exponent(x: Expr, y: Expr) -> Expr:
    """The logarithm to base 2 of the absolute value of `x ** y`, in float64."""
    return _let(_as_float64(tirx.abs(x)), _log2_64) * _as_float64(y)


def exp2_of_float64(x: Expr) -> Expr:
    """2 to the power of a float64, to the precision of float32 and within its range."""
    return _let(x, _exp2_64)


def power_from_exponent(x: Expr, y: Expr, size_of_power: Expr) -> Expr:
    """`x` to the power of `y`.

    Parameters
    ----------
    size_of_power: 2 to the power of `power_exponent(x, y)`, in float64.
    """
    size = tirx.abs(x)
    one, infinity = _f32(1), _f32(math.inf)
    is_whole = tirx.floor(y) == y
    is_odd = tirx.all(tirx.abs(y) < _f32(2.0**24), y - _f32(2) * tirx.floor(y * _f32(0.5)) == one)
    is_negative = tirx.reinterpret("int32", x) < _i32(0)  # Minus zero counts as negative.

    def with_special(result: Expr) -> Expr:
        # 1 to the power of infinity is 1, but its logarithm, 0, times infinity is NaN.
        result = tirx.Select(tirx.all(size == one, tirx.abs(y) == infinity), one, result)
        odd = tirx.Select(tirx.all(is_negative, is_whole, is_odd), -result, result)
        no_number = tirx.all(x < _f32(0), size < infinity, tirx.Not(is_whole))
        odd = tirx.Select(no_number, _f32(math.nan), odd)
        return tirx.Select(tirx.any(x == one, y == _f32(0)), one, odd)

    return _let(_as_float32(size_of_power), with_special)


def _square_root(x: Expr) -> Expr:
    """`x ** 0.5`: the square root, except for minus zero and minus infinity."""
    # The bits are compared, and not the numbers, because TVM assumes that no number is less than
    # the lowest finite number.
    is_minus_infinity = tirx.reinterpret("int32", x) == _i32(_MINUS_INFINITY_BITS)
    root = tirx.Select(is_minus_infinity, _f32(math.inf), tirx.sqrt(x))
    return tirx.Select(x == _f32(0), _f32(0), root)


_POWERS: dict[float, Callable[[Expr], Expr]] = {
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    0.5: _square_root,
    -0.5: lambda x: _f32(1) / _square_root(x),
    -1.0: lambda x: _f32(1) / x,
}


def _let(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """`body` applied to a variable that is bound to `value`, so that `value` is computed once.

    TVM's passes simplify each bound value several times, which takes time. So a value that is used
    only once is not bound. The variables that a value needs are bound before the value, not inside
    of it.
    """
    if isinstance(value, (tirx.Var, tirx.FloatImm)):
        return body(value)
    if isinstance(value, tirx.Let):
        return tirx.Let(value.var, value.value, _let(value.body, body))
    var = tirx.Var("t", str(value.ty.dtype))
    return tirx.Let(var, value, body(var))


def _polynomial(
    coefficients: Sequence[float], x: Expr, number: Callable[[float], Expr] | None = None
) -> Expr:
    """A polynomial of `x` by Horner's rule.

    Parameters
    ----------
    coefficients: the coefficients, the lowest power's first.
    number: makes a constant of the type of `x`; float32 by default.
    """
    number = number or _f32
    result = number(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + number(coefficient)
    return result


def _from_int64(x: Expr) -> Expr:
    """A small integer as float64.

    The integer is converted to int32 first, because every processor has vector instructions to
        convert int32 to float64.
    """
    return x.astype("int32").astype("float64")


def _as_float64(x: Expr) -> Expr:
    return x.astype("float64")


def _as_float32(x: Expr) -> Expr:
    return x.astype("float32")


def _f32(value: float) -> Expr:
    return tirx.FloatImm("float32", value)


def _f64(value: float) -> Expr:
    return tirx.FloatImm("float64", value)


def _i32(value: int) -> Expr:
    return tirx.IntImm("int32", value)


def _i64(value: int) -> Expr:
    return tirx.IntImm("int64", value)
