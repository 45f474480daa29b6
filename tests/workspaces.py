"""A network whose kernels keep intermediate results: two attentions side by side."""

from __future__ import annotations

import tvm
from tvm import relax

SHAPE = (1, 16, 4, 8)
"""Batch, tokens, heads, numbers of each."""


def two_attentions() -> tvm.IRModule:
    """`left` and `right` read `x`, each with its own keys; both are given out."""
    builder = relax.BlockBuilder()
    x, left, right = (
        relax.Var(name, relax.TensorType(SHAPE, "float32")) for name in ("x", "left", "right")
    )
    with builder.function("main", [x, left, right]):
        with builder.dataflow():
            one = builder.emit(relax.op.nn.attention(x, left, left))
            other = builder.emit(relax.op.nn.attention(x, right, right))
            out = builder.emit_output(relax.Tuple([one, other]))
        builder.emit_func_output(out)
    return builder.get()
