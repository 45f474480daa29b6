"""A change of a tensor's layout in memory."""

from __future__ import annotations

from typing import ClassVar

from ..library_op import DescribedOp, kind


@kind("reorder")
class Reorder(DescribedOp, frozen=True, kw_only=True):
    """Copies data from one layout to another."""

    computes: ClassVar[bool] = False

    @property
    def may_be_blocked(self) -> tuple[int, ...]:
        """Indices of the arguments that may have a blocked layout: the data and the result."""
        return (0, 1)
