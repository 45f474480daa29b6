"""Cases of matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.kind_endings import ended
from tests.kinds import Arrays, conforms
from tvm_interop.program.library_op import LibraryOp, library_op


def product(
    left: tuple[int, ...],
    right: tuple[int, ...],
    *,
    bias: bool = True,
    added: bool = False,
    **ending: Any,
) -> LibraryOp:
    result = (*left[:-1], right[-1])
    shapes = (left, right, *[right[-1:]] * bias, *[result] * added, result)
    layouts = ("plain",) * len(shapes)
    return library_op(
        op="matmul", shapes=shapes, layouts=layouts, has_bias=bias, has_sum=added, **ending
    )


CASES = {
    "of one": product((1, 1), (1, 1), bias=False),
    "prime": product((7, 13), (13, 11), activation="gelu"),
    "rows": product((64, 96), (96, 160), added=True, activation="relu"),
    "a row": product((1, 300), (300, 517)),
    "matrices": product((3, 4, 40, 32), (3, 4, 32, 48), bias=False),
    "shared right side": product((5, 33, 64), (64, 40), activation="tanh"),
}


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    return ended(op, arrays[0] @ arrays[1], arrays[2:])


conforms("matmul", CASES, reference)
