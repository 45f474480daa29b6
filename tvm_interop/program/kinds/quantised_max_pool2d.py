"""The largest integer of each window of an image."""

from __future__ import annotations

from ..library_op import kind
from ..of_images import OfQuantisedWindows


@kind("quantised_max_pool2d")
class QuantisedMaxPool2d(OfQuantisedWindows, frozen=True, kw_only=True):
    """Data (N,H,W,C)."""
