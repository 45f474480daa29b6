"""Cases of local response normalisation."""

from __future__ import annotations

import numpy as np

from tests.kinds import Arrays, conforms
from tvm_interop.program.library_op import LibraryOp, library_op


def lrn(shape: tuple[int, ...], size: int) -> LibraryOp:
    numbers = {"lrn_alpha": 0.01, "lrn_beta": 0.75, "lrn_bias": 1.5}
    return library_op(
        op="lrn", shapes=(shape, shape), layouts=("plain", "plain"), lrn_size=size, **numbers
    )


CASES = {
    "of one": lrn((1, 1, 1, 1), 1),
    "prime": lrn((1, 7, 5, 3), 3),
    "images": lrn((4, 32, 24, 24), 5),
}


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    fields = op.fields()
    half = fields["lrn_size"] // 2
    padded = np.pad(arrays[0] ** 2, ((0, 0), (half, half), (0, 0), (0, 0)))
    channels = op.shapes[0][1]
    squares = sum(padded[:, k : k + channels] for k in range(fields["lrn_size"]))
    divisor = fields["lrn_bias"] + fields["lrn_alpha"] / fields["lrn_size"] * squares
    return np.asarray(arrays[0] / divisor ** fields["lrn_beta"])


conforms("lrn", CASES, reference)
