"""Attention of several heads."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from ..cuts import WHOLE, Cut, aligned_step, most_products
from ..library_op import DescribedOp, kind


@kind("attention")
class Attention(DescribedOp, frozen=True, kw_only=True):
    """softmax(queries * keys^T * scale + mask) * values, for each head.

    The arguments are queries (..., M, K), keys (..., K, N) or (..., N, K), values (..., N, V),
    optionally a mask that broadcasts to (..., M, N), and the result (..., M, V). All have the same
    number of axes.

    Attributes
    ----------
    scale: the factor of the scores.
    has_mask: whether a mask is added to the scores.
    keys_by_position: whether the keys are given as (..., N, K), not as (..., K, N).
    """

    scale: float = 1.0
    has_mask: bool = False
    keys_by_position: bool = False

    multiplies: ClassVar[bool] = True
    layer: ClassVar[str] = "product"

    @property
    def tvm_may_win(self) -> bool:
        """Return False: TVM's kernels for the separate steps of attention are never faster."""
        return False

    @property
    def flops(self) -> int:
        """The floating-point operations of the two matrix products: two for each product of two
        numbers.
        """
        *heads, rows, depth = self.shapes[0]
        positions, width = self.shapes[2][-2:]
        return 2 * prod(heads) * rows * positions * (depth + width)

    @property
    def most_parts(self) -> int:
        """The largest number of parts into which it is worth dividing the operator."""
        return most_products(self, read=0)

    def cuts(self) -> list[Cut] | None:
        """Divide by heads, along the first axis longer than 1; divide a single head by queries.

        The result is None if there is only one query of one head.
        """
        queries, keys, values = self.shapes[:3]
        axis = next((a for a, dim in enumerate(queries[:-1]) if dim > 1), None)
        if axis is None:
            return None
        by_query = axis == len(queries) - 2
        divided = [queries, self.shapes[-1], *([] if by_query else [keys, values])]
        masks = self.shapes[3:-1]
        divided += [mask for mask in masks if mask[axis] > 1]
        cut = Cut(axis, aligned_step(self, divided, axis))
        shared = WHOLE if by_query else cut
        return [cut, shared, shared, *[cut if m[axis] > 1 else WHOLE for m in masks], cut]
