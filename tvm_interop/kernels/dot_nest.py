"""Loops for products of a matrix and a vector whose terms lie one after another in memory.

One example is attention for a single query: the keys form the matrix, and each score is the dot
product of a key and the query.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from . import loops
from .contraction_pattern import Contraction, Epilogue

_ROWS = 4
"""The number of dot products that are computed together and share the vector's loads."""

_FEWEST_VECTORS = 2
"""The least number of vectors in a dot product. With fewer vectors, adding up the lanes takes too
long."""


def dot_nest(
    op: Contraction, epilogue: Epilogue, lanes: int, kind: tirx.ForKind
) -> tirx.Stmt | None:
    """Loops that compute `op` as dot products, and then `epilogue`.

    Each lane of a vector adds up every `lanes`-th term. Then the lanes are added up in order, and
    the terms that do not fill a vector come last. So the result's bits depend only on the inputs,
    the shapes and `lanes`.

    Parameters
    ----------
    kind: the kind of the outer loop.

    Returns
    -------
    The loops. None if the result has several columns, if the terms do not lie one after another in
    memory, or if there are few terms.
    """
    is_product = (*op.kernel, *op.stride, *op.out_size, op.groups) == (1,) * 7
    if not is_product or op.has_padding or op.in_channels < _FEWEST_VECTORS * lanes:
        return None
    if not _is_in_row(op):
        return None
    return loops.in_turn(
        loops.loop(
            op.batch * count,
            lambda i, first=first, count=count, rows=rows: _tile(  # type: ignore[misc]
                op, epilogue, lanes, i // count, first + i % count * rows, rows
            ),
            kind,
        )
        for first, count, rows in loops.tiles(op.out_channels, _ROWS)
    )


def _is_in_row(op: Contraction) -> bool:
    """Whether the terms of a sum lie one after another in memory, in both factors."""
    zero, term = loops.index(0), tirx.Var("c", "int64")

    def step(at: Any) -> Any:
        before, after = (_offset(at(term + more)) for more in (0, 1))
        return tvm.sym.Analyzer().simplify(after - before)

    steps = (
        step(lambda c: op.data_at(zero, c, zero, zero)),
        step(lambda c: op.weight_at(zero, zero, c, zero, zero)),
    )
    return all(isinstance(each, tirx.IntImm) and int(each) == 1 for each in steps)


def _offset(value: Any) -> Any:
    """The number of elements between the beginning of a buffer and the element that is loaded.

    `value` has one load, and may convert the loaded number.
    """
    loads: list[Any] = []
    tvm_ffi.structural_walk(value, (tvm.ir.TensorLoad, loads.append))
    (load,) = loads
    offset: Any = loops.index(0)
    for index, size in zip(load.indices, load.source.ty.shape, strict=True):
        offset = offset * size + index
    return offset


def _tile(
    op: Contraction, epilogue: Epilogue, lanes: int, n: Any, first: Any, rows: int
) -> tirx.Stmt:
    """Compute `rows` dot products, from number `first` on, and store them."""
    zero = loops.index(0)
    sums = [tirx.decl_buffer((lanes,), op.dtype, f"sum{j}") for j in range(rows)]

    def for_rows(body: Any) -> tirx.Stmt:
        return loops.in_turn(body(j) for j in range(rows))

    def clear(j: int) -> tirx.Stmt:
        empty = tirx.const(0, op.dtype)
        return loops.vector(lanes, lambda at: tirx.BufferStore(sums[j], empty, [at]))

    def term(j: int, c: Any) -> tirx.Expr:
        return op.product(op.data_at(n, c, zero, zero), op.weight_at(n, first + j, c, zero, zero))

    def added(j: int, at: Any, value: Any) -> tirx.Stmt:
        return tirx.BufferStore(sums[j], tirx.BufferLoad(sums[j], [at]) + value, [at])

    def add(start: Any) -> tirx.Stmt:
        return for_rows(lambda j: loops.vector(lanes, lambda at: added(j, at, term(j, start + at))))

    def together(lane: Any) -> tirx.Stmt:
        return for_rows(lambda j: added(j, zero, tirx.BufferLoad(sums[j], [lane + 1])))

    whole, rest = divmod(op.in_channels, lanes)
    last = loops.loop(
        rest, lambda c: for_rows(lambda j: added(j, zero, term(j, c + whole * lanes)))
    )
    return loops.in_turn([
        *(tirx.AllocBuffer(buffer) for buffer in sums),
        for_rows(clear),
        loops.loop(whole, lambda c: add(c * lanes)),
        loops.loop(lanes - 1, together, tirx.ForKind.UNROLLED),
        *([last] if rest else []),
        for_rows(
            lambda j: epilogue.store([n, first + j, zero, zero], tirx.BufferLoad(sums[j], [zero]))
        ),
    ])  # fmt: skip
