"""Concatenation of images along their channels.

No library computes concatenations, because they often take no time: `concat_in_place` removes a
concatenation if its inputs can be written directly to their places in the result.
"""

from __future__ import annotations

from typing import ClassVar

from ..library_op import DescribedOp, kind


@kind("concat")
class Concat(DescribedOp, frozen=True, kw_only=True):
    """Concatenates any number of images (1,C,H,W)."""

    computes: ClassVar[bool] = False
    layer: ClassVar[str] = "joined"

    @property
    def may_be_blocked(self) -> tuple[int, ...]:
        """Indices of the arguments that may have a blocked layout: the first input and the
        output.
        """
        return (0, len(self.shapes) - 1)
