"""Prepares classifiers whose results are dictionaries or strings.

A compiled model can only compute numbers. The operator `ZipMap` turns a table of probabilities into
a dictionary for each row, and scikit-learn's exporter adds it by default. Here the table becomes
the result, in place of the dictionaries. A model with strings as a result is refused. If the user
removes this result from the model, the nodes that only it needs are removed too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import onnx
from onnx import TensorProto, helper

from ..errors import UnsupportedModelError
from .expand import inner_nodes, nodes_of

_LOG = logging.getLogger("tvm_interop")
_DOMAIN = "ai.onnx.ml"
_MOST_NAMED = 10
_OPSET = 13
"""The opset of ONNX's own operators that is set for models without such operators, such as
CatBoost's models.
"""
_INTEGERS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
"""The attributes of classifiers that hold integer labels."""


def with_tables(model: onnx.ModelProto, origin: str) -> onnx.ModelProto:
    """Return `model` with tables in place of dictionaries, and without string labels that nothing
    reads.

    Return `model` itself if nothing has to change. A warning names each result that becomes a
    table.

    Parameters
    ----------
    origin: the model's description in error messages.

    Raises
    ------
    UnsupportedModelError
        A result of the model consists of strings.
    """
    graph = model.graph
    results = {value.name for value in graph.output}
    zipped = [n for n in graph.node if _is(n, "ZipMap") and n.output[0] in results]
    has_strings = any(_strings(node) for node in graph.node) or any(
        tensor.data_type == TensorProto.STRING for tensor in graph.initializer
    )
    if not zipped and not has_strings:
        return model
    _refuse_strings(graph, origin)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    _unzip(changed.graph, {node.output[0] for node in zipped})
    if zipped and not any(opset.domain in ("", "ai.onnx") for opset in changed.opset_import):
        changed.opset_import.append(helper.make_opsetid("", _OPSET))
    if has_strings:
        _prune(changed.graph)
        _number(changed.graph)
    return changed


def _is(node: onnx.NodeProto, kind: str) -> bool:
    return (node.domain, node.op_type) == (_DOMAIN, kind)


def _strings(node: onnx.NodeProto) -> list[str]:
    """Return the string labels of a classifier."""
    if node.domain != _DOMAIN or node.op_type not in _INTEGERS:
        return []
    return [
        label.decode()
        for attribute in node.attribute
        if attribute.name == "classlabels_strings"
        for label in attribute.strings
    ]


def _refuse_strings(graph: onnx.GraphProto, origin: str) -> None:
    for i, value in enumerate(graph.output):
        if value.type.tensor_type.elem_type == TensorProto.STRING:
            labels = [label for node in graph.node for label in _strings(node)] or [
                text.decode() for tensor in graph.initializer for text in tensor.string_data
            ]
            raise UnsupportedModelError(
                f"output `{value.name}` of {origin} is strings, and a compiled model computes "
                f"numbers: train the model with integers as labels, or remove the output (`del "
                f"model.graph.output[{i}]`) and take the class of the largest score. The classes "
                f"are {_listed(labels)}"
            )


def _listed(labels: Iterable[object]) -> str:
    names = [f"`{label}`" for label in labels]
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _unzip(graph: onnx.GraphProto, names: set[str]) -> None:
    """Replace each `ZipMap` whose result is in `names` by the table that it reads."""
    for node in graph.node:
        if not node.output or node.output[0] not in names:
            continue
        labels = [
            label
            for attribute in node.attribute
            for label in (*attribute.ints, *(text.decode() for text in attribute.strings))
        ]
        _LOG.warning(
            "output `%s` is a table of shape (rows, classes) instead of a dictionary for each row; "
            "its columns are the classes %s",
            node.output[0],
            _listed(labels),
        )
        identity = helper.make_node("Identity", node.input, node.output, node.name)
        node.CopyFrom(identity)
    for value in graph.output:
        if value.name in names:
            value.type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, [None, None]))


def _prune(graph: onnx.GraphProto) -> None:
    """Remove the nodes and constants that no result needs."""
    needed, kept = {value.name for value in graph.output}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(name for each in (node, *inner_nodes(node)) for name in each.input)
            inner = (a.g for each in (node, *inner_nodes(node)) for a in each.attribute)
            needed.update(value.name for each in inner for value in each.output)
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    kept.reverse()
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(constants)


def _number(graph: onnx.GraphProto) -> None:
    """Replace string labels by integers if nothing reads the labels."""
    read = {name for node in nodes_of(graph) for name in node.input}
    read.update(value.name for value in graph.output)
    for node in graph.node:
        labels = _strings(node)
        if labels and node.output[0] not in read:
            others = [a for a in node.attribute if a.name != "classlabels_strings"]
            others.append(helper.make_attribute(_INTEGERS[node.op_type], list(range(len(labels)))))
            del node.attribute[:]
            node.attribute.extend(others)
