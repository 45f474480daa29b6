"""Cases of reorders, which copy a tensor into another layout."""

from __future__ import annotations

import numpy as np

from tests.kinds import Arrays, conforms
from tvm_interop.program.library_op import LibraryOp, library_op

CASES = {
    name: library_op(op="reorder", shapes=(shape, shape), layouts=("plain", "plain"))
    for name, shape in {
        "of one": (1, 1, 1, 1),
        "prime": (2, 17, 5, 3),
        "blocks": (1, 32, 6, 6),
    }.items()
}


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    return arrays[0]


conforms("reorder", CASES, reference)
