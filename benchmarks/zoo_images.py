"""Two large networks that process images, for `benchmarks.zoo_export`: U2-Net and YOLOv8."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .zoo_networks import conv_relu


def halved(x: Tensor) -> Tensor:
    """Images of half the height and width, rounded up."""
    return functional.max_pool2d(x, 2, 2, ceil_mode=True)


def resized(x: Tensor, like: Tensor) -> Tensor:
    """Images of the height and width of `like`."""
    return functional.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=False)


class ResidualU(nn.Module):
    """The block of U2-Net: a small U-Net whose input is added to its result.

    Parameters
    ----------
    levels: number of sizes of images, including the size of the input. Each size is half of the
        size before.
    flat: whether all levels have the size of the input. If so, their convolutions are dilated.
    """

    def __init__(self, levels: int, before: int, inner: int, after: int, *, flat: bool) -> None:
        super().__init__()
        self.flat = flat
        dilations = [2**k if flat else 1 for k in range(levels - 1)]
        self.first = conv_relu(before, after)
        self.down = nn.ModuleList(
            conv_relu(inner if k else after, inner, d) for k, d in enumerate(dilations)
        )
        self.lowest = conv_relu(inner, inner, 2 ** (levels - 1) if flat else 2)
        self.up = nn.ModuleList(
            conv_relu(2 * inner, inner if k else after, d) for k, d in enumerate(dilations)
        )

    def forward(self, x: Tensor) -> Tensor:
        first = x = self.first(x)
        kept: list[Tensor] = []
        for down in self.down:
            x = down(halved(x) if kept and not self.flat else x)
            kept.append(x)
        x = self.lowest(x)
        for up in reversed(self.up):
            beside = kept.pop()
            x = up(torch.cat([x if self.flat else resized(x, beside), beside], 1))
        return first + x


class U2NetP(nn.Module):
    """U2-Net-P (Qin et al., 2020), which marks the main object: a U-Net made of U-Nets.

    The outputs are seven maps of the input's size. The first map joins the other six maps.
    """

    def __init__(self, width: int = 64, inner: int = 16) -> None:
        super().__init__()
        levels = (7, 6, 5, 4, 4, 4)
        self.down = nn.ModuleList(
            ResidualU(count, width if k else 3, inner, width, flat=k >= 4)
            for k, count in enumerate(levels)
        )
        self.up = nn.ModuleList(
            ResidualU(count, 2 * width, inner, width, flat=k >= 4)
            for k, count in enumerate(levels[:-1])
        )
        self.sides = nn.ModuleList(nn.Conv2d(width, 1, 3, padding=1) for _ in levels)
        self.join = nn.Conv2d(len(levels), 1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        image, kept = x, []
        for k, down in enumerate(self.down):
            x = down(halved(x) if k else x)
            kept.append(x)
        found = [kept.pop()]
        for up in reversed(self.up):
            beside = kept.pop()
            found.append(up(torch.cat([resized(found[-1], beside), beside], 1)))
        sides = zip(self.sides, reversed(found), strict=True)
        maps = [resized(side(x), image) for side, x in sides]
        return tuple(torch.sigmoid(x) for x in [self.join(torch.cat(maps, 1)), *maps])


def conv_silu(before: int, after: int, size: int = 1, stride: int = 1) -> nn.Sequential:
    """A convolution without bias, batch normalisation, and SiLU."""
    return nn.Sequential(
        nn.Conv2d(before, after, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(after),
        nn.SiLU(),
    )


class _Split(nn.Module):
    """YOLOv8's block. Half of the channels go through pairs of convolutions, one after the other.
    Both halves and the result of each pair are concatenated.
    """

    def __init__(self, before: int, after: int, pairs: int, *, add: bool) -> None:
        super().__init__()
        half = after // 2
        self.add = add
        self.first = conv_silu(before, after)
        self.pairs = nn.ModuleList(
            nn.Sequential(conv_silu(half, half, 3), conv_silu(half, half, 3)) for _ in range(pairs)
        )
        self.last = conv_silu((2 + pairs) * half, after)

    def forward(self, x: Tensor) -> Tensor:
        kept = list(self.first(x).chunk(2, 1))
        for pair in self.pairs:
            kept.append(kept[-1] + pair(kept[-1]) if self.add else pair(kept[-1]))
        return self.last(torch.cat(kept, 1))


class _Pyramid(nn.Module):
    """Three poolings one after another; their outputs and the input are joined."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = conv_silu(width, width // 2), conv_silu(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.first(x)]
        for _ in range(3):
            kept.append(functional.max_pool2d(kept[-1], 5, 1, 2))
        return self.last(torch.cat(kept, 1))


