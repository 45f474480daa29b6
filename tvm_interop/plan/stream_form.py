"""Turns a plan into the input of the race checker: which bytes each operator reads and writes.

The checker's input is computed from the plan only: from its operators with their values, streams
and waits, and from the place of each value in memory. This module uses no code of the planner,
because the checker must find the planner's mistakes. For the same reason it has its own code for
the sizes of tensors.
"""

from __future__ import annotations

import math

import numpy as np

from ..checking.stream_program import Access, StreamOperator, StreamProgram
from .plan import Plan, PlannedValue


def stream_program(plan: Plan) -> StreamProgram:
    """Describe `plan` as a `StreamProgram`, the input of the race checker.

    The indices in `plan` must be valid (see `validate.check_bounds`). In the described program, no
    kernel may write memory that it also reads. A part of a tensor counts as a range of bytes of the
    whole tensor. So an operator that reads the whole tensor must be ordered after the operators
    that write its parts.
    """
    names = [op.name for op in plan.operators]
    operators = tuple(
        StreamOperator(
            name=op.name,
            stream=str(op.stream),
            reads=tuple(_access(plan, v) for v in op.inputs),
            writes=tuple(_access(plan, v, op.share) for v in op.outputs),
            waits=tuple(names[w] for w in op.waits),
            restrict=True,
        )
        for op in plan.operators
    )
    return StreamProgram(
        operators=operators,
        outputs=tuple(_access(plan, v) for v in plan.outputs),
        buffers=_buffers(plan),
    )


def _access(plan: Plan, value: int, share: tuple[int, int] | None = None) -> Access:
    stored = plan.values[value]
    root, begin = (value, 0) if stored.alias_of is None else (stored.alias_of, stored.offset or 0)
    buffer, base = _place(plan, root)
    begin += base
    return Access(buffer, begin, begin + _nbytes(stored), _label(plan, root), share)


def _place(plan: Plan, root: int) -> tuple[str, int]:
    """The buffer that holds the value `root`, and the value's first byte in this buffer."""
    stored = plan.values[root]
    if stored.storage == "arena":
        return _arena(stored.device), stored.offset or 0
    return f"{stored.storage} {_label(plan, root)}", 0


def _label(plan: Plan, root: int) -> str:
    """The tensor's name with its number, because two values may have the same name."""
    return f"{plan.values[root].name} ({root})"


def _arena(device: str | None) -> str:
    return "arena" if device is None else f"arena of {device}"


def _buffers(plan: Plan) -> dict[str, int]:
    buffers = {_arena(device): nbytes for device, nbytes in plan.arenas.items()}
    if not buffers:
        buffers[_arena(None)] = plan.arena_bytes
    for i, stored in enumerate(plan.values):
        if stored.alias_of is None and stored.storage != "arena":
            buffers[_place(plan, i)[0]] = _nbytes(stored)
    return buffers


def _nbytes(stored: PlannedValue) -> int:
    """The size of a tensor in memory, in bytes. A blocked layout is padded to full blocks."""
    shape = list(stored.shape)
    if stored.layout != "plain":
        block = int(stored.layout.removeprefix("blocked"))
        shape[1] = math.ceil(shape[1] / block) * block
    return math.prod(shape) * np.dtype(stored.dtype).itemsize
