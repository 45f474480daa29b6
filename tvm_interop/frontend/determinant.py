"""Converts ONNX's `Det`: determinants of square matrices, for which TVM has no kernel.

Source: Golub and Van Loan, "Matrix Computations", section 3.4: elimination with partial pivoting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tvm import relax, tirx

from ..errors import UnsupportedModelError
from ..kernels import loops
from ..lowering.static_shape import known_shape


def import_determinant(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the determinants of the matrices in the last two axes.

    Raises
    ------
    UnsupportedModelError
        The matrices are not square.
    """
    x = inputs[0]
    shape, dtype = known_shape(x), str(x.ty.dtype)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise UnsupportedModelError(f"its input has the shape {shape}: matrices must be square")
    if 0 in shape:
        return relax.op.ones(shape[:-2], dtype)
    number, size = prod(shape[:-2]), shape[-1]
    flat = bb.emit(relax.op.reshape(x, (number, size, size)))
    kernel = bb.add_func(determinant_kernel(number, size, dtype), "determinant")
    found = bb.emit(relax.call_tir(kernel, [flat], relax.TensorType((number,), dtype)))
    return relax.op.reshape(found, shape[:-2])


def determinant_kernel(number: int, size: int, dtype: str) -> tirx.PrimFunc:
    """Return a kernel for determinants, whose loops are written by hand.

    The kernel's input has the shape (number, size, size), and its result has the shape (number,).
    The kernel turns a copy of each matrix into a triangular matrix, and multiplies the elements of
    the diagonal.
    """
    data = tirx.decl_buffer((number, size, size), dtype, "data")
    result = tirx.decl_buffer((number,), dtype, "result")
    work = tirx.decl_buffer((size, size), dtype, "work")
    # Three scratch variables: the row with the largest element of a column, an element that is
    # being swapped, and the factor by which a row is multiplied.
    pivot = tirx.decl_buffer((1,), "int64", "pivot")
    held = tirx.decl_buffer((1,), dtype, "held")
    factor = tirx.decl_buffer((1,), dtype, "factor")
    zero = tirx.const(0, dtype)

    def copy(matrix: Any) -> tirx.Stmt:
        return loops.loop(
            size,
            lambda i: loops.loop(
                size, lambda j: tirx.BufferStore(work, data[matrix, i, j], [i, j])
            ),
        )

    def offer(row: Any, step: Any) -> tirx.Stmt:
        """Make `row` the pivot if its element is larger than the pivot's, or is NaN."""
        here, best = tirx.abs(work[row, step]), tirx.abs(work[pivot[0], step])
        wins = tirx.all(row > step, tirx.Or(here > best, tirx.isnan(here)))
        return tirx.IfThenElse(wins, tirx.BufferStore(pivot, row, [0]), None)

    def swap(matrix: Any, step: Any) -> tirx.Stmt:
        def each(j: Any) -> tirx.Stmt:
            return loops.in_turn(
                [
                    tirx.BufferStore(held, work[step, j], [0]),
                    tirx.BufferStore(work, work[pivot[0], j], [step, j]),
                    tirx.BufferStore(work, held[0], [pivot[0], j]),
                ]
            )

        negated = tirx.BufferStore(result, zero - result[matrix], [matrix])
        both = loops.in_turn([loops.loop(size, each), negated])
        return tirx.IfThenElse(pivot[0] != step, both, None)

    def eliminate(row: Any, step: Any) -> tirx.Stmt:
        def each(j: Any) -> tirx.Stmt:
            return tirx.BufferStore(work, work[row, j] - factor[0] * work[step, j], [row, j])

        quotient = tirx.BufferStore(factor, work[row, step] / work[step, step], [0])
        both = loops.in_turn([quotient, loops.loop(size, each)])
        return tirx.IfThenElse(tirx.all(row > step, work[step, step] != zero), both, None)

    def advance(matrix: Any, step: Any) -> tirx.Stmt:
        multiplied = result[matrix] * work[step, step]
        return loops.in_turn(
            [
                tirx.BufferStore(pivot, step, [0]),
                loops.loop(size, lambda row: offer(row, step)),
                swap(matrix, step),
                tirx.BufferStore(result, multiplied, [matrix]),
                loops.loop(size, lambda row: eliminate(row, step)),
            ]
        )

    def each(matrix: Any) -> tirx.Stmt:
        begin = tirx.BufferStore(result, tirx.const(1, dtype), [matrix])
        steps = loops.loop(size, lambda step: advance(matrix, step))
        return loops.in_turn([copy(matrix), begin, steps])

    scratch = [work, pivot, held, factor]
    attrs = {"op_pattern": loops.OPAQUE, loops.ROWS: [0, 0]}
    return loops.kernel([data, result], loops.loop(number, each), scratch, **attrs)
