"""Windows that slide over images."""

from __future__ import annotations

import msgspec


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What slides over an image; all by height and width.

    Attributes
    ----------
    padding: top, left, bottom, right.
    dilation: how far the window's pixels are from each other; 1 for side by side.
    """

    size: tuple[int, ...] = msgspec.field(default=(), name="window")
    strides: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
