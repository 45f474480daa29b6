"""Spells out operators that no converter knows, where ONNX defines them by simpler ones."""

from __future__ import annotations

from collections.abc import Sequence, Set

import onnx
import onnx.inliner

_OWN = "tvm_interop.written_out"
"""A domain that no model has."""
_MOST_ROUNDS = 4
"""Definitions that use such operators again nest no deeper."""


def expand_functions(model: onnx.ModelProto, known: Set[str]) -> onnx.ModelProto:
    """`model` with each operator that is not `known` replaced by its definition, if it has one.

    ONNX defines many of its operators as functions: `Attention`, `RotaryEmbedding`,
    `LpNormalization`, the losses. An operator without such a definition stays.
    """
    for _ in range(_MOST_ROUNDS):
        wanted = sorted(
            {
                (node.domain, node.op_type)
                for node in model.graph.node
                if node.op_type not in known and _is_function(node, model)
            }
        )
        if not wanted:
            break
        model = _with_types(_with_defaults(model, wanted))
        model = _with_optional_inputs_settled(model, wanted)
        try:
            model = onnx.inliner.inline_selected_functions(
                model, wanted, inline_schema_functions=True
            )
        except RuntimeError:  # A definition that depends on types ONNX cannot infer: it stays.
            break
    return model


def _with_defaults(model: onnx.ModelProto, wanted: Sequence[tuple[str, str]]) -> onnx.ModelProto:
    """A copy whose nodes of `wanted` spell out default attributes, which inlining would lose."""
    model = _copied(model)
    versions = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    for node in model.graph.node:
        if (node.domain, node.op_type) not in wanted:
            continue
        domain = "" if node.domain == "ai.onnx" else node.domain
        schema = onnx.defs.get_schema(node.op_type, versions[domain], domain)
        present = {attribute.name for attribute in node.attribute}
        for name, attribute in schema.attributes.items():
            if name not in present and attribute.default_value.name:
                node.attribute.append(attribute.default_value)
    return model


def _with_optional_inputs_settled(
    model: onnx.ModelProto, wanted: Sequence[tuple[str, str]]
) -> onnx.ModelProto:
    """`model` without those nodes of `wanted` that leave an input out between others.

    ONNX's inliner asks for the type of each input where a definition depends on types. It takes a
    model's own function for the definition, and of that it asks nothing.
    """
    versions = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    types: dict[str, onnx.TypeProto] | None = None
    for node in model.graph.node:
        if (node.domain, node.op_type) not in wanted or "" not in node.input:
            continue
        version = versions["" if node.domain == "ai.onnx" else node.domain]
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        if not schema.has_context_dependent_function:
            continue
        if types is None:
            types = _types(model)
        given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
        body = schema.get_context_dependent_function_with_opset_version(
            max(v for v in schema.context_dependent_function_opset_versions if v <= version),
            node.SerializeToString(),
            given,
        )
        function = onnx.FunctionProto.FromString(body)
        if not function.node:
            continue
        function.name, function.domain = f"{node.op_type}{len(model.functions)}", _OWN
        node.op_type, node.domain = function.name, _OWN
        model.functions.append(function)
    if not model.functions:
        return model
    model.opset_import.append(onnx.helper.make_opsetid(_OWN, 1))
    return onnx.inliner.inline_local_functions(model)


def _types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    return {value.name: value.type for value in values}


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same, where constants have types too: definitions may depend on them."""
    graph = model.graph
    typed = {value.name for value in (*graph.input, *graph.value_info)}
    graph.value_info.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
        if tensor.name not in typed
    )
    return model


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return copied


def _is_function(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    """Whether the operator sets that `model` uses define the operator of `node` by others."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    versions = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    if domain not in versions or not onnx.defs.has(node.op_type, versions[domain], domain):
        return False
    schema = onnx.defs.get_schema(node.op_type, versions[domain], domain)
    return bool(schema.has_function or schema.has_context_dependent_function)
