"""Reads constant inputs of ONNX nodes, and refuses nodes whose result has no static shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import tvm

from ..errors import UnsupportedModelError

_MUST_BE_CONSTANT = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "ReduceL1": (1,),
    "ReduceL2": (1,),
    "ReduceLogSum": (1,),
    "ReduceLogSumExp": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceSum": (1,),
    "ReduceSumSquare": (1,),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
"""For each operator, the positions of the inputs that must be constants.

Such an input determines the shape of the result, or the axes to compute along.
"""

_SIZE_DEPENDS_ON_NUMBERS = ("NonMaxSuppression", "NonZero", "Unique")


def constant_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the numbers of a constant, or None for a value that is computed at run time."""
    return value.value.numpy() if isinstance(value, tvm.ir.GenericConst) else None


def constant_number(value: Any) -> Any:
    """Return the only element of a constant input. `check_constants` has refused inputs that are
    not constant.
    """
    array = constant_array(value)
    assert array is not None
    return array.item()


def number_like(x: Any, value: float) -> tvm.relax.Expr:
    """Return the constant `value` with the dtype of `x`."""
    return tvm.relax.const(value, str(x.ty.dtype))


def check_constants(op_type: str, inputs: Sequence[Any], opset: int) -> None:
    """Refuse a node whose result has a shape that is not known before the model runs.

    Raises
    ------
    UnsupportedModelError
        The shape depends on values that are computed at run time. If a constant input would help,
        the message names that input.
    """
    if op_type in _SIZE_DEPENDS_ON_NUMBERS:
        raise UnsupportedModelError(
            "the shape of its result depends on the numbers in its inputs, and a schedule is made "
            "for fixed shapes: leave it out of the model, and compute it from the model's outputs"
        )
    for index in _MUST_BE_CONSTANT.get(op_type, ()):
        if len(inputs) > index and isinstance(inputs[index], tvm.relax.Var):
            raise UnsupportedModelError(
                f"its input `{_input_name(op_type, index, opset)}` is computed as the model runs, "
                "and a schedule is made for fixed shapes: make it a constant, or export the model "
                "with fixed shapes"
            )


def _input_name(op_type: str, index: int, opset: int) -> str:
    return str(onnx.defs.get_schema(op_type, opset).inputs[index].name)


def text_of(value: Any) -> str:
    """Return an attribute as text. It is bytes if TVM's importer read it, and text if it is a
    default.
    """
    return value.decode() if isinstance(value, bytes) else str(value)
