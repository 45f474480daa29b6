"""A range of the channels of an image.

No library computes this kind of operator, because it often takes no time: `parts_in_place` removes
it, and the operators that follow read the channels where they lie in the image.
"""

from __future__ import annotations

from typing import ClassVar

from ..library_op import DescribedOp, kind


@kind("part")
class Part(DescribedOp, frozen=True, kw_only=True):
    """Some consecutive channels (1,c,H,W) of an image (1,C,H,W).

    Attributes
    ----------
    begin: the index of the first channel.
    """

    computes: ClassVar[bool] = False

    begin: int = 0

    @property
    def may_be_blocked(self) -> tuple[int, ...]:
        """Indices of the arguments that may have a blocked layout: the input and the output."""
        return (0, 1)
