"""Replaces operators without a converter by their ONNX definitions, made of simpler operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import onnx
import onnx.inliner
import onnx.version_converter

from ..errors import UnsupportedModelError, first_line
from .shapes import with_inferred_types

_OWN = "tvm_interop.written_out"
"""The ONNX domain of the functions that this module adds. No model uses this domain."""
_WIDENED = {"Cast", "CastLike", "Constant", "Pad", "Reshape", "Shape", "Squeeze", "Unsqueeze"}
"""Operators that mean the same in definitions of opset 13 and of later opsets. For these operators,
later opsets add only types, and modes that none of the definitions uses.
"""
_MOST_ROUNDS = 4
"""The largest number of rounds of expansion. Each round expands one level of nested definitions."""


def expand_functions(model: onnx.ModelProto, known: Set[str]) -> onnx.ModelProto:
    """Replace each operator of `model` that is not in `known` by its definition, if it has one.

    ONNX defines many of its operators as functions of simpler operators: for example `Attention`,
    `RotaryEmbedding`, `LpNormalization` and the loss functions. An operator without such a
    definition is kept.
    """
    for _ in range(_MOST_ROUNDS):
        wanted = sorted(
            {
                (node.domain, node.op_type)
                for node in nodes_of(model.graph)
                if node.op_type not in known and _is_function(node, model)
            }
        )
        if not wanted:
            break
        model = _with_types(_with_defaults(model, wanted))
        model = _with_difficult_nodes_settled(model, wanted)
        written = _inlined(model, wanted)
        if written is None:
            # ONNX cannot inline all operators together, so inline them one by one, as far as it
            # can.
            for each in wanted:
                model = _inlined(model, [each]) or model
            break
        model = written
    return model


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with the functions that it defines itself inlined.

    A function of another opset is first converted to the opset of the model.

    Raises
    ------
    UnsupportedModelError
        A function cannot be converted.
    """
    if not model.functions:
        return model
    complete = _with_opsets_settled(_with_own_defaults(model))
    try:
        return onnx.inliner.inline_local_functions(complete, convert_version=True)
    except (RuntimeError, onnx.version_converter.ConvertError) as error:
        raise UnsupportedModelError(
            "a function of the model uses another opset than the model, and ONNX cannot convert "
            f"it: {first_line(error)}; export the model with functions of its own opset"
        ) from error


