"""The windows of convolutions and poolings, which slide over images."""

from __future__ import annotations

import msgspec


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A window that slides over an image. Each field has numbers for the height and the width.

    Attributes
    ----------
    padding: numbers of pixels at the top, left, bottom and right.
    dilation: distance between neighbouring pixels of the window; 1 if they are side by side.
    """

    size: tuple[int, ...] = msgspec.field(default=(), name="window")
    strides: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
