"""Multiplication of images by a number for each channel."""

from __future__ import annotations

from ..cuts import Cut, aligned_step
from ..endings import Ending
from ..library_op import kind
from ..of_images import OfImages


@kind("scale")
class Scale(OfImages, frozen=True, kw_only=True):
    """Multiplies data (N,C,H,W) by factor (N or 1,C,1,1) [, adds bias (C,)]; it adds no tensor."""

    ending: Ending = Ending()

    @property
    def tvm_usually_wins(self) -> bool:
        """Return True: the fixed time of a library's call is most of this operator's time."""
        return True

    @property
    def ends(self) -> Ending:
        """The last steps of the operator: bias and activation."""
        return self.ending

    @property
    def differs_by_image(self) -> tuple[int, ...]:
        """Indices of data and output, and also of the factor if it differs between images."""
        return (*super().differs_by_image, *[1] * (self.shapes[1][0] > 1))

    def cuts_of_one(self) -> list[Cut] | None:
        """Divide a single image by channels; the factor's parts begin at aligned addresses too."""
        step = max(self.aligned_channels, aligned_step(self, [self.shapes[1][1:]], 0))
        by_block = Cut(1, step)
        return [by_block, by_block, *[Cut(0, step)] * self.has_bias, by_block]
