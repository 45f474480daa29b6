"""A network whose kernels need workspaces: two attentions side by side."""

from __future__ import annotations

import tvm
from tvm import relax

SHAPE = (1, 16, 4, 8)
"""The sizes: batch, tokens, heads, and numbers in each head."""


def two_attentions() -> tvm.IRModule:
    """A model in which `left` and `right` read `x` with different keys. Both are outputs."""
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
