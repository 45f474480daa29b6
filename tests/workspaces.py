"""A network whose kernels need workspaces: two attentions side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
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


def attentions_by_numpy(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of `two_attentions` for the inputs `x`, `left` and `right`."""
    x, *keys = (array[0].transpose(1, 0, 2) for array in arrays)
    outputs = []
    for key in keys:
        scores = x @ key.transpose(0, 2, 1) / np.sqrt(SHAPE[-1])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares = weights / weights.sum(axis=-1, keepdims=True)
        outputs.append((shares @ key).transpose(1, 0, 2)[np.newaxis].astype(np.float32))
    return outputs
