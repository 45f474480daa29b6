"""Computes some operators of float16 in float32, because float16 has too few digits.

ONNX allows a higher precision for intermediate results. In float16, operators that subtract nearly
equal numbers or compute `log(1 + exp(x))` would be off by several percent.
"""

from __future__ import annotations

import copy
from typing import Any

from tvm import relax

_IN_FLOAT32 = ("Celu", "Elu", "LRN", "LpNormalization", "LpPool", "Mish", "Selu", "Softplus")


def widened(bb: relax.BlockBuilder, op_type: str, inputs: Any) -> Any:
    """Return the inputs in float32, or None if the node computes in its own dtype."""
    if op_type not in _IN_FLOAT32 or str(inputs[0].ty.dtype) != "float16":
        return None
    wide = copy.copy(inputs)  # A copy keeps TVM's list type: an index past the end gives None.
    wide[:] = [None if x is None else bb.emit(relax.op.astype(x, "float32")) for x in inputs]
    return wide


def narrowed(bb: relax.BlockBuilder, result: Any) -> Any:
    """Convert `result`, which was computed from widened inputs, to float16."""
    return relax.op.astype(bb.normalize(result), "float16")
