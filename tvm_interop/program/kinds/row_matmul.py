"""Products of a single row and a matrix."""

from __future__ import annotations

from math import prod

import msgspec

from ..library_op import LibraryOp, kind
from .matmul import Matmul

_LARGE = 1 << 16
"""A matrix with at least this many elements is large."""


@kind("row_matmul")
class RowMatmul(Matmul, frozen=True, kw_only=True):
    """A `Matmul` of a single row and a matrix (K,N), which reads the matrix in the order of memory.

    Such a product takes as long as reading the matrix.
    """

    @property
    def tvm_may_win(self) -> bool:
        """No for a large matrix, which TVM's kernel reads more slowly from memory.

        The choice of kernels would not notice: it runs each kernel several times, and then the
        matrix is in the caches. In a model it seldom is. Even from the caches TVM's kernel was at
        most 7% faster on matrices of this size, and up to three times slower.
        """
        return prod(self.shapes[1]) < _LARGE


def as_row_matmul(op: LibraryOp) -> RowMatmul | None:
    """`op` as a product of a single row and a matrix; None if it is another operator."""
    if not isinstance(op, Matmul) or isinstance(op, RowMatmul):
        return None
    left, right = op.shapes[:2]
    if len(right) != 2 or prod(left) != left[-1]:
        return None
    return RowMatmul(**msgspec.structs.asdict(op))
