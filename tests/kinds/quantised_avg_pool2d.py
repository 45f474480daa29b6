"""Cases of average pooling of integers."""

from __future__ import annotations

import numpy as np

from tests.kind_endings import integers
from tests.kind_windows import first, integer_pools, last, seen
from tests.kinds import Arrays, byte_inputs, conforms
from tvm_interop.program.library_op import LibraryOp

CASES = integer_pools("quantised_avg_pool2d", steps=(("linear", 1.7, -11.25),))


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    data = first(arrays[0])
    mean = sum(seen(op, data, 0.0)) / sum(seen(op, np.ones_like(data), 0.0))
    return integers(op, last(mean))


conforms("quantised_avg_pool2d", CASES, reference, byte_inputs)
