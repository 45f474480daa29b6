"""Means of the integers of windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.kind_endings import integers
from tests.kind_windows import first, last, seen, sliding
from tests.kinds import Arrays, byte_inputs, conforms
from tvm_interop.program.library_op import LibraryOp, library_op


def pool(
    data: tuple[int, int, int, int], window: tuple[int, int], dtype: str = "uint8", **slides: Any
) -> LibraryOp:
    fields, made = sliding(data[1:3], window, **slides)
    return library_op(
        op="quantised_avg_pool2d",
        shapes=(data, (data[0], *made, data[3])),
        layouts=("plain", "plain"),
        dtype="int8",
        stored=(dtype, dtype),
        steps=(("linear", 1.7, -11.25),),
        **fields,
    )


CASES = {
    "of one": pool((1, 1, 1, 1), (1, 1)),
    "prime": pool((1, 13, 11, 7), (3, 2), "int8", stride=2, padding=(1, 0, 1, 1)),
    "large": pool((1, 40, 40, 64), (3, 3), padding=(1, 1, 1, 1)),
    "images": pool((3, 28, 28, 16), (2, 2), "int8", stride=2),
}


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    data = first(arrays[0])
    mean = sum(seen(op, data, 0.0)) / sum(seen(op, np.ones_like(data), 0.0))
    return integers(op, last(mean))


conforms("quantised_avg_pool2d", CASES, reference, byte_inputs)
