"""Helpers that build TIR statements for kernels whose loops are written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tvm import s_tir, tirx

SCHEDULED = "tirx.is_scheduled"
"""TVM's attribute of a kernel that is scheduled already: by hand, by dlight or by tuning."""


ROWS = "tvm_interop.rows"
"""Attribute of a kernel that computes each row of its results from the same row of its inputs.

Its value lists the axis of the rows for each parameter of the kernel, -1 for a parameter without
rows. All rows are computed in the same way. The attribute is needed because
`lowering.independent_rows` can prove nothing about hand-written loops.
"""
STEPS = "tvm_interop.steps"
"""Attribute of a kernel that processes a sequence from the first step to the last.

The kernel's result at a step depends only on this step and earlier steps, in the same way for every
length. For each parameter of the kernel, the attribute lists the axis of the steps, `NO_STEPS` or
`AFTER_LAST_STEP`. The attribute is needed because `lowering.masked_positions` can prove nothing
about hand-written loops.
"""
NO_STEPS, AFTER_LAST_STEP = -1, -2
"""Values for a parameter in the attribute `STEPS`. `NO_STEPS` stands for a parameter that is the
same at each step, and `AFTER_LAST_STEP` for a result of the whole sequence."""
ADDS = "tvm_interop.adds"
"""Attribute of a kernel whose result at a step is the sum of the input up to this step. The kernel
also has the attribute `STEPS`."""


def kernel(
    parameters: Sequence[Any], body: tirx.Stmt, scratch: Sequence[Any] = (), **attrs: Any
) -> tirx.PrimFunc:
    """A kernel with the given body, marked as scheduled.

    Parameters
    ----------
    parameters: the kernel's buffers, which do not overlap.
    scratch: buffers that are allocated around `body`.
    attrs: more attributes of the function.
    """
    block = s_tir.SBlock([], [], [], "root", body, alloc_buffers=list(scratch))
    made = tirx.PrimFunc(list(parameters), s_tir.SBlockRealize([], True, block))
    return made.with_attrs({SCHEDULED: True, "tirx.noalias": True, **attrs})


OPAQUE = 8
"""The value of `kOpaque`, TVM's `op_pattern` of a kernel that is never fused with another."""


def index(value: int) -> tirx.Expr:
    """A constant index, of 64 bits."""
    return tirx.const(value, "int64")


def in_turn(statements: Iterable[tirx.Stmt]) -> tirx.Stmt:
    """One statement that runs `statements` in order."""
    listed = list(statements)
    return listed[0] if len(listed) == 1 else tirx.SeqStmt(listed)


def vector(lanes: int, body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    """A vectorised loop that runs `body` for each lane."""
    return loop(lanes, body, tirx.ForKind.VECTORIZED)


def loop(
    extent: int,
    body: Callable[[Any], tirx.Stmt],
    kind: tirx.ForKind = tirx.ForKind.SERIAL,
) -> tirx.Stmt:
    """A loop that runs `body` for each index below `extent`.

    With `extent` 1 the result is the body without a loop, and with `extent` 0 an empty statement.
    """
    if extent == 1:
        return body(index(0))
    if extent == 0:
        return tirx.Evaluate(0)
    var = tirx.Var("i", "int64")
    return tirx.For(var, index(0), index(extent), kind, body(var))


def tiles(extent: int, size: int) -> list[tuple[int, int, int]]:
    """Divide `extent` into whole tiles and one smaller tile for the rest.

    Each entry of the result stands for tiles of equal size. It is a triple: the index of their
    first element, the number of tiles, and the size of a tile.
    """
    number, rest = divmod(extent, size)
    whole = [(0, number, size)] if number else []
    return [*whole, (number * size, 1, rest)] if rest else whole


def unravelled(place: Any, extents: Sequence[int]) -> list[Any]:
    """The indices along each axis of element number `place` in a row-major array of shape
    `extents`.
    """
    indices: list[Any] = []
    for extent in reversed(extents[1:]):
        indices.insert(0, tirx.floormod(place, extent))
        place = tirx.floordiv(place, extent)
    return [place, *indices] if extents else []
