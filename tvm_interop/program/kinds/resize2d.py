"""Resizing of images. Pixels are squares, and the coordinates of a pixel are those of its
centre.
"""

from __future__ import annotations

from ..cuts import Cut
from ..library_op import kind
from ..of_images import OfImages


@kind("resize2d")
class Resize2d(OfImages, frozen=True, kw_only=True):
    """Resizes data (N,C,H,W).

    Row `y` of the result lies at row (y + 1/2) * H / rows - 1/2 of the data, where `rows` is the
    height of the result.

    Attributes
    ----------
    is_linear: whether a pixel of the result is a mean of the four nearest pixels, in which nearer
        pixels have more weight. If not, it is the nearest pixel.
    """

    is_linear: bool = False

    def cuts_of_one(self) -> list[Cut] | None:
        """Cut a single image by channels."""
        return self.cuts_by_channel()
