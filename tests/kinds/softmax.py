"""Cases of softmax."""

from __future__ import annotations

import numpy as np

from tests.kinds import Arrays, conforms
from tvm_interop.program.library_op import LibraryOp, library_op

CASES = {
    name: library_op(op="softmax", shapes=(shape, shape), layouts=("plain", "plain"))
    for name, shape in {
        "of one": (1, 1),
        "prime": (7, 13),
        "large": (12, 64, 64),
        "one axis": (1000,),
    }.items()
}


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    powers = np.exp(arrays[0] - arrays[0].max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


conforms("softmax", CASES, reference)
