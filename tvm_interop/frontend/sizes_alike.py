"""Knows operators that treat each index alike, whatever the sizes of their inputs.

`size_values` cannot compute the results of some nodes that depend only on sizes and constants. Two
examples are operators that ONNX's reference lacks, and operators on constants that are too large to
be followed. If the inputs of such a node have the same elements for all sizes at all indices that
they have in common, the results of the operators listed here have this property too. A sum over an
axis that grows does not have it.
"""

from __future__ import annotations

from collections.abc import Callable, Set

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


def inputs_to_be_alike(
    node: onnx.NodeProto, constants: Set[str], value_of: Callable[[str], np.ndarray | None]
) -> list[str] | None:
    """Return the inputs of a node that must be alike for all sizes, so that its results are too.

    Return None if the results may differ even if all inputs are alike.

    Parameters
    ----------
    constants: the names of values that are the same for all sizes.
    value_of: returns the elements of a constant; None if they are not known.
    """
    first, rest = (node.input[:1], node.input[1:])
    others = [name for name in rest if name and name not in constants]
    if node.domain not in _DOMAINS or not first:
        return None
    if node.op_type in ELEMENTWISE:
        wanted = list(node.input)
    elif node.op_type in _GATHERS and first[0] in constants:
        wanted = others
    elif node.op_type in ("Squeeze", "Transpose", "Unsqueeze") and not others:
        wanted = list(first)
    elif node.op_type == "MatMul" and not others:
        # The constant factor says how many elements are multiplied and added.
        wanted = list(first)
    elif node.op_type == "Expand" or (node.op_type == "Slice" and _is_prefix(node, value_of)):
        wanted = list(first)
    else:
        return None
    return [name for name in wanted if name and name not in constants]


def _is_prefix(node: onnx.NodeProto, value_of: Callable[[str], np.ndarray | None]) -> bool:
    """Whether a `Slice` keeps the elements from a fixed index on, in their order."""
    names = [*node.input, *[""] * 5][:5]
    starts, steps = (value_of(names[i]) if names[i] else None for i in (1, 4))
    if starts is None or (starts < 0).any() or (names[4] and steps is None):
        return False
    has_axes = not names[3] or value_of(names[3]) is not None
    return has_axes and (steps is None or bool((steps > 0).all()))
