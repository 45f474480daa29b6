"""Operators as the native executors take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class BoundOperator(NamedTuple):
    """An operator with its kernel, its tensors and its place in a plan.

    The native side has the same fields in the same order, in `runtime/ffi/bound_operator.h`.

    Attributes
    ----------
    kernel: a packed function, or something whose tensors are bound already: a kernel of a library,
        or a copy between GPUs.
    args: what the kernel is called with, as indices of the executor's tensors.
    stream: the stream that runs it.
    waits: the earlier operators that it waits for, by position.
    share: which share of a packed function runs, and of how many; None runs all of it. Only on
        CPUs.
    """

    name: str
    kernel: Any
    args: Sequence[int]
    stream: int = 0
    waits: Sequence[int] = ()
    share: tuple[int, int] | None = None


def as_native(operators: Sequence[BoundOperator]) -> list[BoundOperator]:
    """The same operators, of types that tvm-ffi takes."""
    return [op._replace(args=list(op.args), waits=list(op.waits)) for op in operators]
