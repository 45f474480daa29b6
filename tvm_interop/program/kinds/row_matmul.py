"""Products of a few rows and a matrix."""

from __future__ import annotations

from math import prod

import msgspec

from ..cuts import most_products
from ..library_op import LibraryOp, kind
from .matmul import Matmul

_LARGE = 1 << 16
"""A matrix with at least this many elements is seldom in the caches when a model reads it."""
_COLUMNS = 64
"""The kernel reads this many columns of the matrix together. So if the kernel is divided into
shares, each share computes a multiple of this many columns."""


@kind("row_matmul")
class RowMatmul(Matmul, frozen=True, kw_only=True):
    """A `Matmul` of a few rows and a matrix (K,N), which reads the matrix in the order of memory.

    A product of a few rows takes as long as reading the matrix, because there is little to compute.
    """

    @property
    def rows(self) -> int:
        """The number of rows of the left matrix and of the result."""
        return prod(self.shapes[0][:-1])

    @property
    def has_shares(self) -> bool:
        """Whether the product is divided into shares, each of which computes some columns.

        A product of several rows is divided into shares, and a product of a single row into parts.
        """
        return self.rows > 1

    @property
    def most_parts(self) -> int:
        """The largest number of parts. Each part reads some columns of the matrix."""
        groups = -(-self.shapes[1][1] // _COLUMNS)
        return min(most_products(self, read=prod(self.shapes[1])), groups)

    @property
    def tvm_may_win(self) -> bool:
        """Whether TVM's kernel may be faster.

        It is not for a large matrix, which TVM's kernel reads from memory more slowly. A
        measurement would not show this: it runs a kernel several times, so the matrix is in the
        caches. In a model, a large matrix is seldom in the caches.
        """
        return prod(self.shapes[1]) < _LARGE


def as_row_matmul(op: LibraryOp) -> RowMatmul | None:
    """`op` as a product of rows and a matrix; None if it is another operator.

    The number of rows is not checked here. If there are too many rows, the kernel library refuses
    the product.
    """
    if not isinstance(op, Matmul) or isinstance(op, RowMatmul) or len(op.shapes[1]) != 2:
        return None
    return RowMatmul(**msgspec.structs.asdict(op))
