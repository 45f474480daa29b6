"""The last steps of an operator on each number of its result: bias, sum and activation."""

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
    has_bias: whether a bias is added.
    has_sum: whether a tensor of the output's shape is added before the activation. In a quantised
        operator, a step `add_tensor` adds this tensor of integers.
    activation: the function applied last. `swish` is x * sigmoid(x), `hardsigmoid` is
        clip(x / 6 + 1 / 2, 0, 1), and `hardswish` is x * hardsigmoid(x). `gelu_tanh` approximates
        `gelu` by a hyperbolic tangent.
    clip_low, clip_high: bounds of the activation `clip`.
    """

    has_bias: bool = False
    has_sum: bool = False
    activation: Activation = "none"
    clip_low: float = 0.0
    clip_high: float = 0.0
