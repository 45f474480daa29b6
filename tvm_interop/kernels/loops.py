"""Statements of TIR for kernels whose loops are made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tvm import s_tir, tirx

SCHEDULED = "tirx.is_scheduled"
"""TVM's own mark of a kernel that has its loops already, by hand, by dlight or by tuning."""


def kernel(
    parameters: Sequence[Any], body: tirx.Stmt, scratch: Sequence[Any] = (), **attrs: Any
) -> tirx.PrimFunc:
    """A kernel that nobody schedules any more.

    Parameters
    ----------
    parameters: buffers, none of which overlap.
    scratch: buffers that are allocated around `body`.
    attrs: more attributes of the function.
    """
    block = s_tir.SBlock([], [], [], "root", body, alloc_buffers=list(scratch))
    made = tirx.PrimFunc(list(parameters), s_tir.SBlockRealize([], True, block))
    return made.with_attrs({SCHEDULED: True, "tirx.noalias": True, **attrs})


OPAQUE = 8
"""The value of `kOpaque`, TVM's `op_pattern` of a kernel that nothing joins."""


def index(value: int) -> tirx.Expr:
    """A constant index."""
    return tirx.const(value, "int64")


def in_turn(statements: Iterable[tirx.Stmt]) -> tirx.Stmt:
    """The statements one after the other."""
    listed = list(statements)
    return listed[0] if len(listed) == 1 else tirx.SeqStmt(listed)


def vector(lanes: int, body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    """`body` of each lane, as vector instructions."""
    return loop(lanes, body, tirx.ForKind.VECTORIZED)


def loop(
    extent: int,
    body: Callable[[Any], tirx.Stmt],
    kind: tirx.ForKind = tirx.ForKind.SERIAL,
    unrolled: bool = False,
) -> tirx.Stmt:
    """`body` of each index below `extent`; without a loop where there is only one, or none."""
    if extent == 1:
        return body(index(0))
    if extent == 0:
        return tirx.Evaluate(0)
    if unrolled:
        return in_turn(body(index(i)) for i in range(extent))
    var = tirx.Var("i", "int64")
    return tirx.For(var, index(0), index(extent), kind, body(var))
