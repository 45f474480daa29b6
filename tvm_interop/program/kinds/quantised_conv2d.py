"""Convolutions of images of integers."""

from __future__ import annotations

from typing import ClassVar

from ..cuts import aligned_steps, most_products
from ..endings import Ending
from ..integers import Integers
from ..library_op import kind
from ..of_images import OfQuantisedWindows


@kind("quantised_conv2d")
class QuantisedConv2d(OfQuantisedWindows, frozen=True, kw_only=True):
    """Data (N,H,W,C), weight (O,C/groups,KH,KW), scale (O,) [, bias (O,)] [, a tensor to add].

    The result is (N,H,W,O). `Integers` says how it comes about.
    """

    groups: int = 1
    ending: Ending = Ending()
    integers: Integers = Integers()

    multiplies: ClassVar[bool] = True

    @property
    def ends(self) -> Ending:
        """Its `ending`."""
        return self.ending

    @property
    def reads_rows_of_whole(self) -> bool:
        """Where its rows are no multiple of the alignment."""
        return self.row_axis is not None and aligned_steps(self, 0, self.row_axis) > 1

    @property
    def most_parts(self) -> int:
        """By its products; parts by images or rows share the weight."""
        return most_products(self, shares_weight=True)
