"""Convolutions of images."""

from __future__ import annotations

from math import prod
from typing import ClassVar

import msgspec

from ..cuts import WHOLE, Cut, lies_apart, most_products
from ..endings import Ending
from ..library_op import LibraryOp, kind
from ..of_images import OfWindows
from ..storage import MOST_CHANNELS, block_of

_SMALL_IMAGE = 4096
"""The largest number of pixels for which a library's kernel also wins with few channels; measured
by `python -m benchmarks.kernel_winners`."""


@kind("conv2d")
class Conv2d(OfWindows, frozen=True, kw_only=True):
    """Convolution of data (N,C,H,W), weight (O,C/groups,KH,KW) [, bias (O,)] [, a tensor to add].

    Attributes
    ----------
    allow_tf32: on a GPU, whether factors of float32 may be rounded to TF32, which keeps 10 of the
        23 fraction bits and is several times faster.
    """

    layer: ClassVar[str] = "conv"

    groups: int = 1
    ending: Ending = Ending()
    allow_tf32: bool = False

    multiplies: ClassVar[bool] = True

    @property
    def ends(self) -> Ending:
        """The last steps of the operator: bias, sum and activation."""
        return self.ending

    @property
    def tvm_may_win_on_cpu(self) -> bool:
        """Whether TVM's kernel may be clearly faster than a library's on a CPU.

        A library's kernel computes 16 channels at once. TVM's kernel is not tried if the numbers of
        channels are multiples of 16 and the window has more than one row and column. With only 16
        channels on both sides, the image must also be small. For such convolutions, TVM's kernels
        would save less than 1% of the time (`python -m benchmarks.kernel_winners`).
        """
        made, read, *window = self.shapes[1]
        whole_vectors = not (read % MOST_CHANNELS or made % MOST_CHANNELS)
        if self.groups > 1 or min(window) == 1 or not whole_vectors:
            return True
        few = read + made <= 2 * MOST_CHANNELS
        return few and prod(self.shapes[0][2:]) > _SMALL_IMAGE

    @property
    def product_sizes(self) -> tuple[int, int, int]:
        """One matrix product for each group.

        The product has a row for each pixel of the result, and a column for each channel. cuDNN's
        documentation calls a convolution that is computed in this way an "implicit GEMM".
        """
        images, channels, *pixels = self.shapes[-1]
        return self.groups, images * prod(pixels), channels // self.groups

    def with_tf32(self) -> LibraryOp:
        """A copy of this convolution whose factors may be rounded to TF32."""
        return msgspec.structs.replace(self, allow_tf32=True)

    def cuts_of_one(self) -> list[Cut] | None:
        """Divide one image by whole blocks of result channels, or several groups by groups."""
        step = self.aligned_channels
        by_block = Cut(1, step)
        more = [Cut(0, step)] * self.has_bias + [by_block] * self.has_sum
        if self.groups == 1:
            return [WHOLE, Cut(0, step), *more, by_block]
        if self._is_depthwise:
            return [by_block, Cut(0, step), *more, by_block]
        return self._by_groups()

    @property
    def row_axis(self) -> int | None:
        """The axis of the rows, for one image whose result has contiguous rows; else None.

        The rows of a blocked image are contiguous in memory if the image has one block of channels.
        The rows of a plain image are contiguous if the image has one channel.
        """
        return 2 if self.shapes[0][0] == 1 and not lies_apart(self, -1, 2) else None

    @property
    def reads_rows_of_whole(self) -> bool:
        """Whether each part reads its rows from the whole image, in a division by rows.

        The parts need the whole image if it has the plain layout or several blocks of channels,
        because its rows are then not contiguous in memory. A part may begin at any row of the
        image, and its kernel first copies the part's rows. For 64 channels and a 3x3 window, the
        copy takes about a tenth of the kernel's time.
        """
        return self.layouts[0] == "plain" or lies_apart(self, 0, 2)

    @property
    def most_parts(self) -> int:
        """The largest number of parts into which it is worth dividing the convolution.

        The number of parts depends on how many products the convolution computes. For a depthwise
        convolution, it depends on how many values are read, because reading limits the speed.
        """
        if self._is_depthwise:
            return super().most_parts
        shares_weight = self.shapes[0][0] > 1 or self.row_axis is not None
        return most_products(self, read=0 if shares_weight else prod(self.shapes[1]))

    def ends_too_narrow(self, cut: Cut) -> bool:
        """Whether `cut` would give the last part too few channels for a kernel that uses vectors.

        oneDNN has no vector kernel for a depthwise convolution in bfloat16 with fewer channels than
        a block. Without a vector kernel, a convolution of 8 channels of 56x56 took 3.3 ms.
        """
        if not self._is_depthwise or self.dtype != "bfloat16" or cut.axis != 1:
            return False
        return 0 < self.shapes[0][1] % cut.step < MOST_CHANNELS

    def part(self, shapes: tuple[tuple[int, ...], ...], cut: tuple[int, ...]) -> LibraryOp:
        """The part with tensors of these `shapes`. The shapes decide the number of groups."""
        groups = shapes[0][1] // shapes[1][1]
        return msgspec.structs.replace(self, shapes=shapes, cut=cut, groups=groups)

    @property
    def _is_depthwise(self) -> bool:
        return self.groups == self.shapes[0][1] == self.shapes[-1][1]

    def _by_groups(self) -> list[Cut] | None:
        read, made = (self.shapes[i][1] // self.groups for i in (0, -1))
        block = max(map(block_of, self.layouts))
        if read % block or made % block:
            # The convolution is not divided, because a part would begin in the middle of a block of
            # channels.
            return None
        by_group = Cut(1, made)
        more = [Cut(0, made)] * self.has_bias + [by_group] * self.has_sum
        return [Cut(1, read), Cut(0, made), *more, by_group]
