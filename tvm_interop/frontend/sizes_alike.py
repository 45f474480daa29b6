"""Knows operators that treat each index alike, whatever the sizes of their inputs.

`size_values` cannot compute the results of some nodes that depend only on sizes and constants. Two
examples are operators that ONNX's reference lacks, and operators on constants that are too large to
be followed. If the inputs of such a node have the same elements for all sizes at all indices that
they have in common, the results of the operators listed here have this property too. A sum over an
axis that grows does not have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import onnx

ELEMENTWISE = frozenset(
    (
        "Abs", "Add", "And", "BiasGelu", "Cast", "CastLike", "Ceil", "Clip", "Cos", "Div", "Elu",
        "Equal", "Erf", "Exp", "FastGelu", "Floor", "Gelu", "Greater", "GreaterOrEqual",
        "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max",
        "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "QuickGelu", "Reciprocal", "Relu", "Round",
        "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh", "Where",
        "Xor",
    )
)  # fmt: skip
_GATHERS = ("Gather", "GatherElements", "GatherND")
_DOMAINS = ("", "ai.onnx", "com.microsoft")


class Wanted(NamedTuple):
    """What must hold for the inputs of a node, so that its results are alike for all sizes.

    Attributes
    ----------
    alike: the inputs that must be alike.
    equal: the inputs that must be the same for all sizes, with the same shape.
    """

    alike: list[str]
    equal: list[str]


def wanted_of(node: onnx.NodeProto, value_of: Callable[[str], np.ndarray | None]) -> Wanted | None:
    """Return what must hold for the inputs of a node.

    Return None if the results may differ even if all inputs are alike.

    Parameters
    ----------
    value_of: returns the elements of a constant; None if they are not known.
    """
    names = [name for name in node.input if name]
    if node.domain not in _DOMAINS or not names:
        return None
    if node.op_type in ELEMENTWISE:
        return Wanted(names, [])
    if node.op_type in _GATHERS:
        return Wanted(names[1:], names[:1])
    # In a product, the second factor says how many elements are multiplied and added.
    if node.op_type in ("MatMul", "Squeeze", "Transpose", "Unsqueeze"):
        return Wanted(names[:1], names[1:])
    if node.op_type == "Expand" or (node.op_type == "Slice" and _is_prefix(node, value_of)):
        return Wanted(names[:1], [])
    return None


def _is_prefix(node: onnx.NodeProto, value_of: Callable[[str], np.ndarray | None]) -> bool:
    """Whether a `Slice` keeps the elements from a fixed index on, in their order."""
    names = [*node.input, *[""] * 5][:5]
    starts, steps = (value_of(names[i]) if names[i] else None for i in (1, 4))
    if starts is None or (starts < 0).any() or (names[4] and steps is None):
        return False
    has_axes = not names[3] or value_of(names[3]) is not None
    return has_axes and (steps is None or bool((steps > 0).all()))
