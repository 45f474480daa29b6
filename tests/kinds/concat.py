"""Cases of concatenations, which no library runs."""

from __future__ import annotations

import numpy as np

from tests.kinds import Arrays, conforms
from tvm_interop.program.library_op import LibraryOp, library_op

CASES = {
    "two": library_op(
        op="concat",
        shapes=((1, 16, 3, 3), (1, 32, 3, 3), (1, 48, 3, 3)),
        layouts=("plain",) * 3,
    )
}


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    return np.concatenate(arrays, axis=1)


conforms("concat", CASES, reference)
