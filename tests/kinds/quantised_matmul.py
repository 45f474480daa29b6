"""Cases of matrix products of integers."""

from __future__ import annotations

import numpy as np

from tests.kind_endings import rounded
from tests.kinds import Arrays, byte_inputs, conforms
from tvm_interop.program.library_op import LibraryOp, library_op


def product(
    left: tuple[int, ...],
    right: tuple[int, ...],
    types: tuple[str, str] = ("uint8", "uint8"),
    zeros: tuple[int, int] = (0, 0),
) -> LibraryOp:
    channels = right[-1:]
    return library_op(
        op="quantised_matmul",
        shapes=(left, right, channels, channels, (*left[:-1], *channels)),
        layouts=("plain",) * 5,
        dtype="int8",
        stored=(types[0], "int8", "float32", "float32", types[1]),
        has_bias=True,
        data_zero=zeros[0],
        weight_zero=zeros[1],
    )


CASES = {
    "of one": product((1, 1), (1, 1)),
    "prime": product((7, 13), (13, 11), ("int8", "float32"), (3, 0)),
    "large": product((128, 96), (96, 160), zeros=(37, 0)),
    "a row": product((1, 300), (300, 517), ("uint8", "int8")),
    "matrices": product((3, 40, 32), (3, 32, 48), ("int8", "int8"), (0, 5)),
}


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    fields = op.fields()
    left, right = arrays[0] - fields["data_zero"], arrays[1] - fields["weight_zero"]
    return rounded(op, left @ right, *arrays[2:])


conforms("quantised_matmul", CASES, reference, byte_inputs)
