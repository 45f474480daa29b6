"""Cases of the kind `part`, a range of an image's channels, which no library runs."""

from __future__ import annotations

import numpy as np

from tests.kinds import Arrays, conforms
from tvm_interop.program.library_op import LibraryOp, library_op

CASES = {
    "the second of three": library_op(
        op="part", shapes=((1, 48, 3, 3), (1, 16, 3, 3)), layouts=("plain",) * 2, begin=16
    )
}


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    begin = op.begin
    return arrays[0][:, begin : begin + op.shapes[1][1]]


conforms("part", CASES, reference)
