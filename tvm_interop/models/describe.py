"""Describes a network by numbers that are computed from its graph, without running it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from .catalog import skeleton
from .units import unit_graph


@dataclass(frozen=True)
class Description:
    """The properties of a network, as `describe` returns them.

    Attributes
    ----------
    operators, edges, width: size of the graph of schedule units (see `units.schedule_units`). The
        width is the largest number of units that are all independent of each other.
    parameters: number of floating-point weights.
    gflops: floating-point operations of the convolutions and matrix products in one run at batch 1,
        divided by 1e9. A multiplication and an addition count as two operations.
    inputs: shape and type of each input at batch 1, such as `float32[1, 3, 224, 224]`, by name.
    """

    name: str
    operators: int
    edges: int
    width: int
    parameters: int
    gflops: float
    inputs: dict[str, str]


def describe(name: str) -> Description:
    """Describe the network `name` at its default size; raises the errors of `build`."""
    model = skeleton(name)
    graph = unit_graph(model)
    return Description(
        name=name,
        operators=graph.num_ops,
        edges=graph.num_edges,
        width=graph.width,
        parameters=count_parameters(model),
        gflops=count_flops(model) / 1e9,
        inputs={value.name: _type(value) for value in model.graph.input},
    )


def count_parameters(model: onnx.ModelProto) -> int:
    """Number of floating-point values in the weights of `model`."""
    weights = (w for w in model.graph.initializer if w.data_type == TensorProto.FLOAT)
    return sum(math.prod(weight.dims) for weight in weights)


def count_flops(model: onnx.ModelProto) -> int:
    """Floating-point operations of all convolutions and matrix products of `model` in one run."""
    shapes = value_shapes(model)
    return sum(node_flops(node, shapes) for node in model.graph.node)


def value_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """The shape of every value of `model`, weights too, by name."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    return shapes


def node_flops(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> int:
    """Floating-point operations of a convolution or matrix product; 0 for other operators."""
    if node.op_type == "Conv":
        summed = math.prod(shapes[node.input[1]][1:])
    elif node.op_type == "MatMul":
        summed = shapes[node.input[0]][-1]
    elif node.op_type == "Gemm":
        transposed = any(a.name == "transA" and a.i for a in node.attribute)
        summed = shapes[node.input[0]][0 if transposed else 1]
    else:
        return 0
    return 2 * math.prod(shapes[node.output[0]]) * summed


def _type(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return f"{dtype}{[dim.dim_value for dim in tensor.shape.dim]}"
