"""Describes the schedule units of an ONNX model as layers, see `program.layers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from ..program.layers import Layer

_KIND_OF = {
    "Conv": "conv", "ConvTranspose": "conv", "Gemm": "product", "MatMul": "product",
    "MaxPool": "pool", "AveragePool": "pool", "GlobalMaxPool": "pool",
    "GlobalAveragePool": "pool", "Add": "sum", "Sum": "sum", "Concat": "joined",
    "LayerNormalization": "normalise", "Softmax": "normalise", "LRN": "normalise",
}  # fmt: skip
_POOLING_OF = {
    "MaxPool": "max", "AveragePool": "avg", "GlobalMaxPool": "global max",
    "GlobalAveragePool": "global avg",
}  # fmt: skip
_ACTIVATION_OF = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh"}


def layer_of_nodes(
    nodes: Sequence[onnx.NodeProto],
    main: str,
    shapes: Mapping[str, tuple[int, ...]],
    weights: frozenset[str],
) -> Layer:
    """Describe a schedule unit as a layer.

    Parameters
    ----------
    nodes: the operators of the unit.
    main: the name of the unit's main operator, which is also the name of the unit.
    shapes: shape of every value of the model.
    weights: names of the values that are weights.
    """
    node = next((n for n in nodes if (n.name or n.output[0]) == main), nodes[0])
    made = {value for n in nodes for value in n.output}
    read = [v for n in nodes for v in n.input if v and v not in made and v not in weights]
    inner = {value for n in nodes for value in n.input}
    last = next((v for n in reversed(nodes) for v in n.output if v not in inner), node.output[0])
    stated = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    kernel = stated.get("kernel_shape")
    if kernel is None and node.op_type == "Conv":
        kernel = shapes[node.input[1]][2:]
    pads = [*stated.get("pads", (0, 0, 0, 0))]
    half = len(pads) // 2
    activation = next((_ACTIVATION_OF[n.op_type] for n in nodes if n.op_type in _ACTIVATION_OF), "")
    return Layer(
        _KIND_OF.get(node.op_type, ""),
        tuple(shapes[v] for v in dict.fromkeys(read)),
        shapes[last],
        _sizes(stated.get("strides", (1,) * len(kernel or ()))),
        _sizes(kernel or ()),
        _sizes(a + b for a, b in zip(pads[:half], pads[half:], strict=True)) if kernel else (),
        int(stated.get("group", 1)),
        activation or "identity",
        _POOLING_OF.get(node.op_type, ""),
    )


def _sizes(numbers: Any) -> tuple[int, ...]:
    return tuple(int(number) for number in numbers)
