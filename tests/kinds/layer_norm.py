"""Cases of layer normalisation."""

from __future__ import annotations

import numpy as np

from tests.kinds import Arrays, conforms
from tvm_interop.program.library_op import LibraryOp, library_op


def norm(*shape: int) -> LibraryOp:
    numbers = (shape[-1],)
    shapes = (shape, numbers, numbers, shape)
    return library_op(op="layer_norm", shapes=shapes, layouts=("plain",) * 4, epsilon=1e-3)


CASES = {"of one": norm(1, 1), "prime": norm(7, 13), "large": norm(2, 128, 256)}


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    data, scale, shift = arrays
    mean, variance = data.mean(-1, keepdims=True), data.var(-1, keepdims=True)
    return (data - mean) / np.sqrt(variance + op.fields()["epsilon"]) * scale + shift


conforms("layer_norm", CASES, reference)
