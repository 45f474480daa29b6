"""Describes how quantised operators compute with integers: zero points, sums, and further steps."""

from __future__ import annotations

from typing import Literal

import msgspec

Step = tuple[Literal["clip", "round", "linear", "add_tensor"], float, float]
"""One step in computing a quantised result: its kind and two numbers (see `Integers.steps`).

The step is applied to each number of the tensor.
"""


class Integers(msgspec.Struct, frozen=True, kw_only=True):
    """How a quantised operator turns integers of 8 bits into its result.

    First the zero point of its tensor is subtracted from each integer. The products of these
    differences are added up in int32. This sum is multiplied by the scale, and the bias is added.
    Then come the steps and the activation. The result is float32, or is rounded to int8 or uint8
    (halves to even). A number that is out of range becomes the nearest number in range.

    Attributes
    ----------
    data_zero, weight_zero: zero points: the integers that stand for 0.
    steps: steps in order, before the activation. `clip` has two bounds, `round` goes to the nearest
        integer, `linear` has a factor and a summand, and `add_tensor` adds a tensor of the
        output's shape. Every step is stored with two numbers. Numbers that a step does not use are
        0.
    """

    data_zero: int = 0
    weight_zero: int = 0
    steps: tuple[Step, ...] = ()