def _with_opsets_settled(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with functions of the model's opsets, where their operators mean the same.

    ONNX's inliner converts only operators of ONNX's own domain from one opset to another. It leaves
    out a function with another opset of `ai.onnx.ml`.
    """
    versions = {opset.domain: opset.version for opset in model.opset_import}
    model = _copied(model)
    for function in model.functions:
        for stated in function.opset_import:
            wanted = versions.get(stated.domain, stated.version)
            kinds = {n.op_type for n in nodes_of(function) if n.domain == stated.domain}
            if all(_means_the_same(kind, stated, wanted) for kind in kinds):
                stated.version = wanted
    return model


def _means_the_same(kind: str, opset: onnx.OperatorSetIdProto, version: int) -> bool:
    """Whether an operator of `opset` has the same definition in another version of this domain."""
    domain = opset.domain
    both = (opset.version, version)
    if not all(onnx.defs.has(kind, each, domain) for each in both):
        return False
    since = {onnx.defs.get_schema(kind, each, domain).since_version for each in both}
    return len(since) == 1


def _with_own_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with each call of one of its functions having all attributes.

    An attribute that a call lacks is set to the function's default. ONNX's inliner would leave the
    attribute out, and the operators in the function would use their own defaults.
    """
    defaults = {_name_of(function): function.attribute_proto for function in model.functions}
    if not any(defaults.values()):
        return model
    model = _copied(model)
    for body in (model.graph, *model.functions):
        for node in nodes_of(body):
            present = {attribute.name for attribute in node.attribute}
            of_function = defaults.get(_name_of(node), ())
            node.attribute.extend(each for each in of_function if each.name not in present)
    return model


def _name_of(item: onnx.NodeProto | onnx.FunctionProto) -> tuple[str, str, str]:
    """The names by which a node calls a function."""
    name = item.op_type if isinstance(item, onnx.NodeProto) else item.name
    return item.domain, name, item.overload


def _inlined(model: onnx.ModelProto, wanted: Sequence[tuple[str, str]]) -> onnx.ModelProto | None:
    """Return `model` with the operators in `wanted` inlined.

    Return None if ONNX cannot infer types that a definition needs.
    """
    try:
        return onnx.inliner.inline_selected_functions(model, wanted, inline_schema_functions=True)
    except RuntimeError:
        return None


def nodes_of(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of `graph` and of its subgraphs, such as the branches of an `If`."""
    for node in graph.node:
        yield node
        yield from inner_nodes(node)


def inner_nodes(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of the subgraphs of `node`, including nested subgraphs."""
    for inner in inner_graphs(node):
        yield from nodes_of(inner)


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the subgraphs of `node`, but not their own subgraphs."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _with_defaults(model: onnx.ModelProto, wanted: Sequence[tuple[str, str]]) -> onnx.ModelProto:
    """Return a copy of the model in which nodes of the types in `wanted` have all their attributes.

    An attribute that a node lacks is set to its default. Inlining would otherwise lose the default.
    """
    model = _copied(model)
    versions = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    for node in nodes_of(model.graph):
        if (node.domain, node.op_type) not in wanted:
            continue
        domain = "" if node.domain == "ai.onnx" else node.domain
        schema = onnx.defs.get_schema(node.op_type, versions[domain], domain)
        present = {attribute.name for attribute in node.attribute}
        for name, attribute in schema.attributes.items():
            if name not in present and attribute.default_value.name:
                node.attribute.append(attribute.default_value)
    return model


def _with_difficult_nodes_settled(
    model: onnx.ModelProto, wanted: Sequence[tuple[str, str]]
) -> onnx.ModelProto:
    """Inline the nodes in `wanted` on which ONNX's inliner fails.

    It fails if it cannot find a type: the type of an optional input that is left out, or of a value
    of a subgraph. So the definition is first added to the model as a function. The inliner does not
    need types for such functions.
    """
    versions = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    difficult = any(
        (node.domain, node.op_type) in wanted and (is_inner or "" in node.input)
        for outer in model.graph.node
        for is_inner, node in ((False, outer), *((True, each) for each in inner_nodes(outer)))
    )
    if not difficult:
        return model
    inferred = with_inferred_types(model).graph
    for node, types, is_inner in typed_nodes(model.graph, inferred, {}):
        if (node.domain, node.op_type) not in wanted or not (is_inner or "" in node.input):
            continue
        version = versions["" if node.domain == "ai.onnx" else node.domain]
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        if not schema.has_context_dependent_function:
            continue
        given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
        body = schema.get_context_dependent_function_with_opset_version(
            max(v for v in schema.context_dependent_function_opset_versions if v <= version),
            node.SerializeToString(),
            given,
        )
        function = onnx.FunctionProto.FromString(body)
        if not function.node or not _is_of_opset(function, versions.get("", 1)):
            continue
        function.name, function.domain = f"{node.op_type}{len(model.functions)}", _OWN
        node.op_type, node.domain = function.name, _OWN
        model.functions.append(function)
    if not model.functions:
        return model
    model.opset_import.append(onnx.helper.make_opsetid(_OWN, 1))
    return onnx.inliner.inline_local_functions(model)


def _is_of_opset(function: onnx.FunctionProto, version: int) -> bool:
    """Change the opset of `function` to `version`, if its operators mean the same in both opsets.

    The inliner accepts only functions of the model's opset.

    Returns
    -------
    Whether the operators mean the same in both opsets.
    """
    stated = next((o for o in function.opset_import if o.domain == ""), None)
    if stated is None:
        return True

    def since(kind: str, opset: int) -> int:
        return int(onnx.defs.get_schema(kind, opset).since_version)

    kinds = {node.op_type for node in function.node if not node.domain} - _WIDENED
    if any(since(kind, stated.version) != since(kind, version) for kind in kinds):
        return False
    stated.version = version
    return True


def typed_nodes(
    graph: onnx.GraphProto,
    inferred: onnx.GraphProto,
    around: Mapping[str, onnx.TypeProto],
    *,
    is_inner: bool = False,
) -> Iterator[tuple[onnx.NodeProto, Mapping[str, onnx.TypeProto], bool]]:
    """Yield the nodes of `graph` and of its subgraphs, with the types that their definitions may
    need.

    Each item is a node, the types of the values that the node can read, by name, and whether the
    node is in a subgraph.

    Parameters
    ----------
    inferred: the same graph as `graph`, with the types of its values.
    around: the types of the values of the graphs around `graph`, by name.
    """
    types = dict(around)
    for tensor in graph.initializer:
        constant = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        types[tensor.name] = constant
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    types.update((value.name, value.type) for value in values)
    for node, same in zip(graph.node, inferred.node, strict=True):
        yield node, types, is_inner
        for attribute, known in zip(node.attribute, same.attribute, strict=True):
            pairs = [*zip(attribute.graphs, known.graphs, strict=True)]
            if attribute.HasField("g"):
                pairs.append((attribute.g, known.g))
            for inner, inner_known in pairs:
                yield from typed_nodes(inner, inner_known, types, is_inner=True)


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Add the types of the constants to `model`, since definitions may depend on them."""
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
    """Whether ONNX defines the operator of `node` as a function of other operators.

    The definition must belong to the opsets that `model` uses.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    versions = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    if domain not in versions or not onnx.defs.has(node.op_type, versions[domain], domain):
        return False
    schema = onnx.defs.get_schema(node.op_type, versions[domain], domain)
    return bool(schema.has_function or schema.has_context_dependent_function)
