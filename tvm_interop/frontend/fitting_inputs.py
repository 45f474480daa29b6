"""Refuses inputs that an ONNX operator does not accept, with a clearer message than TVM's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ..errors import UnsupportedModelError
from .misfit import MisfitError

_OF_NUMBERS = frozenset(
    {
        "Abs", "Add", "ArgMax", "ArgMin", "CumSum", "Div", "Exp", "Greater", "GreaterOrEqual",
        "HardSigmoid", "IsNaN", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mul", "Neg", "Relu",
        "Sigmoid", "Sign", "Softmax", "Sqrt", "Sub", "Sum", "TopK",
    }
)  # fmt: skip
"""Operators that accept no booleans, in ONNX and in TVM."""

_ALONG_AN_AXIS = frozenset(
    {
        "ArgMax", "ArgMin", "Concat", "CumSum", "Gather", "GatherElements", "Hardmax",
        "LayerNormalization", "LogSoftmax", "ReverseSequence", "ScatterElements", "Slice",
        "Softmax", "Split", "TopK", "Trilu",
    }
)  # fmt: skip
"""Operators whose first input needs at least one dimension."""


def check_inputs(op_type: str, inputs: Sequence[Any]) -> None:
    """Check the types and dimensions of a node's inputs.

    Raises
    ------
    UnsupportedModelError
        An input is a tensor of booleans, and the operator accepts only numbers.
    MisfitError
        The operator works along an axis, and its first input has no dimensions.
    """
    tensors = [x for x in inputs if isinstance(getattr(x, "ty", None), relax.TensorType)]
    if op_type in _OF_NUMBERS and any(str(x.ty.dtype) == "bool" for x in tensors):
        raise UnsupportedModelError(
            "it computes with booleans, and ONNX allows only numbers here: cast them to integers"
        )
    if op_type in _ALONG_AN_AXIS and tensors and tensors[0].ty.ndim == 0:
        raise MisfitError(
            "its input has no dimensions, and the operator works along an axis: give its input at "
            "least one dimension"
        )
