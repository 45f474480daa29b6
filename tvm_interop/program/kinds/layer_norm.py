"""Layer normalisation along the last axis."""

from __future__ import annotations

from ..cuts import Cut, along_rows
from ..library_op import DescribedOp, kind


@kind("layer_norm")
class LayerNorm(DescribedOp, frozen=True, kw_only=True):
    """Data (...,C), scale (C,), shift (C,).

    Attributes
    ----------
    epsilon: what is added to the variance.
    """

    epsilon: float = 0.0

    def cuts(self) -> list[Cut] | None:
        """By rows."""
        return along_rows(self)
