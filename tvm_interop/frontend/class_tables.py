"""Prepares classifiers whose results are dictionaries or strings.

A compiled model can only compute numbers. The operator `ZipMap` turns a table of probabilities into
a dictionary for each row, and scikit-learn's exporter adds it by default. Here the table becomes
the result, in place of the dictionaries. `strings` replaces strings by numbers. If the user removes
the labels from the model, the nodes that only they need are removed too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import onnx
from onnx import TensorProto, helper

from .strings import NO_STRINGS, Strings, has_strings, number_strings
from .usual_form import needed_nodes

_LOG = logging.getLogger("tvm_interop")
_DOMAIN = "ai.onnx.ml"
_MOST_NAMED = 10
_OPSET = 13
"""The opset of ONNX's own operators that is set for models without such operators, such as
CatBoost's models.
"""


def with_tables(model: onnx.ModelProto, origin: str) -> tuple[onnx.ModelProto, Strings]:
    """Replace dictionaries by tables, and strings by numbers.

    A warning names each result that becomes a table.

    Parameters
    ----------
    origin: the model's description in error messages.

    Returns
    -------
    The changed model and the strings that were replaced by numbers, for each input and output. If
    nothing has to change, the model is `model` itself.

    Raises
    ------
    UnsupportedModelError
        The model computes with strings in a way that is not supported.
    """
    graph = model.graph
    results = {value.name for value in graph.output}
    zipped = [n for n in graph.node if _is(n, "ZipMap") and n.output[0] in results]
    holds_strings = has_strings(graph)
    if not zipped and not holds_strings:
        return model, NO_STRINGS
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    _unzip(changed.graph, {node.output[0] for node in zipped})
    if zipped and not any(opset.domain in ("", "ai.onnx") for opset in changed.opset_import):
        changed.opset_import.append(helper.make_opsetid("", _OPSET))
    if not holds_strings:
        return changed, NO_STRINGS
    _prune(changed.graph)
    return changed, number_strings(changed, origin)


def _is(node: onnx.NodeProto, kind: str) -> bool:
    return (node.domain, node.op_type) == (_DOMAIN, kind)


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
    kept, needed = needed_nodes(graph)
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(constants)
