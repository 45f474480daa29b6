"""A change of layout."""

from __future__ import annotations

from typing import ClassVar

from ..library_op import DescribedOp, kind


@kind("reorder")
class Reorder(DescribedOp, frozen=True, kw_only=True):
    """Data, as it lies and as it is to lie."""

    computes: ClassVar[bool] = False

    @property
    def may_be_blocked(self) -> tuple[int, ...]:
        """Both."""
        return (0, 1)
