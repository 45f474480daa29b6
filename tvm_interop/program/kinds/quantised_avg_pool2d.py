"""Average pooling of images of integers."""

from __future__ import annotations

from typing import ClassVar

from ..integers import Integers
from ..library_op import kind
from ..of_images import OfQuantisedWindows


@kind("quantised_avg_pool2d")
class QuantisedAvgPool2d(OfQuantisedWindows, frozen=True, kw_only=True):
    """The mean of each window of data (N,H,W,C).

    The field `steps` of `Integers` lists the steps that are applied to the mean before it is
    rounded.

    Attributes
    ----------
    counts_padding: whether padding counts as zeros in the mean. Otherwise it does not count.
    """

    layer: ClassVar[str] = "pool"
    pools: ClassVar[str] = "avg"

    counts_padding: bool = False
    integers: Integers = Integers()
