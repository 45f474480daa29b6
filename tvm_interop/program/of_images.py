"""What the kinds of operators on images have in common."""

from __future__ import annotations

from math import lcm, prod
from typing import ClassVar

from .cuts import WHOLE, Cut, RowCut, aligned_step, aligned_steps, most_reads
from .library_op import DescribedOp, LibraryOp
from .row_cuts import row_cuts
from .storage import BLOCK
from .windows import Window


class OfImages(DescribedOp, frozen=True, kw_only=True):
    """What takes and makes images, whose first axis is the one of images."""

    @property
    def may_be_blocked(self) -> tuple[int, ...]:
        """Its data, what it adds, and its output."""
        last = len(self.shapes) - 1
        return (0, *[last - 1] * self.has_sum, last)

    def cuts(self) -> list[Cut] | None:
        """By images, where there are several."""
        return self.cuts_by_image() if self.shapes[0][0] > 1 else self.cuts_of_one()

    def cuts_by_image(self) -> list[Cut]:
        """Each part takes some of the images, and all of a weight."""
        divided = self.differs_by_image
        by_image = Cut(0, lcm(*(aligned_steps(self, a, 0) for a in divided)))
        return [by_image if a in divided else WHOLE for a in range(len(self.shapes))]

    @property
    def differs_by_image(self) -> tuple[int, ...]:
        """The arguments that have something of their own for each image."""
        last = len(self.shapes) - 1
        return (0, last, *[last - 1] * self.has_sum)

    def cuts_of_one(self) -> list[Cut] | None:
        """How a single image is divided; None where it is not."""
        return None

    def cuts_by_channel(self) -> list[Cut]:
        """Each part makes some channels of the result of the same ones of the data."""
        return [Cut(1, self.aligned_channels)] * 2

    @property
    def aligned_channels(self) -> int:
        """The fewest channels, in whole blocks, after which each image is aligned again."""
        images = (self.shapes[0], self.shapes[-1])
        return max(BLOCK, *(aligned_step(self, [image[1:]], 0) for image in images))


class OfWindows(OfImages, frozen=True, kw_only=True):
    """What slides a window over images.

    Attributes
    ----------
    window: how.
    """

    window: Window = Window()

    @property
    def flops(self) -> int:
        """Two for each product, of what multiplies."""
        return self.multiplies * 2 * prod(self.shapes[-1]) * prod(self.shapes[1][1:])

    @property
    def most_parts(self) -> int:
        """It reads a window for each number of its result."""
        return most_reads(self, prod(self.window.size))

    def row_cuts(self, parts: int) -> list[RowCut]:
        """See `row_cuts`."""
        return [] if self.row_axis is None else row_cuts(self, parts, self.row_axis)

    def part_by_rows(
        self, rows: RowCut, shapes: tuple[tuple[int, ...], ...], cut: tuple[int, ...]
    ) -> LibraryOp:
        """With the padding that is left to it."""
        _, left, _, right = self.window.padding
        padding = (rows.top, left, rows.bottom, right)
        return self.with_fields(shapes=shapes, cut=cut, padding=padding)


class Pooling(OfWindows, frozen=True, kw_only=True):
    """What makes one number of each window: data (N,C,H,W)."""

    def cuts_of_one(self) -> list[Cut] | None:
        """By channels."""
        return self.cuts_by_channel()


class OfQuantisedWindows(OfWindows, frozen=True, kw_only=True):
    """What slides a window over images of integers, (N,H,W,C), whose rows lie together."""

    is_quantised: ClassVar[bool] = True

    @property
    def may_be_blocked(self) -> tuple[int, ...]:
        """None: its channels lie last."""
        return ()

    @property
    def channel_axis(self) -> int:
        """The last."""
        return 3

    @property
    def row_axis(self) -> int | None:
        """Of a single image."""
        return 1 if self.shapes[0][0] == 1 else None
