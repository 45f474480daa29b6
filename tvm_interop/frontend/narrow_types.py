"""Stores integers of 2 and 4 bits with 8 bits, and floats of 4 and 8 bits as float32.

NumPy has no such types, and TVM's importer would read their packed bytes as wider numbers. If an
operator outside `_READERS` reads a weight of these types, the model is refused. A `QuantizeLinear`
to a narrow integer becomes one to 8 bits, and its result is limited to the numbers of the narrow
type. A `QuantizeLinear` or `Cast` to a narrow float rounds the numbers, and its result is float32
(see `small_floats`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto

from ..errors import UnsupportedModelError
from .expand import inner_graphs, nodes_of
from .microsoft_small import UNPACKED
from .small_floats import SMALL_FLOATS

_WIDER = {"INT2": "int8", "INT4": "int8", "UINT2": "uint8", "UINT4": "uint8"}
_LIMITS = {"INT2": (-2, 1), "INT4": (-8, 7), "UINT2": (0, 3), "UINT4": (0, 15)}
_MOVES = ("Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that compute the same for numbers of any width."""
_READERS = ("Cast", "DequantizeLinear", "GatherBlockQuantized", "QuantizeLinear", *_MOVES)
_FEW_BITS = (*_WIDER, "FLOAT4", "FLOAT8")
_FLOATS = {str(TensorProto.DataType.Name(number)): number for number in SMALL_FLOATS}
"""The narrow floats that are kept as float32: ONNX's numbers of their types, by name."""
_BY_TYPE = ("BitCast", "CastLike")
"""Operators whose result depends on the type of a tensor, which is lost for narrow floats."""


