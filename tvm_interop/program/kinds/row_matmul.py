"""Products of a single row and a matrix."""

from __future__ import annotations

from math import prod

import msgspec

from ..library_op import LibraryOp, kind
from .matmul import Matmul


@kind("row_matmul")
class RowMatmul(Matmul, frozen=True, kw_only=True):
    """A `Matmul` of a single row and a matrix (K,N), which reads the matrix in the order of memory.

    Such a product takes as long as reading the matrix.
    """


def as_row_matmul(op: LibraryOp) -> RowMatmul | None:
    """`op` as a product of a single row and a matrix; None if it is another operator."""
    if not isinstance(op, Matmul) or isinstance(op, RowMatmul):
        return None
    left, right = op.shapes[:2]
    if len(right) != 2 or prod(left) != left[-1]:
        return None
    return RowMatmul(**msgspec.structs.asdict(op))
