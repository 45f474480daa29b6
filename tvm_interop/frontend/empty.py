"""Tensors without elements: nothing computes them, and no kernel sees them.

A value of which one size is 0 is a constant, for there is only one such. So it is put in its place
as soon as its shape is known, and what is computed of empty tensors alone, a sum or a product over
nothing, is a constant too.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

from ..lowering.static_shape import static_shape
from .constants import constant_array

MAY_BE_EMPTY = ("Expand", "TopK")
"""Operators that give nothing where a constant says so, and whose converters refuse that."""


def empty_constant(shape: Sequence[int], dtype: str) -> relax.Expr:
    """The tensor of this shape, of which one size is 0."""
    return relax.const(np.empty(shape, dtype), dtype)


def is_empty(value: Any) -> bool:
    """Whether an expression is a tensor without elements."""
    shape = static_shape(getattr(value, "ty", None))
    return shape is not None and 0 in shape


def without_empty(value: Any) -> Any:
    """`value`, or the constant that it is if it has no elements; for each field of a tuple."""
    if isinstance(value, relax.Tuple):
        fields = [without_empty(field) for field in value.fields]
        if all(map(relax.Expr.same_as, fields, value.fields)):
            return value
        return relax.Tuple(fields)
    if not is_empty(value) or isinstance(value, tvm.ir.GenericConst):
        return value
    return empty_constant(static_shape(value.ty) or (), str(value.ty.dtype))


def of_empty(op_type: str, inputs: list[Any], attrs: Mapping[str, Any], opset: int) -> Any:
    """The result of a node of which an input or output is empty; None where it must be computed.

    Its results are empty too, or it leaves an input as it is: what is joined with nothing, or
    written to at no place.
    """
    if op_type in ("ScatterElements", "ScatterND", "Scatter") and is_empty(inputs[1]):
        return inputs[0]
    if op_type == "Concat":
        full = [value for value in inputs if not is_empty(value)]
        if len(full) == 1:
            return full[0]
    results = _inferred(op_type, inputs, attrs, opset)
    if results is None or not all(0 in shape for shape, _ in results):
        return None
    constants = [empty_constant(shape, dtype) for shape, dtype in results]
    return constants[0] if len(constants) == 1 else relax.Tuple(constants)


def full_inputs(op_type: str, inputs: list[Any]) -> list[Any]:
    """The inputs of a node without those that add nothing to it."""
    if op_type != "Concat":
        return inputs
    kept = copy.copy(inputs)  # A list of TVM's, which has None behind its end.
    kept[:] = [value for value in inputs if not is_empty(value)]
    return kept


def _inferred(
    op_type: str, inputs: Sequence[Any], attrs: Mapping[str, Any], opset: int
) -> list[tuple[list[int], str]] | None:
    """Shapes and types of the results by ONNX's rules; None where these do not tell."""
    typed: list[onnx.ValueInfoProto] = []
    constants: list[onnx.TensorProto] = []
    names = []
    for i, value in enumerate(inputs):
        names.append("" if value is None else f"x{i}")
        if value is None:
            continue
        shape, dtype = static_shape(getattr(value, "ty", None)), getattr(value, "ty", None)
        if shape is None or dtype is None:
            return None
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(str(value.ty.dtype)))
        typed.append(onnx.helper.make_tensor_value_info(names[-1], kind, shape))
        known = constant_array(value)
        if known is not None and known.size <= _MOST_ELEMENTS:
            constants.append(onnx.numpy_helper.from_array(known, names[-1]))
    outputs = [f"y{i}" for i in range(attrs["tvm_custom"]["num_outputs"])]
    own = {name: value for name, value in attrs.items() if name != "tvm_custom"}
    node = onnx.helper.make_node(op_type, names, outputs, **own)
    graph = onnx.helper.make_graph(
        [node], op_type, typed, [onnx.ValueInfoProto(name=name) for name in outputs], constants
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    found = []
    for result in onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output:
        tensor = result.type.tensor_type
        sizes = [dim.dim_value for dim in tensor.shape.dim if dim.HasField("dim_value")]
        if not tensor.HasField("shape") or len(sizes) != len(tensor.shape.dim):
            return None
        found.append((sizes, str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))))
    return found


_MOST_ELEMENTS = 64
"""Tensors of shapes, axes and sizes have no more elements."""
