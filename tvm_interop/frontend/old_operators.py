"""Rewrites nodes of old ONNX opsets in the form of later opsets, before they are converted.

TVM's converters treat an old node as if it had the later form. For example, TVM's `Upsample` rounds
sizes, while ONNX truncates them. Another example is a binary operator with the attribute `axis`.
The second operand must be aligned with this axis of the first operand, but TVM aligns it with the
last axis.

Source: the definitions of `Upsample` (opsets 1 to 9), `Resize` (10) and of binary operators
(1 to 6) in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import static_shape
from .constants import constant_array, text_of
from .microsoft_small import AS_ONNX_HAS_THEM
from .resize import SHRINKING

_OF_TWO = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
_BROADCAST_BY_RULE = 7
"""The first opset in which operands are always aligned by their last axes, as in NumPy."""
_CHANGED = {"Cast": 6, "Concat": 4, "Pad": 2, "Reshape": 5, "Split": 2, "Tile": 6}
"""Operators that had another form before an opset."""
_RESIZE_OPSET = 13
_HALF_PIXELS = 16
"""The first opset in which `RoiAlign` shifts regions by half a pixel by default."""
_AXIS_IS_INPUT = 20
"""The first opset in which the axis of a `DFT` is an input. In earlier opsets it is an attribute.
"""


def in_later_form(
    bb: relax.BlockBuilder, op_type: str, inputs: list[Any], attrs: Mapping[str, Any], opset: int
) -> tuple[str, list[Any], dict[str, Any], int]:
    """Return the node's type, inputs, attributes and opset, in the form of a later opset."""
    own = dict(attrs)
    domain, _, name = op_type.rpartition(".")
    if domain and name in AS_ONNX_HAS_THEM:
        return name, inputs, own, AS_ONNX_HAS_THEM[name]
    if op_type == "Upsample" or (op_type == "Resize" and opset == 10):
        scales = inputs[1] if len(inputs) > 1 else relax.const(_scales(own))
        own |= {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
        if op_type == "Resize":
            own[SHRINKING] = b"ceil"
        if own.get("mode", b"nearest") == b"bilinear":
            own["mode"] = b"linear"
        # The list of new inputs has the importer's own list type. Converters rely on it: it returns
        # None for an index past the end, as for an optional input that is left out.
        return "Resize", type(inputs)([inputs[0], None, scales]), own, _RESIZE_OPSET
    if op_type == "RoiAlign" and opset >= _HALF_PIXELS:
        own.setdefault("coordinate_transformation_mode", b"half_pixel")
    if op_type == "DFT" and opset < _AXIS_IS_INPUT:
        axis = relax.const(np.array(own.pop("axis", 1)), "int64")
        length = inputs[1] if len(inputs) > 1 else None
        return op_type, type(inputs)([inputs[0], length, axis]), own, _AXIS_IS_INPUT
    if op_type in _OF_TWO and opset < _BROADCAST_BY_RULE:
        axis = own.pop("axis", None)
        if own.pop("broadcast", 0) and axis is not None:
            inputs = type(inputs)([inputs[0], _aligned(bb, inputs[0], inputs[1], int(axis))])
    if op_type in _CHANGED and opset < _CHANGED[op_type]:
        inputs = _in_present_form(op_type, inputs, own)
    if op_type == "PRelu" and opset < _BROADCAST_BY_RULE and int(inputs[1].ty.ndim) == 1:
        inputs = type(inputs)([inputs[0], _aligned(bb, inputs[0], inputs[1], 1)])
    return op_type, inputs, own, opset


def _in_present_form(op_type: str, inputs: list[Any], attrs: dict[str, Any]) -> list[Any]:
    """Return the inputs that an operator of `_CHANGED` has in its later form, and adapt `attrs`."""
    if op_type == "Cast":
        attrs["to"] = onnx.TensorProto.DataType.Value(text_of(attrs["to"]).upper())
    elif op_type == "Concat":
        attrs.setdefault("axis", 1)
    elif op_type == "Pad":
        attrs["pads"] = attrs.pop("paddings")
    elif op_type == "Reshape":
        return type(inputs)(
            [inputs[0], relax.const(np.array(attrs.pop("shape"), np.int64), "int64")]
        )
    elif op_type == "Split" and len(inputs) > 1:
        sizes = constant_array(inputs[1])
        if sizes is None:
            raise UnsupportedModelError("the sizes of its parts are computed: make them a constant")
        attrs["split"] = sizes.tolist()
        return type(inputs)([inputs[0]])
    elif op_type == "Tile":
        times, axis = (constant_array(value) for value in inputs[1:3])
        if times is None or axis is None:
            raise UnsupportedModelError("its `tiles` or `axis` is computed: make it a constant")
        repeats = np.ones(int(inputs[0].ty.ndim), np.int64)
        repeats[int(axis.item())] = int(times.item())
        return type(inputs)([inputs[0], relax.const(repeats, "int64")])
    return inputs


def _scales(attrs: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return the scales of an `Upsample`, and remove the attributes with scales from `attrs`."""
    if "scales" in attrs:
        return np.array(attrs.pop("scales"), np.float32)
    names = ("height_scale", "width_scale")
    return np.array([1, 1, *(attrs.pop(name) for name in names)], np.float32)


def _aligned(bb: relax.BlockBuilder, x: Any, y: Any, axis: int) -> Any:
    """Return `y` with axes of size 1 added at its end.

    The number of added axes is such that the first axis of `y` is aligned with the axis `axis` of
    `x`.
    """
    rank, shape = int(x.ty.ndim), static_shape(y.ty) or ()
    sizes = [*shape, *[1] * (rank - axis % rank - len(shape))]
    known = constant_array(y)
    if known is not None:
        return relax.const(known.reshape(sizes), str(y.ty.dtype))
    return bb.emit(relax.op.reshape(y, sizes))
