"""What an operator does to each number of its result at the end."""

from __future__ import annotations

from typing import Literal

import msgspec

Activation = Literal[
    "none",
    "relu",
    "clip",
    "sigmoid",
    "tanh",
    "swish",
    "hardswish",
    "hardsigmoid",
    "gelu",
    "gelu_tanh",
]


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """A bias, a tensor to add, and an activation, in this order.

    Attributes
    ----------
    has_sum: whether a tensor of the output's shape is added, before the activation; of what is
        quantised, by one of the steps, and as the integers that it holds.
    activation: what is done to the sum at the end; `swish` is x * sigmoid(x), `hardsigmoid`
        clip(x / 6 + 1 / 2, 0, 1), `hardswish` x times that, and `gelu_tanh` the approximation of
        `gelu` by a hyperbolic tangent.
    clip_low, clip_high: of the activation `clip`.
    """

    has_bias: bool = False
    has_sum: bool = False
    activation: Activation = "none"
    clip_low: float = 0.0
    clip_high: float = 0.0
