"""Converts onnxruntime's `Inverse`: inverses of square matrices, for which TVM has no kernel.

Source: Golub and Van Loan, "Matrix Computations", chapter 3: elimination with partial pivoting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tvm import relax, tirx

from ..errors import UnsupportedModelError
from ..kernels import loops
from ..lowering.static_shape import known_shape


def import_inverse(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return the inverses of the matrices in the last two axes.

    Raises
    ------
    UnsupportedModelError
        The matrices are not square.
    """
    x = inputs[0]
    shape, dtype = known_shape(x), str(x.ty.dtype)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise UnsupportedModelError(f"its input has the shape {shape}: matrices must be square")
    number, size = prod(shape[:-2]), shape[-1]
    flat = bb.emit(relax.op.reshape(x, (number, size, size)))
    kernel = bb.add_func(inverse_kernel(number, size, dtype), "inverse")
    found = bb.emit(relax.call_tir(kernel, [flat], relax.TensorType((number, size, size), dtype)))
    return relax.op.reshape(found, shape)


def inverse_kernel(number: int, size: int, dtype: str) -> tirx.PrimFunc:
    """Return a kernel for inverses, whose loops are written by hand.

    The kernel's input and result have the shape (number, size, size). Operations on rows turn a
    copy of each matrix into the identity, and turn an identity matrix into the inverse.
    """
    data = tirx.decl_buffer((number, size, size), dtype, "data")
    result = tirx.decl_buffer((number, size, size), dtype, "result")
    work = tirx.decl_buffer((size, size), dtype, "work")
    # Three scratch variables: the row with the largest element of a column, an element that is
    # being swapped, and the factor by which a row is multiplied.
    pivot = tirx.decl_buffer((1,), "int64", "pivot")
    held = tirx.decl_buffer((1,), dtype, "held")
    factor = tirx.decl_buffer((1,), dtype, "factor")

    def of_both(matrix: Any, each: Any) -> tirx.Stmt:
        """Return statements that change the copy of the matrix and the inverse in the same way."""
        in_work = loops.loop(size, lambda j: each(work, lambda i, j: [i, j], j))
        in_result = loops.loop(size, lambda j: each(result, lambda i, j: [matrix, i, j], j))
        return loops.in_turn([in_work, in_result])

    def begin(matrix: Any) -> tirx.Stmt:
        def each(i: Any, j: Any) -> tirx.Stmt:
            copy = tirx.BufferStore(work, data[matrix, i, j], [i, j])
            diagonal = tirx.Select(i == j, tirx.const(1, dtype), tirx.const(0, dtype))
            return loops.in_turn([copy, tirx.BufferStore(result, diagonal, [matrix, i, j])])

        return loops.loop(size, lambda i: loops.loop(size, lambda j: each(i, j)))

    def offer(row: Any, step: Any) -> tirx.Stmt:
        """Make `row` the pivot if its element is larger than the pivot's, or is NaN."""
        here, best = tirx.abs(work[row, step]), tirx.abs(work[pivot[0], step])
        wins = tirx.all(row > step, tirx.Or(here > best, tirx.isnan(here)))
        return tirx.IfThenElse(wins, tirx.BufferStore(pivot, row, [0]), None)

    def swap(matrix: Any, step: Any) -> tirx.Stmt:
        def each(buffer: Any, at: Any, j: Any) -> tirx.Stmt:
            return loops.in_turn(
                [
                    tirx.BufferStore(held, buffer[tuple(at(step, j))], [0]),
                    tirx.BufferStore(buffer, buffer[tuple(at(pivot[0], j))], at(step, j)),
                    tirx.BufferStore(buffer, held[0], at(pivot[0], j)),
                ]
            )

        return tirx.IfThenElse(pivot[0] != step, of_both(matrix, each), None)

    def divide(matrix: Any, step: Any) -> tirx.Stmt:
        def each(buffer: Any, at: Any, j: Any) -> tirx.Stmt:
            return tirx.BufferStore(buffer, buffer[tuple(at(step, j))] / factor[0], at(step, j))

        store = tirx.BufferStore(factor, work[step, step], [0])
        return loops.in_turn([store, of_both(matrix, each)])

    def eliminate(matrix: Any, row: Any, step: Any) -> tirx.Stmt:
        def each(buffer: Any, at: Any, j: Any) -> tirx.Stmt:
            less = buffer[tuple(at(row, j))] - factor[0] * buffer[tuple(at(step, j))]
            return tirx.BufferStore(buffer, less, at(row, j))

        store = tirx.BufferStore(factor, work[row, step], [0])
        both = loops.in_turn([store, of_both(matrix, each)])
        return tirx.IfThenElse(row != step, both, None)

    def advance(matrix: Any, step: Any) -> tirx.Stmt:
        return loops.in_turn(
            [
                tirx.BufferStore(pivot, step, [0]),
                loops.loop(size, lambda row: offer(row, step)),
                swap(matrix, step),
                divide(matrix, step),
                loops.loop(size, lambda row: eliminate(matrix, row, step)),
            ]
        )

    def each(matrix: Any) -> tirx.Stmt:
        return loops.in_turn([begin(matrix), loops.loop(size, lambda step: advance(matrix, step))])

    scratch = [work, pivot, held, factor]
    attrs = {"op_pattern": loops.OPAQUE, loops.ROWS: [0, 0]}
    return loops.kernel([data, result], loops.loop(number, each), scratch, **attrs)
