"""Changes the type of a model's bfloat16 tensors to float32.

After this change, operators compute in float32, and the values between operators are not rounded to
bfloat16. An explicit conversion to bfloat16 still rounds: it becomes two casts, to bfloat16 and
back to float32. The importer replaces the two casts by one rounding. Weights of bfloat16 keep their
values, because float32 has all numbers of bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, TypeProto, numpy_helper

from ..errors import UnsupportedModelError
from ..models.external_weights import is_outside, widen_outside
from .expand import inner_graphs, nodes_of, typed_nodes
from .shapes import with_inferred_types, with_output_types

_NARROW, _WIDE = TensorProto.BFLOAT16, TensorProto.FLOAT
_OF_TYPES = frozenset(
    {"dtype", "output_datatype", "output_dtype", "precision", "softmax_precision", "stash_type"}
)
"""The names of attributes whose value is ONNX's number for a data type."""
_MOST_BYTES = 2**31
"""The largest size in bytes of a model in memory that ONNX can check or change."""


class Bfloat16Ports(NamedTuple):
    """The names of a model's inputs and outputs that are bfloat16."""

    inputs: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()


NO_PORTS = Bfloat16Ports()


def without_bfloat16(model: onnx.ModelProto, origin: str) -> tuple[onnx.ModelProto, Bfloat16Ports]:
    """Return the model with float32 in place of bfloat16, and the names of its inputs and outputs
    that were bfloat16.

    A model without bfloat16 is returned unchanged.

    Parameters
    ----------
    model: a model without local functions.
    origin: the model's description in error messages.

    Raises
    ------
    UnsupportedModelError
        A `BitCast` reads or gives bfloat16, or the weights in memory take more than 2 GiB as
        float32.
    """
    if not _has_bfloat16(model.graph):
        return model, NO_PORTS
    model = with_output_types(model)
    _check_bytes(model.graph, origin)
    weights = {tensor.name for tensor in model.graph.initializer}
    ports = Bfloat16Ports(
        frozenset(v.name for v in model.graph.input if _is_port(v) and v.name not in weights),
        frozenset(value.name for value in model.graph.output if _is_port(value)),
    )
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    _settle_by_types(changed)
    _widen(changed.graph)
    return changed, ports


def _is_port(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.elem_type == _NARROW)


def _has_bfloat16(graph: onnx.GraphProto) -> bool:
    """Whether bfloat16 occurs in a graph, as the type of a tensor or in an attribute."""
    return (
        any(tensor.data_type == _NARROW for tensor in graph.initializer)
        or any(tensor_type.elem_type == _NARROW for tensor_type in _types_in(graph))
        or any(
            _names_it(attribute) or attribute.t.data_type == _NARROW
            for node in graph.node
            for attribute in node.attribute
        )
        or any(_has_bfloat16(inner) for node in graph.node for inner in inner_graphs(node))
    )


def _names_it(attribute: onnx.AttributeProto) -> bool:
    named = attribute.name == "to" or attribute.name in _OF_TYPES
    return bool(named and attribute.type == attribute.INT and attribute.i == _NARROW)


def _types_in(graph: onnx.GraphProto) -> Iterator[TypeProto.Tensor]:
    """Yield the types of the tensors that a graph declares, including tensors within sequences."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield from _tensor_types(value.type)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("tp"):
                yield from _tensor_types(attribute.tp)


def _tensor_types(kind: TypeProto) -> Iterator[TypeProto.Tensor]:
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        yield kind.tensor_type
    elif which in ("sequence_type", "optional_type"):
        yield from _tensor_types(getattr(kind, which).elem_type)


def _check_bytes(graph: onnx.GraphProto, origin: str) -> None:
    """Refuse a model whose weights in memory take more than 2 GiB as float32."""
    total = sum(
        len(tensor.raw_data) * (2 if tensor.data_type == _NARROW else 1)
        for tensor in graph.initializer
    )
    if total >= _MOST_BYTES:
        raise UnsupportedModelError(
            f"{origin} has weights of bfloat16, which take {total / 2**30:.1f} GiB as float32, and "
            "a model in memory has at most 2 GiB: give the path of its file, from which large "
            "weights are read one by one"
        )


def _settle_by_types(model: onnx.ModelProto) -> None:
    """Replace or refuse the conversions whose meaning depends on the types that ONNX infers.

    A `CastLike` to bfloat16 becomes a `Cast`. A `Cast` from bfloat16 to float32 is not needed,
    since the numbers are float32 already. A `BitCast` from or to bfloat16 is refused.
    """
    if not any(node.op_type in ("BitCast", "Cast", "CastLike") for node in nodes_of(model.graph)):
        return
    inferred = with_inferred_types(model).graph
    for node, types, _ in list(typed_nodes(model.graph, inferred, {})):
        if node.op_type == "CastLike" and _is_narrow(node.input[1], types):
            node.op_type = "Cast"
            del node.input[1:]
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("to", _NARROW))
        elif _is_to_float(node, types) and _is_narrow(node.input[0], types):
            node.op_type = "Identity"
            del node.input[1:]
            del node.attribute[:]
        is_bits = node.op_type == "BitCast"
        if is_bits and (_is_narrow(node.input[0], types) or any(map(_names_it, node.attribute))):
            name = node.name or node.output[0]
            raise UnsupportedModelError(
                f"node `{name}` (`BitCast`) reinterprets the bits of bfloat16 numbers, which are "
                "computed in float32: use `Cast`"
            )


def _is_to_float(node: onnx.NodeProto, types: Mapping[str, TypeProto]) -> bool:
    """Whether a node converts its first input to float32."""
    if node.op_type == "CastLike":
        name = node.input[1]
        return name in types and bool(types[name].tensor_type.elem_type == _WIDE)
    to = (attribute.i for attribute in node.attribute if attribute.name == "to")
    return bool(node.op_type == "Cast" and next(to, None) == _WIDE)


def _is_narrow(name: str, types: Mapping[str, TypeProto]) -> bool:
    return name in types and bool(types[name].tensor_type.elem_type == _NARROW)


def _widen(graph: onnx.GraphProto) -> None:
    """Give the tensors of a graph and of its subgraphs the type float32, in place."""
    for tensor_type in _types_in(graph):
        if tensor_type.elem_type == _NARROW:
            tensor_type.elem_type = _WIDE
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    nodes = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            if attribute.name in _OF_TYPES and _names_it(attribute):
                attribute.i = _WIDE
        for inner in inner_graphs(node):
            _widen(inner)
        is_rounding = node.op_type == "Cast" and any(map(_names_it, node.attribute))
        nodes.extend(_rounding(node) if is_rounding else [node])
    if len(nodes) > len(graph.node):
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(kept)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type != _NARROW:
        return
    if is_outside(tensor):
        widen_outside(tensor)
        return
    array = numpy_helper.to_array(tensor).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _rounding(cast: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return a `Cast` to bfloat16, and a `Cast` of its result to float32."""
    result = cast.output[0]
    words, name = f"{result}/bfloat16", cast.name or result
    return [
        onnx.helper.make_node("Cast", [cast.input[0]], [words], name, to=_NARROW),
        onnx.helper.make_node("Cast", [words], [result], f"{name}/float32", to=_WIDE),
    ]
