"""Cases of products: matrices, convolutions and Einstein sums."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..case import FLOATS, Case, numbers, versions

_IMAGES = {1: (2, 4, 9), 2: (1, 4, 7, 6), 3: (1, 4, 4, 5, 4)}


def products() -> Iterator[Case]:
    """All cases of this module."""
    yield from _matrices()
    yield from _sums_of_einstein()
    yield from _convolutions()
    yield from _transposed()
    yield from _deformed()
    yield from _determinants()


def _matrices() -> Iterator[Case]:
    shapes = [
        *[((3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 2))],
        *[((2, 3, 4), (2, 4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (3, 4, 2)), ((1, 1), (1, 1))],
        *[((2, 3, 4), (4,)), ((4,), (2, 4, 3))],
    ]
    for dtype, (first, second) in itertools.product((*FLOATS, "int32", "int64", "uint32"), shapes):
        given = [numbers(dtype, *first), numbers(dtype, *second, seed=1)]
        for opset in versions("MatMul", 9) if dtype == "float32" else [24]:
            yield Case("MatMul", given, opset=opset, sums=True)
    for dtype, a, b in itertools.product((*FLOATS, "int32"), (0, 1), (0, 1)):
        x = numbers(dtype, *((4, 3) if a else (3, 4)))
        y = numbers(dtype, *((5, 4) if b else (4, 5)), seed=1)
        for shape in (None, (), (1,), (5,), (1, 5), (3, 1), (3, 5)):
            given = [x, y] + ([] if shape is None else [numbers(dtype, *shape, seed=2)])
            named: dict[str, Any] = {"transA": a, "transB": b}
            scaled = named if dtype == "int32" else named | {"alpha": 0.5, "beta": -2.0}
            for opset in versions("Gemm", 11) if dtype == "float32" else [24]:
                yield Case("Gemm", given, scaled, opset=opset, sums=True)
        if dtype == "float32":
            given = [x, y, numbers(dtype, 5, seed=2)]
            yield Case("Gemm", given, {"transA": a, "transB": b, "beta": 0.0}, sums=True)
            yield Case("Gemm", given, {"transA": a, "transB": b}, opset=7, sums=True)


def _sums_of_einstein() -> Iterator[Case]:
    equations: dict[str, list[tuple[int, ...]]] = {
        "ij,jk->ik": [(2, 3), (3, 4)],
        "ij,jk": [(2, 3), (3, 4)],
        "ij->ji": [(2, 3)],
        "ij->": [(2, 3)],
        "ij->i": [(2, 3)],
        "ii->i": [(3, 3)],
        "ii": [(3, 3)],
        "bij,bjk->bik": [(2, 2, 3), (2, 3, 4)],
        "...ij,...jk->...ik": [(2, 1, 2, 3), (3, 3, 4)],
        "...ii->...i": [(2, 3, 3)],
        "i,j->ij": [(2,), (3,)],
        "i,i->": [(3,), (3,)],
        "bhid,bhjd->bhij": [(1, 2, 3, 4), (1, 2, 5, 4)],
        "ij,jk,kl->il": [(2, 3), (3, 4), (4, 2)],
        " a b , b c -> c a ": [(2, 3), (3, 4)],
        "ij,j->ij": [(2, 3), (3,)],
        "bca": [(2, 3, 4)],
        "...": [(2, 3)],
        "i...->...": [(2, 3, 4)],
    }
    for dtype, (equation, shapes) in itertools.product(
        ("float32", "float64", "int32"), equations.items()
    ):
        given = [numbers(dtype, *shape, seed=seed) for seed, shape in enumerate(shapes)]
        yield Case("Einsum", given, {"equation": equation}, sums=True)


def _convolutions() -> Iterator[Case]:
    for rank, dtype in itertools.product(_IMAGES, FLOATS):
        x = numbers(dtype, *_IMAGES[rank])
        for group, bias in itertools.product((1, 2, 4), (False, True)):
            kernel = [3, 2, 2][:rank]
            w = numbers(dtype, 8, 4 // group, *kernel, seed=1)
            given = [x, w, *([numbers(dtype, 8, seed=2)] if bias else [])]
            for more in (
                {},
                {"strides": [2, 1, 2][:rank]},
                {"pads": [1, 0, 2][:rank] + [0, 1, 0][:rank]},
                {"dilations": [2, 1, 2][:rank], "pads": [1] * 2 * rank},
                {"auto_pad": "SAME_UPPER", "strides": [2, 2, 1][:rank]},
                {"auto_pad": "SAME_LOWER", "kernel_shape": kernel},
                {"auto_pad": "VALID"},
            ):
                if dtype == "float32" or (bias and group < 4):
                    yield Case("Conv", given, {"group": group, **more}, sums=True)
        yield Case("Conv", given, {"group": 4}, opset=7, sums=True)


def _transposed() -> Iterator[Case]:
    for rank, dtype in itertools.product(_IMAGES, FLOATS):
        x = numbers(dtype, *_IMAGES[rank])
        sizes = _IMAGES[rank][2:]
        for group, bias in itertools.product((1, 2, 4), (False, True)):
            kernel = [3, 2, 3][:rank]
            w = numbers(dtype, 4, 8 // group, *kernel, seed=1)
            given = [x, w, *([numbers(dtype, 8, seed=2)] if bias else [])]
            strides = [2, 3, 2][:rank]
            grown = [n * s for n, s in zip(sizes, strides, strict=True)]
            for more in (
                {},
                {"strides": strides},
                {"strides": strides, "output_padding": [1, 2, 0][:rank]},
                {"strides": strides, "pads": [1, 0, 1][:rank] + [0, 1, 1][:rank]},
                {"dilations": [2, 1, 2][:rank]},
                {"dilations": [2, 2, 1][:rank], "strides": strides, "pads": [1] * 2 * rank},
                {"strides": strides, "auto_pad": "SAME_UPPER"},
                {"strides": strides, "auto_pad": "SAME_LOWER"},
                {"strides": strides, "auto_pad": "VALID"},
                {"strides": strides, "output_shape": grown},
                {"strides": strides, "output_shape": [n + 1 for n in grown]},
            ):
                if dtype == "float32" or (bias and group == 2):
                    yield Case("ConvTranspose", given, {"group": group, **more}, sums=True)


def _deformed() -> Iterator[Case]:
    settings: list[tuple[dict[str, Any], tuple[int, int]]] = [
        ({}, (3, 2)),
        ({"strides": [2, 1], "kernel_shape": [3, 2]}, (2, 2)),
        ({"pads": [1, 0, 2, 1]}, (6, 3)),
        ({"dilations": [2, 3], "pads": [1, 1, 1, 1], "strides": [1, 2]}, (3, 1)),
    ]
    each = itertools.product((1, 2), (1, 2, 4), (False, True), (False, True))
    for number, (group, offsets, bias, mask) in enumerate(each):
        more, steps = settings[(number + number // 4) % 4]
        for dtype, opset in (("float32", 19), ("float32", 22), ("float16", 22), ("float64", 24)):
            x, w = numbers(dtype, 2, 4, 5, 3), numbers(dtype, 6, 4 // group, 3, 2, seed=1)
            given = [x, w, 2 * numbers(dtype, 2, offsets * 12, *steps, seed=2)]
            given += [numbers(dtype, 6, seed=3) if bias else None]
            given += [numbers(dtype, 2, offsets * 6, *steps, seed=4)] if mask else []
            named = {"group": group, "offset_group": offsets, **more}
            if opset == 22 or number % 5 == 0:
                yield Case("DeformConv", given, named, opset=opset, sums=True)
    for size in ((1, 1), (1, 5)):
        given = [numbers("float32", 1, 2, *size), numbers("float32", 3, 2, 1, 1)]
        given += [numbers("float32", 1, 2, *size, seed=1)]
        yield Case("DeformConv", given, sums=True)
    given = [numbers("float32", *shape) for shape in ((0, 2, 3, 3), (4, 2, 2, 2), (0, 8, 2, 2))]
    yield Case("DeformConv", given)
    far = np.array([-1e30, 1e30, -2.5, 7.5, -1, 2, 1e9, -1e9], "float32").reshape(1, 8, 1, 1)
    yield Case("DeformConv", [numbers("float32", 1, 1, 2, 2), numbers("float32", 1, 1, 2, 2), far])


def _determinants() -> Iterator[Case]:
    shapes = [(1, 1), (2, 2), (3, 3), (2, 3, 3), (2, 2, 4, 4), (9, 9), (2, 1, 1), (5, 17, 17)]
    shapes += [(0, 3, 3), (2, 0, 0), (0, 0)]
    for dtype, shape in itertools.product(FLOATS, shapes):
        for opset in versions("Det", 11) if dtype == "float32" else [24]:
            yield Case("Det", [numbers(dtype, *shape)], opset=opset, sums=True)
    singular = [[[0, 1], [0, 2]], [[1, 2], [2, 4]], [[0, 1], [1, 0]], [[np.nan, 1], [1, 2]]]
    for matrix in (*singular, [[0, 0], [np.nan, 2]], [[np.inf, 0], [0, 1]], np.eye(3)[::-1]):
        yield Case("Det", [np.array(matrix, "float32")])
