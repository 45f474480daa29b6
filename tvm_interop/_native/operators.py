"""Defines how the operators of a plan are passed to the native executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class BoundOperator(NamedTuple):
    """An operator with its kernel, its tensors and its place in a plan.

    The C++ struct in `runtime/ffi/bound_operator.h` has the same fields in the same order.

    Attributes
    ----------
    name: the operator's name.
    kernel: a packed function, a kernel of a kernel library, or a copy between GPUs. Library kernels
        and copies are already bound to their tensors.
    args: the kernel's arguments, as indices of the executor's tensors.
    stream: the index of the operator's stream.
    waits: indices of the earlier operators that the operator waits for.
    share: if the operator runs only one task of the parallel loop of its kernel (a share), the
        index of the share and the number of shares. None runs the whole kernel. Only CPUs have
        shares.
    """

    name: str
    kernel: Any
    args: Sequence[int]
    stream: int = 0
    waits: Sequence[int] = ()
    share: tuple[int, int] | None = None


def as_native(operators: Sequence[BoundOperator]) -> list[BoundOperator]:
    """Return copies of the operators with lists in place of tuples, as tvm-ffi needs them."""
    return [op._replace(args=list(op.args), waits=list(op.waits)) for op in operators]
