"""Cases of quantised numbers: rounding, saturation, axes, blocks and integer products."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..case import Case, numbers, versions

_SMALL = ("int8", "uint8")


def quantised() -> Iterator[Case]:
    """All cases of this module."""
    yield from _rounded()
    yield from _widened()
    yield from _by_channel()
    yield from _products()
    yield from _convolutions()


def _rounded() -> Iterator[Case]:
    halves = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49, 300, -300, 1e9, -1e9, np.inf, -np.inf, 0]
    x = np.array(halves, "float32")
    for dtype, scale in itertools.product((*_SMALL, "int16", "uint16"), (1.0, 0.5, 0.1)):
        for zero in (None, 0, 7):
            given = [x, np.array(scale, "float32")]
            given += [] if zero is None else [np.array(zero, dtype)]
            opsets = versions("QuantizeLinear", 10) if dtype in _SMALL else [21, 24]
            for opset in opsets:
                if zero is not None or dtype == "uint8":
                    yield Case("QuantizeLinear", given, opset=opset)
    for values in (x[:5], np.array([[1, 2], [3, 4]]), np.array([-5.0, -1]), np.zeros(3)):
        given = [values.astype("float32")]
        yield Case("DynamicQuantizeLinear", given, opset=11, outputs=3)


def _widened() -> Iterator[Case]:
    for dtype in (*_SMALL, "int16", "uint16", "int32"):
        x = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1, 5], dtype)
        for zero in (None, 3):
            given = [x, np.array(0.1, "float32")]
            given += [] if zero is None else [np.array(0 if dtype == "int32" else zero, dtype)]
            opsets = versions("DequantizeLinear", 10) if dtype in _SMALL else [21, 24]
            for opset in opsets if dtype != "int32" else [10, 13, 24]:
                yield Case("DequantizeLinear", given, opset=opset)


def _by_channel() -> Iterator[Case]:
    x = numbers("float32", 2, 3, 4) * np.float32(20)
    for axis, dtype in itertools.product((0, 1, 2, -1, -2), _SMALL):
        size = x.shape[axis]
        scale = abs(numbers("float32", size)) + np.float32(0.1)
        zero = abs(numbers("int32", size, seed=2)).astype(dtype)
        for opset in (13, 19, 21, 24):
            yield Case("QuantizeLinear", [x, scale, zero], {"axis": axis}, opset=opset)
            small = np.clip(x, 0, 100).astype(dtype)
            yield Case("DequantizeLinear", [small, scale, zero], {"axis": axis}, opset=opset)
    for axis, block in ((1, 3), (2, 2), (-1, 2)):
        shape = list(x.shape)
        shape[axis] //= block
        scale = abs(numbers("float32", *shape)) + np.float32(0.1)
        zero = np.ones(shape, "uint8")
        named = {"axis": axis, "block_size": block}
        yield Case("QuantizeLinear", [x, scale, zero], named, opset=21)
        yield Case("DequantizeLinear", [np.clip(x, 0, 99).astype("uint8"), scale, zero], named)


def _products() -> Iterator[Case]:
    for a, b in itertools.product(_SMALL, repeat=2):
        x, y = abs(numbers(a, 3, 4)) * np.array(9, a), numbers(b, 4, 5, seed=1)
        yield Case("MatMulInteger", [x, y], opset=10)
        yield Case("MatMulInteger", [x, y, np.array(3, a), np.array(2, b)], opset=10)
        rows, columns = np.array([1, 2, 3], a), np.array([5, 4, 3, 2, 1], b)
        yield Case("MatMulInteger", [x, y, rows.reshape(3, 1), columns], opset=10)
        given: list[Any] = [x, np.array(0.02, "float32"), np.array(3, a)]
        given += [y, np.array(0.05, "float32"), np.array(1, b)]
        given += [np.array(0.0937, "float32"), np.array(4, a)]
        for opset in (10, 21):
            yield Case("QLinearMatMul", given, fixed=(1, 2, 4, 5, 6, 7), opset=opset)


def _convolutions() -> Iterator[Case]:
    for a, b, group in itertools.product(_SMALL, _SMALL, (1, 2)):
        x = abs(numbers(a, 1, 4, 6, 5)) * np.array(5, a)
        w = numbers(b, 6, 4 // group, 3, 2, seed=1)
        for more in ({}, {"pads": [1, 0, 1, 1], "strides": [2, 1]}, {"dilations": [2, 1]}):
            named = {"group": group, **more}
            yield Case("ConvInteger", [x, w], named, opset=10)
            yield Case("ConvInteger", [x, w, np.array(3, a), np.array(0, b)], named, opset=10)
            given: list[Any] = [x, np.array(0.02, "float32"), np.array(3, a), w]
            given += [np.array(0.05, "float32"), np.array(0, b)]
            given += [np.array(0.0937, "float32"), np.array(4, a)]
            fixed = (1, 2, 4, 5, 6, 7)
            yield Case("QLinearConv", given, named, fixed, opset=10)
            biased = [*given, numbers("int32", 6, seed=2) * np.int32(50)]
            yield Case("QLinearConv", biased, named, fixed, opset=10)
