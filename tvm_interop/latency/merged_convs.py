"""Computes latencies of merged convolutions, for a device on which nothing is measured.

IOS merges convolutions of the same tensor into a wider convolution (Ding et al., MLSys 2021,
section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .base import LatencyModel, LatencyOver

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class ConvShape:
    """The shape of a convolution in float32, with one group and without dilation.

    Attributes
    ----------
    data: name of the tensor that the convolution reads.
    image: height and width of that tensor.
    in_channels, channels: numbers of channels that the convolution reads and writes.
    window: height and width of its kernel.
    padding: at the top, left, bottom and right.
    strides: along height and width.
    activation: name of the activation that follows it; empty if there is none.
    images: number of images in a batch.
    """

    data: str
    image: tuple[int, int]
    in_channels: int
    channels: int
    window: tuple[int, int]
    padding: tuple[int, int, int, int]
    strides: tuple[int, int]
    activation: str = ""
    images: int = 1

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of the tensor that the convolution writes."""
        height, width = (
            (self.image[axis] + self.padding[axis] + self.padding[axis + 2] - self.window[axis])
            // self.strides[axis]
            + 1
            for axis in range(2)
        )
        return height, width

    @property
    def values(self) -> int:
        """Number of values that the convolution writes."""
        return self.images * self.channels * math.prod(self.output)

    @property
    def flops(self) -> int:
        """Floating-point operations of the convolution; a multiply-add counts as two."""
        return 2 * self.values * self.in_channels * math.prod(self.window)

    @property
    def nbytes(self) -> int:
        """Bytes of the images, weights and biases that the convolution reads, and of its output."""
        read = self.images * self.in_channels * math.prod(self.image)
        weights = self.channels * (1 + self.in_channels * math.prod(self.window))
        return _FLOAT_BYTES * (read + weights + self.values)

    @property
    def kind(self) -> tuple[object, ...]:
        """A key that says which convolutions may be merged.

        Only convolutions with equal keys can be merged, and only if their sizes allow it.
        """
        return self.data, self.strides, self.output, self.activation, self.images


def merged_conv(convs: Sequence[ConvShape]) -> ConvShape | None:
    """The one convolution that replaces `convs` if they are merged; None if they cannot be merged.

    `convs` must be two or more convolutions, all of the same `kind`. The merged kernel has the
    largest height and width of all kernels, and the merged padding is the largest padding. Each
    kernel must fit into the merged kernel, at an offset of the largest padding minus its own
    padding. The other weights of the merged kernel are 0. Compilations merge by the same rules
    (`lowering.conv_chains`).
    """
    first = convs[0] if convs else None
    if first is None or len(convs) < 2 or any(conv.kind != first.kind for conv in convs):
        return None
    window = max(c.window[0] for c in convs), max(c.window[1] for c in convs)
    top, left, bottom, right = (max(c.padding[side] for c in convs) for side in range(4))
    for conv in convs:
        for axis, offset in enumerate((top - conv.padding[0], left - conv.padding[1])):
            if conv.window[axis] + offset > window[axis]:
                return None
    merged = replace(
        first,
        channels=sum(conv.channels for conv in convs),
        window=window,
        padding=(top, left, bottom, right),
    )
    return merged if merged.output == first.output else None


class MergingConvs(LatencyOver):
    """Adds the latencies of merged convolutions to a latency model that does not know them.

    The latency of the merged operator is given by `price`. Its output must be cut into the outputs
    of the single convolutions. At batch 1, cutting takes no time, because each single output is
    contiguous in the merged output. For larger batches, `price` must include the time of cutting.

    Parameters
    ----------
    base: the model that knows operators and stages.
    convs: the convolutions among the operators, by id.
    price: the microseconds of a convolution that runs alone.
    """

    def __init__(
        self,
        base: LatencyModel,
        convs: Mapping[int, ConvShape],
        price: Callable[[ConvShape], float],
    ) -> None:
        super().__init__(base)
        self._convs = convs
        self._price = price

    def mergeable(self) -> Sequence[Sequence[int]]:
        """Sets of operators of the same kind. Two or more operators of a set might be merged."""
        sets: dict[tuple[object, ...], list[int]] = {}
        for op, conv in sorted(self._convs.items()):
            sets.setdefault(conv.kind, []).append(op)
        return [ops for ops in sets.values() if len(ops) > 1]

    def merges(self, sets: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        """Microseconds of each merged set, shape (len(sets),); inf if a set cannot be merged."""
        prices_us = []
        for ops in sets:
            known = [self._convs[op] for op in ops if op in self._convs]
            merged = merged_conv(known) if len(known) == len(ops) else None
            prices_us.append(math.inf if merged is None else self._price(merged))
        return np.array(prices_us, dtype=np.float64)
