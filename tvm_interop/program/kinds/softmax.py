"""Softmax along the last axis."""

from __future__ import annotations

from typing import ClassVar

from ..cuts import Cut, along_rows
from ..library_op import DescribedOp, kind


@kind("softmax")
class Softmax(DescribedOp, frozen=True, kw_only=True):
    """Softmax of data of any shape."""

    layer: ClassVar[str] = "normalise"

    def cuts(self) -> list[Cut] | None:
        """Cut the data by rows."""
        return along_rows(self)
