"""Replaces tensors without elements by constants, so that no kernel has to handle them.

A tensor is empty if one of its sizes is 0. Its shape and dtype determine it fully, so it becomes a
constant as soon as its shape is known. A result that is computed only from empty tensors, such as a
sum over no elements, becomes a constant too.
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
"""Operators that can give an empty result from inputs that are not empty.

The result is empty if a constant input holds a size of 0, or if `k` is 0. The operators' converters
refuse these cases.
"""


def empty_constant(shape: Sequence[int], dtype: str) -> relax.Expr:
    """Return the empty tensor of this shape, in which at least one size is 0."""
    return relax.const(np.empty(shape, dtype), dtype)


def is_empty(value: Any) -> bool:
    """Whether an expression is a tensor without elements."""
    shape = static_shape(getattr(value, "ty", None))
    return shape is not None and 0 in shape


def without_empty(value: Any) -> Any:
    """Return `value` with each empty tensor replaced by a constant, also within a tuple."""
    if isinstance(value, relax.Tuple):
        fields = [without_empty(field) for field in value.fields]
        if all(map(relax.Expr.same_as, fields, value.fields)):
            return value
        return relax.Tuple(fields)
    if not is_empty(value) or isinstance(value, tvm.ir.GenericConst):
        return value
    return empty_constant(static_shape(value.ty) or (), str(value.ty.dtype))


def of_empty(op_type: str, inputs: list[Any], attrs: Mapping[str, Any], opset: int) -> Any:
    """Return the result of a node with an empty input or output, or None if a kernel is needed.

    No kernel is needed in two cases. In the first case all results are empty. In the second case
    the result equals an input: a tensor is concatenated with empty tensors only, or no elements are
    scattered into a tensor.
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
    """Return the inputs of a node; for a `Concat`, leave out the empty inputs."""
    if op_type != "Concat":
        return inputs
    # A copy has TVM's list type. Converters rely on it: it gives None for an index past the end, as
    # for an optional input that is left out.
    kept = copy.copy(inputs)
    kept[:] = [value for value in inputs if not is_empty(value)]
    return kept


def _inferred(
    op_type: str, inputs: Sequence[Any], attrs: Mapping[str, Any], opset: int
) -> list[tuple[list[int], str]] | None:
    """Return the shape and dtype of each result, found by ONNX's shape inference.

    Return None if an input's or a result's shape is unknown.
    """
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
"""ONNX's shape inference is given the values of a constant only if it has at most this many
elements.

Constants that hold shapes, axes or sizes have fewer elements.
"""
