"""Cases of max pooling of integers."""

from __future__ import annotations

import numpy as np

from tests.kind_windows import first, integer_pools, last, seen
from tests.kinds import Arrays, byte_inputs, conforms
from tvm_interop.program.library_op import LibraryOp

CASES = integer_pools("quantised_max_pool2d")


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    return last(np.maximum.reduce(list(seen(op, first(arrays[0]), -np.inf))))


conforms("quantised_max_pool2d", CASES, reference, byte_inputs)
