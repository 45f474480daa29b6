"""What quantised operators know beside those of floats."""

from __future__ import annotations

from typing import Literal

import msgspec

Step = tuple[Literal["clip", "round", "linear", "add_tensor"], float, float]
"""What is done to each number on the way to a quantised result."""


class Integers(msgspec.Struct, frozen=True, kw_only=True):
    """How integers of 8 bits become the result.

    Products of integers, each less its tensor's zero point, are added up in int32. That times the
    scale, plus the bias, then the steps and the activation, is the result: of float32, or rounded
    to int8 or uint8, halves to even, where what is out of range becomes the nearest.

    Attributes
    ----------
    data_zero, weight_zero: the integers that stand for 0.
    steps: what is done in order before the activation: `clip` to two bounds, `round` to the nearest
        integer, `linear` with a factor and what is added to the product, and `add_tensor`. Numbers
        that a kind of step does not take are 0.
    """

    data_zero: int = 0
    weight_zero: int = 0
    steps: tuple[Step, ...] = ()
