"""Maximum pooling of images."""

from __future__ import annotations

from typing import ClassVar

from ..library_op import kind
from ..of_images import Pooling


@kind("max_pool2d")
class MaxPool2d(Pooling, frozen=True, kw_only=True):
    """The largest number of each window of data (N,C,H,W)."""

    layer: ClassVar[str] = "pool"
    pools: ClassVar[str] = "max"
