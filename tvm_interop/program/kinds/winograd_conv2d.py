"""Convolutions by Winograd's algorithm."""

from __future__ import annotations

import msgspec

from ..library_op import LibraryOp, kind
from .conv2d import Conv2d


@kind("winograd_conv2d")
class WinogradConv2d(Conv2d, frozen=True, kw_only=True):
    """A `Conv2d` with a window of 3x3 and strides of 1, computed by the algorithm F(4x4,3x3).

    The algorithm computes a quarter of the products that a direct convolution computes (Lavin and
    Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, section 4.1). Its results
    are rounded differently (`docs/numbers.rst`). The tensors may be stored as bfloat16, but the
    algorithm multiplies numbers of float32.
    """

    @property
    def packed_nbytes(self) -> int:
        """The bytes of the weight while the operator runs: 36 numbers for each 3x3 window."""
        made, read = self.shapes[1][:2]
        return 36 * 4 * made * read


def as_winograd(op: LibraryOp) -> WinogradConv2d | None:
    """`op` as a convolution by Winograd's algorithm; None if the algorithm cannot compute `op`.

    The result multiplies numbers of float32, even if `op` rounds them to bfloat16. Its tensors are
    stored in the same types as the tensors of `op`.
    """
    if not isinstance(op, Conv2d) or isinstance(op, WinogradConv2d):
        return None
    if (op.window.size, op.window.strides, op.groups) != ((3, 3), (1, 1), 1):
        return None
    fields = msgspec.structs.asdict(op)
    if op.dtype == "bfloat16":
        fields |= {"dtype": "float32", "stored": op.stored_types}
    return WinogradConv2d(**fields)
