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
    """Convolution of data (N,H,W,C), weight (O,C/groups,KH,KW), scale (O,) [, bias (O,)] [, a sum].

    The argument called a sum is a tensor to add. The result is (N,H,W,O), and is computed as
    `Integers` describes.
    """

    layer: ClassVar[str] = "conv"

    groups: int = 1
    ending: Ending = Ending()
    integers: Integers = Integers()

    multiplies: ClassVar[bool] = True

    @property
    def ends(self) -> Ending:
        """The last steps of the operator: bias, sum and activation."""
        return self.ending

    @property
    def reads_rows_of_whole(self) -> bool:
        """Whether each part reads its rows from the whole image, in a division by rows.

        The parts get the whole image if it is the only image and some of its rows begin at
        unaligned addresses.
        """
        return self.row_axis is not None and aligned_steps(self, 0, self.row_axis) > 1

    @property
    def most_parts(self) -> int:
        """The largest number of parts into which it is worth dividing the convolution.

        The number of parts is small, because each part reads the whole weight.
        """
        return most_products(self, read=0)
