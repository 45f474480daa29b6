"""Cases of Fourier transforms and related operators."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..case import FLOATS, Case, numbers

_LENGTH = np.array(8)


def spectra() -> Iterator[Case]:
    """All cases of this module."""
    yield from _transforms()
    yield from _long()
    yield from _frames()
    yield from _mel_weights()


def _transforms() -> Iterator[Case]:
    lengths = [None, *(np.array(n) for n in (1, 4, 5, 9))]
    for (parts, named), length in itertools.product(_directions(), lengths):
        x = numbers("float32", 2, 6, 3, parts)
        for axis in (0, 1, 2, -2, -4):
            fixed = (1, 2) if length is not None else (2,)
            yield Case("DFT", [x, length, np.array(axis)], named, fixed, sums=True)
        for opset in (17, 19):
            fixed = () if length is None else (1,)
            for more in ({}, {"axis": 2}, {"axis": -2}):
                yield Case("DFT", [x, length], named | more, fixed, opset, sums=True)
    for dtype, shape in itertools.product(FLOATS, [(6, 1), (6, 2), (1, 1), (2, 1, 2), (0, 4, 1)]):
        yield Case("DFT", [numbers(dtype, *shape)], sums=True)
        yield Case("DFT", [numbers(dtype, *shape)], {"inverse": 1}, sums=True)
    for kind in ("int32", "int64"):
        yield Case("DFT", [numbers("float32", 2, 6, 1), np.array(4, kind)], fixed=(1,), sums=True)


def _directions() -> list[tuple[int, dict[str, Any]]]:
    """The number of parts of each number (1 for real, 2 for complex), and the attributes."""
    both = [(parts, {"inverse": inverse}) for parts in (1, 2) for inverse in (0, 1)]
    return [*both, (1, {"onesided": 1}), (2, {"onesided": 1, "inverse": 1})]


def _long() -> Iterator[Case]:
    """Lengths: a power of 2, products of two and of three factors, a prime, twice a prime."""
    for length, (parts, named) in itertools.product((1024, 1536, 2058, 1031, 2062), _directions()):
        taken = length // 2 + 1 if named.get("onesided") and named.get("inverse") else length
        for count in (taken, taken - 37):
            given = [numbers("float32", 2, count, parts), np.array(length)]
            # The reference computes in double precision, and onnxruntime does not.
            yield Case("DFT", given, named, (1,), sums=True)


def _frames() -> Iterator[Case]:
    step = np.array(3)
    for dtype, parts, onesided in itertools.product(FLOATS, (1, 2), (0, 1)):
        x, window = numbers(dtype, 2, 30, parts), np.hanning(8).astype(dtype)
        named = {"onesided": onesided}
        for given in ([x, step, window], [x, step, window, _LENGTH], [x, step, None, _LENGTH]):
            fixed = (1, 3) if len(given) == 4 else (1,)
            yield Case("STFT", given, named, fixed, opset=17, sums=True)
    for signal, hop, length in (((1, 8, 1), 1, 8), ((1, 9, 1), 40, 8), ((2, 9, 1), 2, 1)):
        given = [numbers("float32", *signal), np.array(hop), None, np.array(length)]
        yield Case("STFT", given, {}, (1, 3), sums=True)
    for signal in ((0, 30, 1), (2, 30)):
        yield Case(
            "STFT", [numbers("float32", *signal), step, None, _LENGTH], {}, (1, 3), sums=True
        )
    given = [numbers("float32", 1, 5000, 1), np.array(700), numbers("float32", 1536)]
    yield Case("STFT", given, {}, (1,), sums=True)


def _mel_weights() -> Iterator[Case]:
    usual = [(8, 16, 8192, 0, 4096), (80, 400, 16000, 0, 8000), (128, 1024, 22050, 20, 11025)]
    usual += [(40, 16, 8000, 0, 3000), (4, 16, 8000, 3000, 100), (1, 1, 8000, 0, 100)]
    usual += [(0, 16, 8000, 0, 100), (4, 15, 8000, 0, 3000)]
    for whole, edges in ((given[:3], given[3:]) for given in usual):
        given = [np.array(n) for n in whole] + [np.array(f, "float32") for f in edges]
        for kind in (1, 11, 6, 7, 2, 3):
            yield Case("MelWeightMatrix", given, {"output_datatype": kind}, (0, 1, 2, 3, 4))
