"""How quantised operators compute with integers: zero points, and the steps to the result."""

from __future__ import annotations

from typing import Literal

import msgspec

Step = tuple[Literal["clip", "round", "linear", "add_tensor"], float, float]
"""One step in computing a quantised result: its kind and two numbers (see `Integers.steps`).

The step is applied to each number of the tensor.
"""


class Integers(msgspec.Struct, frozen=True, kw_only=True):
    """How integers of 8 bits become the result.

    The zero point of its tensor is subtracted from each integer. Products of such integers are
    added up in int32. This sum is multiplied by the scale, and the bias is added. Then come the
    steps and the activation. The result is float32, or is rounded to int8 or uint8 with halves to
    even. Numbers out of range become the nearest number in range.

    Attributes
    ----------
    data_zero, weight_zero: zero points: the integers that stand for 0.
    steps: steps in order, before the activation. `clip` has two bounds, `round` goes to the nearest
        integer, `linear` has a factor and a summand, and `add_tensor` adds a tensor of the
        output's shape. If a kind of step takes fewer than two numbers, the remaining numbers are 0.
    """

    data_zero: int = 0
    weight_zero: int = 0
    steps: tuple[Step, ...] = ()
