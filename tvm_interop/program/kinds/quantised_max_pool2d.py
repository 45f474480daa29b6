"""Maximum pooling of images of integers."""

from __future__ import annotations

from typing import ClassVar

from ..library_op import kind
from ..of_images import OfQuantisedWindows


@kind("quantised_max_pool2d")
class QuantisedMaxPool2d(OfQuantisedWindows, frozen=True, kw_only=True):
    """The largest integer of each window of data (N,H,W,C)."""

    layer: ClassVar[str] = "pool"
    pools: ClassVar[str] = "max"
