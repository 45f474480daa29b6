"""Stores 2-bit and 4-bit integer weights with 8 bits, if operators of `_READERS` read them.

NumPy has no such types, and TVM's importer would read their packed bytes as wider numbers. If any
other operator reads a weight of such a type, the model is refused.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx

from ..errors import UnsupportedModelError
from .microsoft_small import UNPACKED

_WIDER = {"INT2": "int8", "INT4": "int8", "UINT2": "uint8", "UINT4": "uint8"}
_READERS = ("DequantizeLinear", "GatherBlockQuantized")
_FEW_BITS = (*_WIDER, "FLOAT4", "FLOAT8")


def with_wider_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with integer weights of 2 or 4 bits widened to 8.

    Raises
    ------
    UnsupportedModelError
        An operator that `_READERS` lacks reads such a weight, or an operator reads floats of 4 or 8
        bits.
    """
    narrow = {t.name: t for t in model.graph.initializer if _kind(t).startswith(_FEW_BITS)}
    if not narrow:
        return model
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in model.graph.node:
        for name in narrow.keys() & set(node.input):
            readers[name].append(node)
    wider = onnx.ModelProto()
    wider.CopyFrom(model)
    for tensor in wider.graph.initializer:
        if tensor.name not in narrow:
            continue
        kind = _kind(tensor)
        for node in readers[tensor.name]:
            if kind not in _WIDER or node.op_type not in _READERS:
                raise UnsupportedModelError(
                    f"node `{node.name or node.output[0]}` (`{node.op_type}`) reads weights of "
                    f"{kind}, which NumPy lacks: convert the model to another type"
                )
        if kind in _WIDER:
            array = onnx.numpy_helper.to_array(tensor).astype(np.dtype(_WIDER[kind]))
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for node in wider.graph.node:
        if node.op_type == "GatherBlockQuantized" and node.input[0] in narrow:
            node.attribute.append(onnx.helper.make_attribute(UNPACKED, 1))
    return wider


def _kind(tensor: onnx.TensorProto) -> str:
    return str(onnx.TensorProto.DataType.Name(tensor.data_type))
