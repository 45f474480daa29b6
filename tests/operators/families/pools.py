"""Cases of poolings: windows, strides, paddings, dilations, roundings and ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..case import FLOATS, Case, numbers, versions

_OPS = ("MaxPool", "AveragePool", "LpPool")
_SHAPES = {1: (2, 3, 11), 2: (1, 2, 7, 9), 3: (1, 2, 5, 6, 4)}


def pools() -> Iterator[Case]:
    """All cases of this module."""
    yield from _windows()
    yield from _types()
    yield from _whole()
    yield from _places()
    yield from _regions()


def _windows() -> Iterator[Case]:
    for op, rank in itertools.product(_OPS, _SHAPES):
        x = numbers("float32", *_SHAPES[rank])
        for opset in versions(op):
            for named in _settings(op, rank, opset):
                yield Case(op, [x], named, opset=opset, sums=op != "MaxPool")


def _settings(op: str, rank: int, opset: int) -> Iterator[Mapping[str, Any]]:
    window = {"kernel_shape": [3, 2, 2][:rank]}
    strides = {"strides": [2, 3, 1][:rank]}
    pads = {"pads": [1, 0, 1][:rank] + [0, 1, 1][:rank]}
    yield window
    yield window | strides
    yield window | pads
    yield window | strides | pads
    if opset < 10 and op != "LpPool":
        for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
            yield window | {"auto_pad": auto}
        return
    ceiled = {"ceil_mode": 1} if op != "LpPool" or opset >= 18 else {}
    counted = {"count_include_pad": 1} if op == "AveragePool" else {}
    has_dilations = {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op] <= opset
    dilated = {"dilations": [2, 1, 2][:rank]} if has_dilations else {}
    if ceiled:
        yield window | strides | ceiled
        yield window | strides | pads | ceiled
        yield {"kernel_shape": [2] * rank, "strides": [3] * rank} | ceiled
    if counted:
        yield window | strides | pads | counted
        yield window | strides | pads | counted | ceiled
    if dilated:
        yield window | dilated
        yield window | strides | pads | dilated | ceiled
        if counted:
            yield window | strides | pads | dilated | ceiled | counted
    for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        yield window | strides | {"auto_pad": auto}
        if counted:
            yield window | strides | counted | {"auto_pad": auto}
    if op == "LpPool":
        for p in (1, 3):
            yield window | strides | pads | {"p": p}


def _types() -> Iterator[Case]:
    named = {"kernel_shape": [2, 2], "strides": [2, 1], "pads": [0, 1, 1, 0]}
    for op, dtype in itertools.product(_OPS, FLOATS):
        yield Case(op, [numbers(dtype, *_SHAPES[2])], named, sums=True)
        x = numbers(dtype, 1, 1, 4, 4)
        x[0, 0, :2, :3] = -np.inf
        yield Case(op, [x], {"kernel_shape": [2, 2]})
        yield Case(op, [np.full_like(x, -np.inf)], {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]})
        yield Case(op, [np.full_like(x, -6e4)], {"kernel_shape": [1, 1], "pads": [0, 0, 0, 0]})
    for dtype in ("int8", "uint8"):
        yield Case("MaxPool", [numbers(dtype, *_SHAPES[2])], named)
        yield Case("MaxPool", [np.full((1, 1, 3, 3), np.iinfo(dtype).min, dtype)], named)


def _whole() -> Iterator[Case]:
    ops = ("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")
    for op, rank, dtype in itertools.product(ops, _SHAPES, FLOATS):
        x = numbers(dtype, *_SHAPES[rank])
        for opset in versions(op):
            yield Case(op, [x], opset=opset, sums=True)
        if op == "GlobalLpPool":
            yield Case(op, [x], {"p": 1}, sums=True)
            yield Case(op, [x], {"p": 3}, sums=True)
        # If all numbers are -infinity, onnxruntime's GlobalMaxPool gives the least finite number.
        if op != "GlobalMaxPool":
            yield Case(op, [np.full((1, 1, 2, 2), -np.inf, dtype)])


def _places() -> Iterator[Case]:
    """Indices of the largest elements, and elements that are put back at these indices."""
    for rank, order in itertools.product(_SHAPES, (0, 1)):
        x = numbers("float32", *_SHAPES[rank])
        window, strides = [3, 2, 2][:rank], [2, 1, 2][:rank]
        for more in (
            {},
            {"pads": [1, 1, 1][:rank] + [1, 0, 1][:rank]},
            {"ceil_mode": 1},
            {"dilations": [1, 2, 1][:rank]},
        ):
            named = {"kernel_shape": window, "strides": strides, "storage_order": order, **more}
            yield Case("MaxPool", [x], named, outputs=2)
    tied = np.zeros((1, 1, 4, 4), "float32")
    yield Case("MaxPool", [tied], {"kernel_shape": [2, 2]}, outputs=2)
    x = np.array([[[[1, 2], [3, 4]]]], "float32")
    places = np.array([[[[5, 7], [13, 15]]]])
    yield Case("MaxUnpool", [x, places], {"kernel_shape": [2, 2], "strides": [2, 2]})
    named = {"kernel_shape": [2, 2], "strides": [2, 2]}
    yield Case("MaxUnpool", [x, places, np.array([1, 1, 5, 5])], named, fixed=(2,))


def _regions() -> Iterator[Case]:
    x = numbers("float32", 2, 3, 8, 8)
    rois = np.array([[0, 0, 7, 7], [1, 2, 5, 4], [0.5, 0.5, 3.2, 6.1], [-1, -2, 9, 12]], "float32")
    batches = np.array([0, 1, 1, 0])
    for mode, ratio, opset in itertools.product(("avg", "max"), (0, 2), versions("RoiAlign", 10)):
        for shift in ("half_pixel", "output_half_pixel") if opset >= 16 else (None,):
            named = {"output_height": 3, "output_width": 2, "sampling_ratio": ratio, "mode": mode}
            named |= {"spatial_scale": 0.9}
            named |= {"coordinate_transformation_mode": shift} if shift else {}
            yield Case("RoiAlign", [x, rois, batches], named, opset=opset, sums=True)
    for scale in (1.0, 0.5):
        whole = np.array([[0, 0, 0, 7, 7], [1, 2, 2, 4, 6]], "float32")
        named = {"pooled_shape": [2, 2], "spatial_scale": scale}
        yield Case("MaxRoiPool", [x, whole], named)
