"""Matrix products."""

from __future__ import annotations

from math import prod
from typing import ClassVar

import msgspec

from ..cuts import WHOLE, Cut, aligned_step, most_products
from ..endings import Ending
from ..library_op import DescribedOp, LibraryOp, kind


class Product(DescribedOp, frozen=True, kw_only=True):
    """The base class of matrix products, both of floats and of integers."""

    ending: Ending = Ending()

    multiplies: ClassVar[bool] = True
    layer: ClassVar[str] = "product"

    @property
    def ends(self) -> Ending:
        """The last steps of the operator: bias, sum and activation."""
        return self.ending

    @property
    def channel_axis(self) -> int:
        """The last axis of the result; a bias has one number for each index of this axis."""
        return len(self.shapes[-1]) - 1

    @property
    def flops(self) -> int:
        """The floating-point operations: two for each product of two numbers."""
        return 2 * prod(self.shapes[-1]) * self.shapes[0][-1]

    @property
    def most_parts(self) -> int:
        """The largest number of parts into which it is worth dividing the product.

        If a factor is divided too, each part reads less. A division by rows divides the left
        factor. A division by columns divides the right factor. A division by matrices divides both.
        """
        left, right = self.shapes[:2]
        axis = self._divided_axis
        if axis is None:
            return most_products(self, read=prod(right))
        of_right = prod(right) if self._divides_right(axis) else 0
        return most_products(self, read=prod(left) + of_right)

    @property
    def _divided_axis(self) -> int | None:
        """The first axis of the left factor, other than the last, that is longer than 1."""
        return next((a for a, dim in enumerate(self.shapes[0][:-1]) if dim > 1), None)

    def _divides_right(self, axis: int) -> bool:
        """Whether a division along `axis` of the left factor also divides the right factor."""
        return len(self.shapes[1]) > 2 and axis < len(self.shapes[0]) - 2

    def cuts(self) -> list[Cut] | None:
        """Divide along the first axis longer than 1: by matrices, or a single matrix by rows.

        A product with a single row is divided by columns.
        """
        left, right = self.shapes[:2]
        axis = self._divided_axis
        if axis is None:
            return self.by_columns()
        divides_right = self._divides_right(axis)
        cut = [left, self.shapes[-1], *([right] if divides_right else [])]
        by_axis = Cut(axis, aligned_step(self, cut, axis))
        whole = [WHOLE] * (len(self.shapes) - 3 - self.has_sum)
        return [
            by_axis,
            by_axis if divides_right else WHOLE,
            *whole,
            *[by_axis] * self.has_sum,
            by_axis,
        ]

    def by_columns(self) -> list[Cut] | None:
        """How a product with a single row is divided; None if it is not divided."""
        return None


@kind("matmul")
class Matmul(Product, frozen=True, kw_only=True):
    """Product of left (...,M,K), right (K,N) or (...,K,N) [, bias (N,)] [, a tensor to add].

    Attributes
    ----------
    allow_tf32: on a GPU, whether factors may be rounded to TF32 (see `Conv2d`).
    """

    allow_tf32: bool = False

    @property
    def product_sizes(self) -> tuple[int, int, int]:
        """The number of matrix products, and the rows and columns of each.

        If all left matrices have the same right factor, they are stacked into one product.
        Otherwise there is a product for each left matrix.
        """
        *outer, rows, columns = self.shapes[-1]
        if len(self.shapes[1]) == 2:
            return 1, prod(outer) * rows, columns
        return prod(outer), rows, columns

    @property
    def tvm_usually_wins(self) -> bool:
        """Whether the right factor is a single column: oneDNN is then several times slower."""
        return self.shapes[-1][-1] == 1

    def with_tf32(self) -> LibraryOp:
        """A copy of this product whose factors may be rounded to TF32."""
        return msgspec.structs.replace(self, allow_tf32=True)

    def by_columns(self) -> list[Cut] | None:
        """Divide a single row by columns: each part takes some columns of the right factor."""
        made = len(self.shapes[-1]) - 1
        step = aligned_step(self, [self.shapes[-1]], made)
        by_column = Cut(made, step)
        of_right = Cut(len(self.shapes[1]) - 1, step, lies_apart=True)
        return [
            WHOLE,
            of_right,
            *[Cut(0, step)] * self.has_bias,
            *[by_column] * self.has_sum,
            by_column,
        ]
