"""Computes some operators of float16 tensors in float32, because float16 has too few digits.

ONNX allows a higher precision for intermediate results. In float16, operators that subtract nearly
equal numbers or compute `log(1 + exp(x))` would be off by several percent. A number above 65504
would be infinite: for example the sum of squares in a norm, if the norm is above 256. An `Einsum`
would add up its products in float16, where 2048 + 1 is 2048.
"""

from __future__ import annotations

import copy
from typing import Any

from tvm import relax

_IN_FLOAT32 = (
    *("Celu", "DFT", "DeformConv", "Det", "Einsum", "Elu", "GlobalLpPool", "LRN"),
    *("LpNormalization", "LpPool", "Mish", "ReduceL2", "ReduceLogSum", "ReduceSumSquare", "STFT"),
    *("Selu", "Softplus", "com.microsoft.CDist", "com.microsoft.Inverse"),
)


def widened(bb: relax.BlockBuilder, op_type: str, inputs: Any) -> Any:
    """Return the inputs, with the float16 inputs converted to float32.

    Return None if the node has no float16 inputs, or if it can be computed in float16.
    """
    if op_type not in _IN_FLOAT32 or not _is_half(inputs[0]):
        return None
    # A copy has TVM's list type. Converters rely on it: it gives None for an index past the end, as
    # for an optional input that is left out.
    wide = copy.copy(inputs)
    wide[:] = [bb.emit(relax.op.astype(x, "float32")) if _is_half(x) else x for x in inputs]
    return wide


def narrowed(bb: relax.BlockBuilder, result: Any) -> Any:
    """Convert `result`, which was computed from widened inputs, to float16."""
    return relax.op.astype(bb.normalize(result), "float16")


def _is_half(x: Any) -> bool:
    return x is not None and str(x.ty.dtype) == "float16"
