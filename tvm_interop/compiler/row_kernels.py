"""Gives products of a few rows and a matrix to kernels that read the matrix in memory order."""

from __future__ import annotations

from dataclasses import replace

from ..machine.kernel_libraries import why_refused
from ..program.kinds.row_matmul import as_row_matmul
from ..program.program import Operator, Program

LIBRARY = "onednn"
"""The kernel library whose name the kernels of `RowMatmul` have in plans."""

_FEWEST_COLUMNS = 16
"""The fewest columns of a matrix for kernels that read the matrix in memory order. A narrower
matrix takes more memory in packed form."""


def with_row_kernels(program: Program) -> Program:
    """Describe each product of a few rows and a constant matrix as a `RowMatmul`.

    For a `RowMatmul`, the choice of kernels compares this project's own kernel with TVM's kernel.
    oneDNN's kernel is not compared. It cannot be faster, because such a product takes no longer
    than reading the matrix.
    """
    operators = [_described(program, op) for op in program.operators]
    return replace(program, operators=operators)


def _described(program: Program, op: Operator) -> Operator:
    """The operator `op`, as a `RowMatmul` if it is a product of a few rows and a matrix.

    The matrix must be a constant, because it is packed only once.
    """
    described = None if op.description is None else as_row_matmul(op.description)
    if described is None or described.shapes[1][1] < _FEWEST_COLUMNS:
        return op
    if not program.is_constant(op.inputs[1]) or why_refused(LIBRARY, described):
        return op
    return replace(op, description=described)
