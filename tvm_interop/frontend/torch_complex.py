"""Decomposes functions of complex numbers into functions of their parts, which ONNX has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_ATEN = torch.ops.aten


def functions() -> dict[Any, Callable[..., Any]]:
    """Return decompositions that change operators only where they work on complex numbers."""
    of_one: dict[Any, Callable[..., Any]] = {
        _ATEN.eq.Tensor: lambda x, y: _is_equal(x, y),
        _ATEN.exp.default: lambda x: _turned(x.real.exp(), x.imag),
        _ATEN.gather.default: _indexed(_ATEN.gather.default),
        _ATEN.index_put.default: _put,
        _ATEN.index_select.default: _indexed(_ATEN.index_select.default),
        _ATEN.linalg_vector_norm.default: _norm,
        _ATEN.linear.default: _linear,
        _ATEN.log.default: lambda x: torch.complex(x.abs().log(), _angle(x)),
        _ATEN.masked_fill.Scalar: _filled,
        _ATEN.ne.Tensor: lambda x, y: ~_is_equal(x, y),
        _ATEN.sqrt.default: lambda x: _turned(x.abs().sqrt(), _angle(x) / 2),
    }
    return {
        **{kind: _of_complex(function) for kind, function in of_one.items()},
        _ATEN.mul.Scalar: _scaled,
        _ATEN.mul.Tensor: _scaled,
        _ATEN.where.self: _chosen,
    }


def makers() -> dict[Any, Callable[..., Any]]:
    """Return decompositions that change operators only where they make complex numbers."""
    return {
        _ATEN.full.default: _full,
        _ATEN.full_like.default: _full_like,
        _ATEN.new_full.default: _new_full,
        _ATEN.new_ones.default: lambda x, size, **named: _new_full(x, size, 1.0, **named),
        _ATEN.new_zeros.default: lambda x, size, **named: _new_full(x, size, 0.0, **named),
        _ATEN.ones.default: lambda size, dtype=None, **_: _full(size, 1.0, dtype),
        _ATEN.ones_like.default: lambda x, **named: _full_like(x, 1.0, **named),
        _ATEN.scalar_tensor.default: lambda value, dtype=None, **_: _full([], value, dtype),
        _ATEN.zeros.default: lambda size, dtype=None, **_: _full(size, 0.0, dtype),
        _ATEN.zeros_like.default: lambda x, **named: _full_like(x, 0.0, **named),
    }


def product(of: Callable[..., Any]) -> Callable[..., Any]:
    """Return the product `of` of real numbers for complex numbers."""

    def multiply(x: Any, y: Any) -> Any:
        if not x.is_complex():
            return NotImplemented
        (a, b), (c, d) = (x.real, x.imag), (y.real, y.imag)
        return torch.complex(of(a, c) - of(b, d), of(a, d) + of(b, c))

    return multiply


def _full(size: Any, value: Any, dtype: Any = None, **_: Any) -> Any:
    dtype = dtype or (torch.complex64 if isinstance(value, complex) else torch.float32)
    if not dtype.is_complex:
        return NotImplemented
    part = torch.float64 if dtype == torch.complex128 else torch.float32
    values = complex(value).real, complex(value).imag
    return torch.complex(*(torch.full(size, each, dtype=part) for each in values))


def _new_full(x: Any, size: Any, value: Any, dtype: Any = None, **_: Any) -> Any:
    dtype = dtype or x.dtype
    if x.is_complex() and not dtype.is_complex:
        return torch.full(size, value, dtype=dtype)
    return _full(size, value, dtype)


def _full_like(x: Any, value: Any, **named: Any) -> Any:
    return _new_full(x, x.shape, value, **named)


def _of_complex(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(x: Any, *given: Any, **named: Any) -> Any:
        return function(x, *given, **named) if x.is_complex() else NotImplemented

    return compute


def _turned(size: Any, angle: Any) -> Any:
    """Return the complex numbers with these absolute values and angles."""
    return torch.complex(size * angle.cos(), size * angle.sin())


def _angle(x: Any) -> Any:
    return torch.atan2(x.imag, x.real)


def _is_equal(x: Any, y: Any) -> Any:
    (a, b), (c, d) = (_parts(each) for each in (x, y))
    return (a == c) & (b == d)


def _norm(x: Any, *given: Any, **named: Any) -> Any:
    return _ATEN.linalg_vector_norm.default(x.abs(), *given, **named)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    result = product(lambda a, b: a @ b.mT)(x, weight)
    return result if bias is None else result + bias


def power(x: Any, exponent: Any) -> Any:
    """Return a power of complex numbers whose exponent is a number without an imaginary part."""
    if isinstance(exponent, complex):
        return NotImplemented
    if exponent == 2:
        return torch.complex(x.real * x.real - x.imag * x.imag, 2 * x.real * x.imag)
    return _turned(x.abs() ** exponent, _angle(x) * exponent)


def _filled(x: Any, mask: Any, value: Any) -> Any:
    parts = complex(value)
    return torch.complex(x.real.masked_fill(mask, parts.real), x.imag.masked_fill(mask, parts.imag))


def _indexed(of: Callable[..., Any]) -> Callable[..., Any]:
    def compute(x: Any, dim: int, index: Any, **_: Any) -> Any:
        return torch.complex(of(x.real, dim, index), of(x.imag, dim, index))

    return compute


def _put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    parts = zip(_parts(x), _parts(values), strict=True)
    return torch.complex(*(a.index_put(indices, b, accumulate) for a, b in parts))


def _scaled(x: Any, factor: Any) -> Any:
    if not isinstance(factor, complex) or x.is_complex():
        return NotImplemented
    return torch.complex(x * factor.real, x * factor.imag)


def _chosen(condition: Any, x: Any, y: Any) -> Any:
    if not x.is_complex() and not y.is_complex():
        return NotImplemented
    (a, b), (c, d) = (_parts(each) for each in (x, y))
    return torch.complex(torch.where(condition, a, c), torch.where(condition, b, d))


def _parts(x: Any) -> tuple[Any, Any]:
    return (x.real, x.imag) if x.is_complex() else (x, torch.zeros_like(x))