class YoloV8(nn.Module):
    """The detector YOLOv8n (Jocher et al., 2023), without the removal of boxes that overlap.

    The input has shape (batch, 3, side, side). The output has shape (batch, 4 + classes, boxes):
    centre, width and height of each box in pixels, and a probability for each class.

    Parameters
    ----------
    side: height and width of the input in pixels, a multiple of 32.
    """

    STRIDES = (8, 16, 32)
    BINS = 16
    """Each side of a box has a distance of 0 to 15 strides from its centre."""

    def __init__(self, side: int = 640, classes: int = 80) -> None:
        super().__init__()
        self.to_8 = nn.Sequential(
            conv_silu(3, 16, 3, 2), conv_silu(16, 32, 3, 2), _Split(32, 32, 1, add=True),
            conv_silu(32, 64, 3, 2), _Split(64, 64, 2, add=True),
        )  # fmt: skip
        self.to_16 = nn.Sequential(conv_silu(64, 128, 3, 2), _Split(128, 128, 2, add=True))
        self.to_32 = nn.Sequential(
            conv_silu(128, 256, 3, 2), _Split(256, 256, 1, add=True), _Pyramid(256)
        )
        self.up_16, self.up_8 = _Split(384, 128, 1, add=False), _Split(192, 64, 1, add=False)
        self.smaller_16, self.smaller_32 = conv_silu(64, 64, 3, 2), conv_silu(128, 128, 3, 2)
        self.down_16, self.down_32 = _Split(192, 128, 1, add=False), _Split(384, 256, 1, add=False)
        widths = (64, 128, 256)
        self.boxes = nn.ModuleList(self._head(width, 64, 4 * self.BINS) for width in widths)
        self.classes = nn.ModuleList(self._head(width, 80, classes) for width in widths)
        centres, strides = self._grid(side)
        self.register_buffer("centres", centres)
        self.register_buffer("strides", strides)
        self.register_buffer("distances", torch.arange(self.BINS, dtype=torch.float32))

    def _head(self, width: int, inner: int, after: int) -> nn.Sequential:
        return nn.Sequential(
            conv_silu(width, inner, 3), conv_silu(inner, inner, 3), nn.Conv2d(inner, after, 1)
        )

    def _grid(self, side: int) -> tuple[Tensor, Tensor]:
        """The centres of all boxes in pixels, of shape (2, boxes), and their strides."""
        centres, strides = [], []
        for stride in self.STRIDES:
            at = (torch.arange(side // stride) + 0.5) * stride
            rows, columns = torch.meshgrid(at, at, indexing="ij")
            centres.append(torch.stack([columns.flatten(), rows.flatten()]))
            strides.append(torch.full((rows.numel(),), float(stride)))
        return torch.cat(centres, 1), torch.cat(strides)

    def forward(self, x: Tensor) -> Tensor:
        at_8 = self.to_8(x)
        at_16 = self.to_16(at_8)
        at_32 = self.to_32(at_16)
        found_16 = self.up_16(torch.cat([self._doubled(at_32), at_16], 1))
        found_8 = self.up_8(torch.cat([self._doubled(found_16), at_8], 1))
        found_16 = self.down_16(torch.cat([self.smaller_16(found_8), found_16], 1))
        found_32 = self.down_32(torch.cat([self.smaller_32(found_16), at_32], 1))
        found = (found_8, found_16, found_32)
        boxes = [head(x).flatten(2) for head, x in zip(self.boxes, found, strict=True)]
        classes = [head(x).flatten(2) for head, x in zip(self.classes, found, strict=True)]
        return torch.cat([self._decoded(torch.cat(boxes, 2)), torch.cat(classes, 2).sigmoid()], 1)

    def _doubled(self, x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2.0, mode="nearest")

    def _decoded(self, x: Tensor) -> Tensor:
        """Boxes in pixels, from a score for each of `BINS` distances of each side of a box.

        The shape of `x` is (batch, 4 * BINS, boxes).
        """
        shares = x.unflatten(1, (4, self.BINS)).softmax(2)
        distances = (shares * self.distances[:, None]).sum(2) * self.strides
        before, after = distances.chunk(2, 1)
        return torch.cat([self.centres + (after - before) / 2, before + after], 1)
