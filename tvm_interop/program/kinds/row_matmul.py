"""Products of a few rows and a matrix."""

from __future__ import annotations

from math import prod

import msgspec

from ..cuts import most_products
from ..library_op import LibraryOp, kind
from .matmul import Matmul

_LARGE = 1 << 16
"""A matrix with at least this many elements is large."""
_COLUMNS = 64
"""The columns of the matrix that the kernel reads together. A share has whole groups of columns."""


@kind("row_matmul")
class RowMatmul(Matmul, frozen=True, kw_only=True):
    """A `Matmul` of a few rows and a matrix (K,N), which reads the matrix in the order of memory.

    Such a product takes as long as reading the matrix.
    """

    @property
    def rows(self) -> int:
        """The number of rows of the left matrix and of the result."""
        return prod(self.shapes[0][:-1])

    @property
    def has_shares(self) -> bool:
        """Several rows are divided into shares of some columns; one row is cut into columns."""
        return self.rows > 1

    @property
    def most_parts(self) -> int:
        """The largest number of parts: each reads some columns of the matrix."""
        groups = -(-self.shapes[1][1] // _COLUMNS)
        return min(most_products(self, read=prod(self.shapes[1])), groups)

    @property
    def tvm_may_win(self) -> bool:
        """No for a large matrix, which TVM's kernel reads more slowly from memory.

        The choice of kernels would not notice: it runs each kernel several times, and then the
        matrix is in the caches. In a model a large matrix seldom is.
        """
        return prod(self.shapes[1]) < _LARGE


def as_row_matmul(op: LibraryOp) -> RowMatmul | None:
    """`op` as a product of rows and a matrix; None if it is another operator.

    The kernel library tells whether there are too many rows.
    """
    if not isinstance(op, Matmul) or isinstance(op, RowMatmul) or len(op.shapes[1]) != 2:
        return None
    return RowMatmul(**msgspec.structs.asdict(op))
