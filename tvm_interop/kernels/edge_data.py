"""Numbers to try a kernel on: ordinary ones, and those at which kernels go wrong."""

from __future__ import annotations

import functools
from typing import Any, Literal, TypeAlias, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt

Kind: TypeAlias = Literal["special", "infinite", "denormal", "large", "ordinary", "small"]

KINDS: tuple[Kind, ...] = get_args(Kind)

_POOL = 65_537
"""Numbers drawn; a larger tensor repeats them. A prime, so that no row is like the one before."""
_STEP = 64 * 101
"""How far the numbers of one seed begin behind those of the one before."""
_SPECIAL_AMONG = 64
"""Of so many numbers one is special, where there are many; of few, each in its turn."""


def edge_data(
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    kind: Kind,
    seed: int,
    below: int | None = None,
) -> np.ndarray:
    """Numbers of one kind.

    Parameters
    ----------
    kind: of floats, `special` has NaN, infinities and both zeros between ordinary numbers,
        `infinite` the same without NaN, `denormal` has denormal numbers and zeros alone, `large`
        has numbers whose cubes are still finite, `small` has sixteenths of ordinary ones. Of
        integers, `special` and `infinite` have the least and the greatest between small ones,
        `large` has any between these, `denormal` has zeros and ones, `ordinary` and `small` have
        small ones; those of 8 bits are any at all there, too, as in quantised models.
    seed: tensors of different seeds begin at different numbers of the same ones.
    below: of integers, all are from 0 up to this one, which is left out, whatever the kind.
    """
    size = int(np.prod(shape, dtype=np.int64))
    pool = np.roll(_pool(np.dtype(dtype), kind, below), -_STEP * seed)
    return np.resize(pool, size).reshape(shape)


@functools.lru_cache(64)
def _pool(dtype: np.dtype, kind: Kind, below: int | None) -> np.ndarray:
    rng = np.random.default_rng(KINDS.index(kind))
    return _floats(dtype, kind, rng) if is_float(dtype) else _integers(dtype, kind, rng, below)


def is_float(dtype: np.dtype) -> bool:
    """Whether NumPy's `dtype` is one of floating-point numbers, the narrow ones among them."""
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def _floats(dtype: np.dtype, kind: Kind, rng: np.random.Generator) -> np.ndarray:
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    ordinary = rng.standard_normal(_POOL)
    if kind == "denormal":
        least = float(info.smallest_subnormal)
        steps = np.rint(ordinary * 0.2 * float(info.tiny) / least)
        ordinary = steps * least
    if kind == "large":
        # Their cubes, and sums of thousands of these, are finite.
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
        # TVM tells LLVM that these never overflow: of those that would, nothing is to be expected.
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
    """Put specials among the numbers: one in four of the first sixty-four, one in 64 of the rest.

    The very first ones are left, so that small tensors have ordinary numbers, too.
    """
    places = np.concatenate(
        [
            np.arange(2, _SPECIAL_AMONG, 4),
            np.arange(_SPECIAL_AMONG, len(numbers) - 1, _SPECIAL_AMONG),
        ]
    )
    places = places + rng.integers(0, 2, len(places))
    numbers[places] = np.resize(specials, len(places))
