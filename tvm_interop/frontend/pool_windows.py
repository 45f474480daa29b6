"""How the windows of a pooling lie.

Source: the definitions of `MaxPool`, `AveragePool` and `LpPool` in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Window(NamedTuple):
    """How a window goes along one axis.

    Attributes
    ----------
    before, after: zeros, or what never is the largest, at the ends.
    """

    size: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def extent(self) -> int:
        """How many elements the window spans, the gaps of its dilation included."""
        return (self.size - 1) * self.dilation + 1

    def steps(self, length: int, is_ceiled: bool) -> int:
        """How many windows there are along an axis of `length`."""
        free = length + self.before + self.after - self.extent
        if not is_ceiled:
            return free // self.stride + 1
        steps = -(-free // self.stride) + 1
        # A window that would begin behind the last element does not count.
        return steps - ((steps - 1) * self.stride >= length + self.before)


def windows_of(lengths: Sequence[int], attrs: Mapping[str, Any]) -> tuple[list[Window], bool]:
    """The window of each axis, and whether a window may hang over the end."""
    windows = given_windows(attrs["kernel_shape"], attrs)
    auto_pad = attrs.get("auto_pad", b"NOTSET").decode()
    if auto_pad == "NOTSET":
        return windows, bool(attrs.get("ceil_mode", 0))
    return [_placed(*each, auto_pad) for each in zip(windows, lengths, strict=True)], False


def given_windows(sizes: Sequence[int], attrs: Mapping[str, Any]) -> list[Window]:
    """Windows of `sizes`, as strides, dilations and pads say; `auto_pad` is left aside."""
    rank = len(sizes)
    strides = attrs.get("strides", [1] * rank)
    dilations = attrs.get("dilations", [1] * rank)
    pads = attrs.get("pads", [0] * 2 * rank)
    each = zip(sizes, strides, dilations, pads[:rank], pads[rank:], strict=True)
    return [Window(*map(int, numbers)) for numbers in each]


def _placed(window: Window, length: int, auto_pad: str) -> Window:
    """The window with the padding that `auto_pad` asks for."""
    if auto_pad == "VALID":
        return window._replace(before=0, after=0)
    steps = -(-length // window.stride)
    total = max((steps - 1) * window.stride + window.extent - length, 0)
    half = total // 2
    before = half if auto_pad == "SAME_UPPER" else total - half
    return window._replace(before=before, after=total - before)
