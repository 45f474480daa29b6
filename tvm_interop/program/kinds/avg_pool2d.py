"""Average pooling of images."""

from __future__ import annotations

from typing import ClassVar

from ..library_op import kind
from ..of_images import Pooling


@kind("avg_pool2d")
class AvgPool2d(Pooling, frozen=True, kw_only=True):
    """The mean of each window of data (N,C,H,W).

    Attributes
    ----------
    counts_padding: whether padding counts as zeros in the mean. Otherwise it does not count.
    """

    layer: ClassVar[str] = "pool"
    pools: ClassVar[str] = "avg"

    counts_padding: bool = False

    @property
    def tvm_usually_wins(self) -> bool:
        """True, because on plain tensors oneDNN adds up a window's numbers one after another.

        TVM's kernel adds up a window's numbers in the lanes of a vector. So it is faster, and also
        more accurate.
        """
        return True
