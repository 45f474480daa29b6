"""Computes in float32 what float16 has too few digits for in between.

ONNX lets operators of float16 compute in more digits. A difference of numbers that are nearly the
same, such as `log(1 + exp(x))` is for a small `x`, is off by several percent without.
"""

from __future__ import annotations

import copy
from typing import Any

from tvm import relax

_IN_FLOAT32 = ("Celu", "Elu", "LRN", "LpNormalization", "LpPool", "Mish", "Selu", "Softplus")


def widened(bb: relax.BlockBuilder, op_type: str, inputs: Any) -> Any:
    """The inputs in float32 if the node is to compute in that; None if not."""
    if op_type not in _IN_FLOAT32 or str(inputs[0].ty.dtype) != "float16":
        return None
    wide = copy.copy(inputs)  # A list of TVM's, which has None behind its end.
    wide[:] = [None if x is None else bb.emit(relax.op.astype(x, "float32")) for x in inputs]
    return wide


def narrowed(bb: relax.BlockBuilder, result: Any) -> Any:
    """A result of widened inputs, in float16."""
    return relax.op.astype(bb.normalize(result), "float16")
