"""Cases of resizing and sampling of images."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..case import Case, numbers, versions

_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
_SIZES = {
    1: [(2, 3, 7), (11,), (4,)],
    2: [(1, 2, 6, 5), (9, 3), (4, 11)],
    3: [(1, 1, 4, 3, 5), (6, 2, 9), (3, 4, 2)],
}


def resizing() -> Iterator[Case]:
    """All cases of this module."""
    yield from _resized()
    yield from _old()
    yield from _axes()
    yield from _grids()


def _resized() -> Iterator[Case]:
    roundings = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    for rank, (shape, *targets) in _SIZES.items():
        x = numbers("float32", *shape)
        for coordinates, target in itertools.product(_COORDINATES, targets):
            whole = np.array([*shape[:2], *target])
            roi = None
            if coordinates == "tf_crop_and_resize":
                inner = np.array([0.1] * rank), np.array([1.2] * rank)
                roi = np.array([0, 0, *inner[0], 1, 1, *inner[1]], "float32")
            given = [x, roi, None, whole]
            fixed = (1, 3) if roi is not None else (3,)
            named: dict[str, Any] = {"coordinate_transformation_mode": coordinates}
            for opset in versions("Resize", 11) if coordinates == "half_pixel" else [13, 19]:
                if coordinates == "half_pixel_symmetric" and opset < 19:
                    continue
                for rounding in roundings:
                    more = {"mode": "nearest", "nearest_mode": rounding}
                    yield Case("Resize", given, named | more, fixed, opset=opset)
                yield Case(
                    "Resize", given, named | {"mode": "linear"}, fixed, opset=opset, sums=True
                )
                if rank < 3:
                    for more in ({}, {"cubic_coeff_a": -0.5}, {"exclude_outside": 1}):
                        settings = named | {"mode": "cubic"} | more
                        yield Case("Resize", given, settings, fixed, opset=opset, sums=True)
            for mode in ("linear", "cubic"):
                if rank == 2 and opset >= 18 and roi is None:
                    settings = named | {"mode": mode, "antialias": 1}
                    yield Case("Resize", given, settings, fixed, sums=True)
        for scale in (0.5, 1.5, 2.0, 0.3):
            scales = np.array([1, 1, *[scale] * rank], "float32")
            for mode in ("nearest", "linear"):
                for coordinates in _COORDINATES[:5]:
                    named = {"mode": mode, "coordinate_transformation_mode": coordinates}
                    yield Case("Resize", [x, None, scales], named, (2,), sums=True)
    for dtype in ("float16", "float64", "int8", "uint8", "int32"):
        for mode in ("nearest", "linear"):
            given = [numbers(dtype, 1, 2, 4, 4), None, np.array([1, 1, 2, 2], "float32")]
            yield Case("Resize", given, {"mode": mode}, (2,), sums=True)


def _old() -> Iterator[Case]:
    x, scales = numbers("float32", 1, 2, 5, 4), np.array([1, 1, 2, 1.5], "float32")
    for mode in ("nearest", "linear"):
        yield Case("Upsample", [x], {"scales": scales.tolist(), "mode": mode}, opset=7, sums=True)
        yield Case("Upsample", [x, scales], {"mode": mode}, (1,), opset=9, sums=True)
        yield Case("Resize", [x, scales], {"mode": mode}, (1,), opset=10, sums=True)
        small = np.array([1, 1, 0.6, 0.5], "float32")
        yield Case("Resize", [x, small], {"mode": mode}, (1,), opset=10, sums=True)


def _axes() -> Iterator[Case]:
    x = numbers("float32", 1, 2, 6, 5)
    for axes in ([2, 3], [3, 2], [-1], [3], [-2, -1]):
        sizes = np.array([9, 4][: len(axes)])
        # If the aspect ratio is kept, onnxruntime ignores negative axes.
        for policy in ("stretch",) if min(axes) < 0 else ("stretch", "not_larger", "not_smaller"):
            named = {"axes": axes, "keep_aspect_ratio_policy": policy, "mode": "linear"}
            yield Case("Resize", [x, None, None, sizes], named, (3,), sums=True)
        scales = np.array([1.5, 0.7][: len(axes)], "float32")
        yield Case("Resize", [x, None, scales], {"axes": axes}, (2,), sums=True)
    for axes in ([0, 2], [1]):
        sizes = np.array([3, 4][: len(axes)])
        for mode in ("nearest", "linear"):
            yield Case(
                "Resize", [x, None, None, sizes], {"axes": axes, "mode": mode}, (3,), sums=True
            )


def _grids() -> Iterator[Case]:
    x = numbers("float32", 2, 3, 5, 6)
    grid = (np.random.default_rng(3).uniform(-1.4, 1.4, (2, 4, 3, 2))).astype("float32")
    paddings, corners = ("zeros", "border", "reflection"), (0, 1)
    for padding, corner, opset in itertools.product(paddings, corners, (16, 20, 22)):
        names = ("nearest", "bilinear", "bicubic") if opset < 20 else ("nearest", "linear", "cubic")
        for mode in names:
            named = {"mode": mode, "padding_mode": padding, "align_corners": corner}
            yield Case("GridSample", [x, grid], named, opset=opset, sums=True)
    volume = numbers("float32", 1, 2, 3, 4, 5)
    places = (np.random.default_rng(3).uniform(-1.2, 1.2, (1, 2, 3, 2, 3))).astype("float32")
    for mode, padding in itertools.product(("nearest", "linear"), paddings):
        named = {"mode": mode, "padding_mode": padding}
        yield Case("GridSample", [volume, places], named, sums=True)
    for corner in corners:
        theta = numbers("float32", 2, 2, 3)
        given = [theta, np.array([2, 3, 4, 5])]
        yield Case("AffineGrid", given, {"align_corners": corner}, (1,), sums=True)
        theta = numbers("float32", 2, 3, 4)
        given = [theta, np.array([2, 3, 2, 4, 5])]
        yield Case("AffineGrid", given, {"align_corners": corner}, (1,), sums=True)
