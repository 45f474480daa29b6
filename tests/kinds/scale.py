"""Cases of images that are multiplied by a number for each channel."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.kind_endings import ended
from tests.kinds import Arrays, conforms
from tvm_interop.program.library_op import LibraryOp, library_op


def scale(data: tuple[int, ...], images: int = 1, bias: bool = True, **ending: Any) -> LibraryOp:
    shapes = (data, (images, data[1], 1, 1), *[(data[1],)] * bias, data)
    layouts = ("plain",) * len(shapes)
    return library_op(op="scale", shapes=shapes, layouts=layouts, has_bias=bias, **ending)


CASES = {
    "of one": scale((1, 1, 1, 1), bias=False),
    "prime": scale((1, 7, 5, 3), activation="relu"),
    "large": scale((1, 64, 40, 40), activation="swish"),
    "images": scale((4, 32, 24, 24), bias=False),
    "a factor an image": scale((4, 32, 24, 24), 4),
}


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    return ended(op, arrays[0] * arrays[1], arrays[2:])


conforms("scale", CASES, reference)
