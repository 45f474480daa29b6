"""The base classes of the kinds of operators that work on images."""

from __future__ import annotations

from math import lcm, prod
from typing import ClassVar

from .cuts import WHOLE, Cut, RowCut, aligned_step, aligned_steps, most_reads
from .library_op import DescribedOp, LibraryOp
from .row_cuts import row_cuts
from .storage import MOST_CHANNELS
from .windows import Window


class OfImages(DescribedOp, frozen=True, kw_only=True):
    """An operator that takes and makes images. The images lie along the first axis."""

    @property
    def may_be_blocked(self) -> tuple[int, ...]:
        """Indices of the arguments that may have a blocked layout: data, tensor to add, output."""
        last = len(self.shapes) - 1
        return (0, *[last - 1] * self.has_sum, last)

    def cuts(self) -> list[Cut] | None:
        """Divide the operator by images if there are several; otherwise divide the single image."""
        return self.cuts_by_image() if self.shapes[0][0] > 1 else self.cuts_of_one()

    def cuts_by_image(self) -> list[Cut]:
        """Divide by images: each part takes some of the images, and the whole weight."""
        divided = self.differs_by_image
        by_image = Cut(0, lcm(*(aligned_steps(self, a, 0) for a in divided)))
        return [by_image if a in divided else WHOLE for a in range(len(self.shapes))]

    @property
    def differs_by_image(self) -> tuple[int, ...]:
        """Indices of the arguments that differ from image to image."""
        last = len(self.shapes) - 1
        return (0, last, *[last - 1] * self.has_sum)

    def cuts_of_one(self) -> list[Cut] | None:
        """How a single image is divided; None if it is not divided."""
        return None

    def cuts_by_channel(self) -> list[Cut]:
        """Divide by channels: a part makes some channels, and reads these channels of the data."""
        return [Cut(1, self.aligned_channels)] * 2

    @property
    def aligned_channels(self) -> int:
        """The smallest number of channels between two aligned addresses; at least 16."""
        images = (self.shapes[0], self.shapes[-1])
        return max(MOST_CHANNELS, *(aligned_step(self, [image[1:]], 0) for image in images))


class OfWindows(OfImages, frozen=True, kw_only=True):
    """An operator that slides a window over images.

    Attributes
    ----------
    window: the window, and how it slides.
    """

    window: Window = Window()

    @property
    def flops(self) -> int:
        """Floating-point operations: two for each product; 0 if the operator does not multiply."""
        return self.multiplies * 2 * prod(self.shapes[-1]) * prod(self.shapes[1][1:])

    @property
    def most_parts(self) -> int:
        """The largest number of parts into which it is worth dividing the operator."""
        return most_reads(self, prod(self.window.size))

    def row_cuts(self, parts: int) -> list[RowCut]:
        """Divide the operator by rows into at most `parts` parts; see `row_cuts.row_cuts`."""
        return [] if self.row_axis is None else row_cuts(self, parts, self.row_axis)

    def part_by_rows(
        self, rows: RowCut, shapes: tuple[tuple[int, ...], ...], cut: tuple[int, ...]
    ) -> LibraryOp:
        """The part that computes the rows `rows.made`, with the padding that `rows` gives."""
        _, left, _, right = self.window.padding
        padding = (rows.top, left, rows.bottom, right)
        return self.with_fields(shapes=shapes, cut=cut, padding=padding)


class Pooling(OfWindows, frozen=True, kw_only=True):
    """An operator that computes one number from each window of data (N,C,H,W)."""

    def cuts_of_one(self) -> list[Cut] | None:
        """Cut a single image by channels."""
        return self.cuts_by_channel()


class OfQuantisedWindows(OfWindows, frozen=True, kw_only=True):
    """An operator that slides a window over images of integers (N,H,W,C).

    In the layout (N,H,W,C), the rows of an image are contiguous in memory.
    """

    is_quantised: ClassVar[bool] = True

    @property
    def may_be_blocked(self) -> tuple[int, ...]:
        """Return no indices: no argument may have a blocked layout, because channels are the last
        axis.
        """
        return ()

    @property
    def channel_axis(self) -> int:
        """The last axis, which holds the channels."""
        return 3

    @property
    def row_axis(self) -> int | None:
        """The axis of the rows if there is a single image; else None."""
        return 1 if self.shapes[0][0] == 1 else None
