"""Images joined along their channels: no library's, as it may cost nothing.

Where its inputs can be written into their places, `concat_in_place` removes it.
"""

from __future__ import annotations

from typing import ClassVar

from ..library_op import DescribedOp, kind


@kind("concat")
class Concat(DescribedOp, frozen=True, kw_only=True):
    """Any number of images (1,C,H,W)."""

    computes: ClassVar[bool] = False

    @property
    def may_be_blocked(self) -> tuple[int, ...]:
        """Its first input and its output."""
        return (0, len(self.shapes) - 1)
