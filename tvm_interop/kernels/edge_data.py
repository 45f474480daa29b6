"""Makes the numbers that kernels are checked on, among them numbers at which kernels often fail."""

from __future__ import annotations

import functools
from typing import Any, Literal, TypeAlias, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..plain_data import is_float

Kind: TypeAlias = Literal["special", "infinite", "denormal", "large", "ordinary", "small"]

KINDS: tuple[Kind, ...] = get_args(Kind)

_POOL = 65_537
"""Size of the pool of random numbers for tensors; a larger tensor repeats the pool.

The size is a prime, so that each row of a large tensor differs from the row before.
"""
_STEP = 64 * 101
"""A tensor with seed `n` takes numbers from the pool, beginning at index `_STEP * n` modulo the
pool's size."""
_SPECIAL_AMONG = 64
"""In a large tensor, one of this many numbers is special (NaN, infinity and the like)."""


def edge_data(
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    kind: Kind,
    seed: int,
    below: int | None = None,
    narrow: str = "",
) -> np.ndarray:
    """A tensor of numbers of one kind.

    For floats, the kinds of numbers are:

    - `ordinary`: normally distributed numbers;
    - `special`: ordinary numbers, with NaN, both infinities and both zeros among them;
    - `infinite`: the same as `special`, but without NaN;
    - `denormal`: only denormal numbers and zeros;
    - `large`: numbers whose cubes are still finite;
    - `small`: sixteenths of ordinary numbers.

    For integers, the kinds of numbers are:

    - `ordinary`, `small`: integers from -8 to 7, or from 0 to 7 if unsigned;
    - `special`, `infinite`: ordinary integers, with the least and the greatest integers among them;
    - `denormal`: zeros and ones;
    - `large`: any integers.

    Integers of 8 bits have any values, as in quantised models, in all kinds except `denormal`.
    Signed integers of 32 bits and more use only half of their bits, so that few products overflow.
    Booleans have both values in all kinds.

    Parameters
    ----------
    kind: the kind of numbers.
    seed: decides at which position in a fixed pool of numbers the tensor begins.
    below: if given, integers of all kinds are at least 0 and less than this bound.
    narrow: if given, floats of all kinds are rounded to this type.
    """
    size = int(np.prod(shape, dtype=np.int64))
    pool = np.roll(_pool(np.dtype(dtype), kind, below), -_STEP * seed)
    if narrow and is_float(pool.dtype):
        pool = pool.astype(np.dtype(narrow)).astype(pool.dtype)
    return np.resize(pool, size).reshape(shape)


@functools.lru_cache(64)
def _pool(dtype: np.dtype, kind: Kind, below: int | None) -> np.ndarray:
    rng = np.random.default_rng(KINDS.index(kind))
    return _floats(dtype, kind, rng) if is_float(dtype) else _integers(dtype, kind, rng, below)


def _floats(dtype: np.dtype, kind: Kind, rng: np.random.Generator) -> np.ndarray:
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    ordinary = rng.standard_normal(_POOL)
    if kind == "denormal":
        least = float(info.smallest_subnormal)
        steps = np.rint(ordinary * 0.2 * float(info.tiny) / least)
        ordinary = steps * least
    if kind == "large":
        # The cubes of large numbers, and sums of thousands of such cubes, are finite.
        ordinary = ordinary * float(info.max) ** 0.3
    if kind == "small":
        ordinary = ordinary / 16
    numbers: np.ndarray = ordinary.astype(dtype)
    if kind in ("special", "infinite"):
        specials = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0]).astype(dtype)
        specials = specials[1:] if kind == "infinite" else specials
        _put_in_turn(numbers, specials, rng)
    return numbers


def _integers(
    dtype: np.dtype, kind: Kind, rng: np.random.Generator, below: int | None
) -> np.ndarray:
    if dtype.kind == "b":
        return rng.integers(0, 2, _POOL).astype(dtype)
    info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    least, greatest = int(info.min), int(info.max)
    if least < 0 and info.bits >= 32:
        # TVM tells LLVM that signed types of 32 bits and more never overflow. The result of an
        # overflow is therefore undefined.
        least, greatest = -(1 << info.bits // 2 - 1), 1 << info.bits // 2 - 1
    if below is not None:
        return rng.integers(0, min(below, greatest + 1), _POOL).astype(dtype)
    if kind == "denormal":
        return rng.integers(0, 2, _POOL).astype(dtype)
    if kind == "large" or info.bits <= 8:
        return rng.integers(least, greatest, _POOL, endpoint=True, dtype=_wide(dtype)).astype(dtype)
    numbers = rng.integers(max(least, -8), 8, _POOL).astype(dtype)
    if kind in ("special", "infinite"):
        extremes = [least, greatest, least + 1, greatest - 1, 0]
        _put_in_turn(numbers, np.array(extremes, dtype), rng)
    return numbers


def _wide(dtype: np.dtype) -> type[np.uint64] | type[np.int64]:
    return np.uint64 if dtype.name.startswith("u") else np.int64


def _put_in_turn(numbers: np.ndarray, specials: np.ndarray, rng: np.random.Generator) -> None:
    """Replace every 4th of the first 64 numbers, and every 64th of the rest, by a special number.

    The first two numbers are not replaced, so that small tensors have ordinary numbers, too.
    """
    places = np.concatenate(
        [
            np.arange(2, _SPECIAL_AMONG, 4),
            np.arange(_SPECIAL_AMONG, len(numbers) - 1, _SPECIAL_AMONG),
        ]
    )
    places = places + rng.integers(0, 2, len(places))
    numbers[places] = np.resize(specials, len(places))
