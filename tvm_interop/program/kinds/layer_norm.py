"""Layer normalisation along the last axis."""

from __future__ import annotations

from typing import ClassVar

from ..cuts import Cut, along_rows
from ..library_op import DescribedOp, kind


@kind("layer_norm")
class LayerNorm(DescribedOp, frozen=True, kw_only=True):
    """Layer normalisation of data (...,C), with scale (C,) and shift (C,).

    Attributes
    ----------
    epsilon: the number that is added to the variance.
    """

    layer: ClassVar[str] = "normalise"

    epsilon: float = 0.0

    def cuts(self) -> list[Cut] | None:
        """Cut the data by rows."""
        return along_rows(self)