def with_wider_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with integers of 2 or 4 bits widened to 8 bits, and narrow floats to float32.

    Raises
    ------
    UnsupportedModelError
        An operator outside `_READERS` reads a weight of a narrow type, or an output of the model
        has a narrow type.
    """
    kinds = ((name, _kind(tensor.data_type)) for name, tensor in _constants(model.graph))
    narrow = {name: kind for name, kind in kinds if kind.startswith(_FEW_BITS)}
    if not narrow and not any(map(_output_kind, nodes_of(model.graph))):
        return model
    _check_outputs(model.graph, narrow)
    _check_types(model.graph, narrow)
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in nodes_of(model.graph):
        for name in narrow.keys() & set(node.input):
            readers[name].append(node)
    for name, kind in narrow.items():
        for node in readers[name]:
            if not _may_read(node, kind):
                raise UnsupportedModelError(
                    f"node `{node.name or node.output[0]}` (`{node.op_type}`) reads weights of "
                    f"{kind}, which NumPy lacks: convert the model to another type"
                )
    wider = onnx.ModelProto()
    wider.CopyFrom(model)
    for name, tensor in _constants(wider.graph):
        # Two branches may have constants of one name and of different types.
        if _kind(tensor.data_type) == narrow.get(name) and narrow[name] in (*_WIDER, *_FLOATS):
            dtype = np.dtype(_WIDER.get(narrow[name], "float32"))
            array = onnx.numpy_helper.to_array(tensor).astype(dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for node in nodes_of(wider.graph):
        if node.op_type == "GatherBlockQuantized" and node.input[0] in narrow:
            node.attribute.append(onnx.helper.make_attribute(UNPACKED, 1))
    _limit_quantised(wider.graph, narrow)
    for node in nodes_of(wider.graph):
        _without_zero(node, narrow)
    return wider


def _may_read(node: onnx.NodeProto, kind: str) -> bool:
    """Whether a node may read a constant of a narrow type."""
    if kind in _FLOATS:
        return node.op_type in ("Cast", "DequantizeLinear", "QuantizeLinear", *_MOVES)
    return kind in _WIDER and node.op_type in _READERS


def _without_zero(node: onnx.NodeProto, narrow: dict[str, str]) -> None:
    """Remove the zero point of a node if it is a narrow float. Such a zero point is always 0."""
    kind = narrow.get(node.input[2], "") if len(node.input) > 2 else ""
    if kind not in _FLOATS or node.op_type not in ("DequantizeLinear", "QuantizeLinear"):
        return
    del node.input[2]
    if node.op_type == "QuantizeLinear":
        kept = [each for each in node.attribute if each.name != "output_dtype"]
        del node.attribute[:]
        node.attribute.extend(kept)
        node.attribute.append(onnx.helper.make_attribute("output_dtype", _FLOATS[kind]))


def _check_types(graph: onnx.GraphProto, narrow: dict[str, str]) -> None:
    """Refuse a model with narrow floats and an operator that depends on the type of a tensor."""
    kinds = {*narrow.values(), *map(_output_kind, nodes_of(graph))}
    for node in nodes_of(graph):
        if node.op_type in _BY_TYPE and kinds.intersection(_FLOATS):
            raise UnsupportedModelError(
                f"node `{node.name or node.output[0]}` (`{node.op_type}`) depends on the type of a "
                "tensor, and the model has floats of 4 or 8 bits, which NumPy lacks: use `Cast`"
            )


def _check_outputs(graph: onnx.GraphProto, narrow: dict[str, str]) -> None:
    """Refuse outputs of the model that have a narrow type."""
    found = dict(narrow)
    for value in graph.output:
        kind = _kind(value.type.tensor_type.elem_type)
        if kind in _FLOATS:
            found[value.name] = kind
    for node in graph.node:
        kind = _output_kind(node)
        if node.op_type in ("QuantizeLinear", *_MOVES) and not kind:
            at = 2 if node.op_type == "QuantizeLinear" else 0
            kind = found.get(node.input[at] if len(node.input) > at else "", "")
        if kind:
            found[node.output[0]] = kind
    for value in graph.output:
        if value.name in found:
            raise UnsupportedModelError(
                f"output `{value.name}` is of {found[value.name]}, which NumPy lacks: add a "
                "`DequantizeLinear` before it"
            )


def _limit_quantised(graph: onnx.GraphProto, narrow: dict[str, str]) -> None:
    """Change the result of each `QuantizeLinear` from a narrow type to 8 bits, in subgraphs too.

    Parameters
    ----------
    narrow: the narrow types of constants, by name.
    """
    nodes = []
    for node in graph.node:
        nodes.append(node)
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _limit_quantised(inner, narrow)
        if node.op_type != "QuantizeLinear":
            continue
        zero = node.input[2] if len(node.input) > 2 else ""
        kind = _output_kind(node) or narrow.get(zero, "")
        if kind not in _WIDER:
            continue
        dtype = np.dtype(_WIDER[kind])
        for attribute in node.attribute:
            if attribute.name == "output_dtype":
                attribute.i = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        result, unlimited = node.output[0], f"{node.output[0]}/unlimited"
        node.output[0] = unlimited
        limits = [f"{unlimited}/{end}" for end in ("low", "high")]
        for name, limit in zip(limits, _LIMITS[kind], strict=True):
            graph.initializer.append(onnx.numpy_helper.from_array(np.array(limit, dtype), name))
        name = f"{node.name or result}/limited"
        nodes.append(onnx.helper.make_node("Clip", [unlimited, *limits], [result], name))
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    # Remove the declared types of tensors between operators if they are narrow.
    kinds = {*_WIDER, *_FLOATS}
    values = [v for v in graph.value_info if _kind(v.type.tensor_type.elem_type) not in kinds]
    del graph.value_info[:]
    graph.value_info.extend(values)


def _output_kind(node: onnx.NodeProto) -> str:
    """The narrow type that a node sets for its result; empty if there is none."""
    name = {"QuantizeLinear": "output_dtype", "Cast": "to"}.get(node.op_type)
    stated = [_kind(each.i) for each in node.attribute if each.name == name]
    known = (*_WIDER, *_FLOATS) if node.op_type == "QuantizeLinear" else tuple(_FLOATS)
    return stated[0] if stated and stated[0] in known else ""


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yield the constants of a graph and of its subgraphs, by the names of their tensors."""
    inner = (each for node in nodes_of(graph) for each in inner_graphs(node))
    for each in (graph, *inner):
        for tensor in each.initializer:
            yield tensor.name, tensor
    for node in nodes_of(graph):
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                yield node.output[0], attribute.t


def _kind(data_type: int) -> str:
    return str(onnx.TensorProto.DataType.Name(data_type))
