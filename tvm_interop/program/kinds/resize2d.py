"""Images enlarged or shrunk, whose pixels are squares rather than points."""

from __future__ import annotations

from ..cuts import Cut
from ..library_op import kind
from ..of_images import OfImages


@kind("resize2d")
class Resize2d(OfImages, frozen=True, kw_only=True):
    """Data (N,C,H,W). Row `y` of the result lies at (y + 1/2) * H / rows - 1/2 of the data.

    Attributes
    ----------
    is_linear: whether a pixel is the mean of the four around its place, weighted by how near they
        are; else it is the nearest.
    """

    is_linear: bool = False

    def cuts_of_one(self) -> list[Cut] | None:
        """By channels."""
        return self.cuts_by_channel()
