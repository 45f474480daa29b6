"""Computes the sizes, strides and padding of pooling windows from a node's attributes.

Source: the definitions of `MaxPool`, `AveragePool` and `LpPool` in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Window(NamedTuple):
    """A pooling window along one axis.

    Attributes
    ----------
    size: the number of elements in the window.
    stride: distance between the starts of neighbouring windows, in elements.
    dilation: distance between neighbouring elements of a window, in elements.
    before, after: padding at the two ends of the axis, in elements. Padding is never the largest
        element of a window, and is 0 in sums.
    """

    size: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def extent(self) -> int:
        """The number of elements that the window spans, including the gaps of its dilation."""
        return (self.size - 1) * self.dilation + 1

    def steps(self, length: int, is_ceiled: bool) -> int:
        """Return the number of windows along an axis of `length` elements.

        With `is_ceiled`, the last window may extend past the end of the axis.
        """
        free = length + self.before + self.after - self.extent
        if not is_ceiled:
            return free // self.stride + 1
        steps = -(-free // self.stride) + 1
        # A window that would begin after the last element is not counted.
        return steps - ((steps - 1) * self.stride >= length + self.before)


def windows_of(lengths: Sequence[int], attrs: Mapping[str, Any]) -> tuple[list[Window], bool]:
    """Return the window of each axis, and whether windows may extend past the end of the axis."""
    windows = given_windows(attrs["kernel_shape"], attrs)
    auto_pad = attrs.get("auto_pad", b"NOTSET").decode()
    if auto_pad == "NOTSET":
        return windows, bool(attrs.get("ceil_mode", 0))
    return [_placed(*each, auto_pad) for each in zip(windows, lengths, strict=True)], False


def given_windows(sizes: Sequence[int], attrs: Mapping[str, Any]) -> list[Window]:
    """Return windows of `sizes` with the strides, dilations and pads in `attrs`.

    The attribute `auto_pad` is ignored.
    """
    rank = len(sizes)
    strides = attrs.get("strides", [1] * rank)
    dilations = attrs.get("dilations", [1] * rank)
    pads = attrs.get("pads", [0] * 2 * rank)
    each = zip(sizes, strides, dilations, pads[:rank], pads[rank:], strict=True)
    return [Window(*map(int, numbers)) for numbers in each]


def _placed(window: Window, length: int, auto_pad: str) -> Window:
    """Return the window with the padding that the attribute `auto_pad` requires."""
    if auto_pad == "VALID":
        return window._replace(before=0, after=0)
    steps = -(-length // window.stride)
    total = max((steps - 1) * window.stride + window.extent - length, 0)
    half = total // 2
    before = half if auto_pad == "SAME_UPPER" else total - half
    return window._replace(before=before, after=total - before)
