"""Converts to ONNX PyTorch's logarithms of sums of exponentials, and complements of `erf`.

The exporter's own formulas compute the exponentials themselves. The exponentials become zero or
infinite for numbers of about 100, although the logarithm of their sum is an ordinary number. In the
same way, `1 - erf(x)` becomes zero for numbers of about 4.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from onnxscript import opset18 as op

from .torch_shapes import fixed_sizes, ints

_FAR = 1.25
"""From here on, the continued fraction is used. Its error is below 2e-6 there."""

_TERMS = 20
"""The number of terms of the continued fraction."""


def log_sigmoid(x: Any) -> Any:
    """Convert `log_sigmoid`: the logarithm of the sigmoid."""
    return op.Neg(op.Softplus(op.Neg(x)))


def log_of_sum(x: Any, y: Any) -> Any:
    """Convert `logaddexp`: log(exp(x) + exp(y))."""
    # Equal numbers have the difference 0, also if both are infinite.
    zero = op.CastLike(op.Constant(value_float=0.0), x)
    difference = op.Where(op.Equal(x, y), zero, op.Sub(x, y))
    # Softplus is log(1 + exp(x)), and log(1 + exp(-d)) is at most log(2) for a distance d.
    return op.Add(op.Max(x, y), op.Softplus(op.Neg(op.Abs(difference))))


def log2_of_sum(x: Any, y: Any) -> Any:
    """Convert `logaddexp2`: log2(2**x + 2**y)."""
    scale = op.CastLike(op.Constant(value_float=math.log(2.0)), x)
    return op.Div(log_of_sum(op.Mul(x, scale), op.Mul(y, scale)), scale)


def log_of_cumulative_sum(x: Any, dim: int) -> Any:
    """Convert `logcumsumexp`: the logarithms of the cumulative sums of exponentials.

    Each step adds sums that lie further left. This doubles the number of terms in each sum.
    """
    rank = len(x.shape)
    size = fixed_sizes(x.shape, [dim])[0] if rank else 1
    pads = [0] * (2 * rank)
    nothing = op.CastLike(op.Constant(value_float=-math.inf), x)
    for step in itertools.takewhile(lambda n: n < size, (1 << i for i in itertools.count())):
        pads[dim % rank] = step
        earlier = op.Slice(op.Pad(x, ints(*pads), nothing), ints(0), ints(size), ints(dim))
        x = log_of_sum(x, earlier)
    return op.Identity(x)


def complement(x: Any) -> Any:
    """Convert `erfc`: 1 - erf(x). Far from zero this difference would round to 0."""
    of_far = op.Mul(op.Exp(op.Neg(op.Mul(x, x))), _far_from_zero(x))
    return op.Where(_is_near(x), _difference(x), of_far)


def scaled_complement(x: Any) -> Any:
    """Convert `erfcx`: exp(x**2) * (1 - erf(x))."""
    # Far from zero the exponential is infinite, and `Where` does not choose the product.
    of_near = op.Mul(op.Exp(op.Mul(x, x)), _difference(x))
    return op.Where(_is_near(x), of_near, _far_from_zero(x))


def _is_near(x: Any) -> Any:
    return op.Less(x, op.CastLike(op.Constant(value_float=_FAR), x))


def _difference(x: Any) -> Any:
    return op.Sub(op.CastLike(op.Constant(value_float=1.0), x), op.Erf(x))


def _far_from_zero(x: Any) -> Any:
    """Return `erfcx` for numbers of at least `_FAR`, by a continued fraction (section 7.9 of the
    NIST Digital Library of Mathematical Functions).
    """

    def number(value: float) -> Any:
        return op.CastLike(op.Constant(value_float=value), x)

    far = op.Max(x, number(_FAR))
    fraction = far
    for k in range(_TERMS, 0, -1):
        fraction = op.Add(far, op.Div(number(k / 2), fraction))
    return op.Div(number(1 / math.sqrt(math.pi)), fraction)


def log_of_odds(x: Any, eps: float | None = None) -> Any:
    """Convert `logit`: log(x / (1 - x)), for a number that is limited to `eps` and `1 - eps`."""
    if eps is not None:
        low, high = (op.CastLike(op.Constant(value_float=value), x) for value in (eps, 1 - eps))
        x = op.Where(op.Less(x, low), low, op.Where(op.Greater(x, high), high, x))
    return op.Log(op.Div(x, op.Sub(op.CastLike(op.Constant(value_float=1.0), x), x)))
