"""Matrix products."""

from __future__ import annotations

from math import prod
from typing import ClassVar

import msgspec

from ..cuts import WHOLE, Cut, aligned_step, most_products
from ..endings import Ending
from ..library_op import DescribedOp, LibraryOp, kind


class Product(DescribedOp, frozen=True, kw_only=True):
    """The base class of matrix products of floats and of matrix products of integers."""

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
        """The largest number of parts into which dividing the product is worth the effort.

        The time to read the right factor counts only for a product with a single row, because only
        such a product is divided by columns.
        """
        return most_products(self, shares_weight=prod(self.shapes[0][:-1]) > 1)

    def cuts(self) -> list[Cut] | None:
        """Divide along the first axis longer than 1: by matrices, or a single matrix by rows.

        A product with a single row is divided by columns.
        """
        left, right = self.shapes[0], self.shapes[1]
        axis = next((a for a, dim in enumerate(left[:-1]) if dim > 1), None)
        if axis is None:
            return self.by_columns()
        divides_right = len(right) > 2 and axis < len(left) - 2
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

    def with_tf32(self) -> LibraryOp:
        """This product, with factors that may be rounded to TF32."""
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
