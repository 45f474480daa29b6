"""Brings valid ONNX models of rare forms into the usual form.

ONNX's own domain has two names, the empty name and `ai.onnx`. ONNX's checker and its inference of
types know only the empty name. Sparse weights and constants become dense tensors. Nodes are
sorted, as onnxruntime sorts them. Nodes that no output needs are removed, as onnxruntime removes
them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from .expand import inner_graphs, inner_nodes, nodes_of

_CONSTANT = "sparse_value"
"""The attribute of a `Constant` that holds a sparse tensor."""


_OWN_DOMAIN = "ai.onnx"
"""The second name of ONNX's own domain."""


def with_usual_domain(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with the empty name for ONNX's own domain in place of `ai.onnx`.

    Return `model` itself if it has only the empty name.
    """
    if not any(item.domain == _OWN_DOMAIN for item in _with_domains(model)):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for item in _with_domains(changed):
        if item.domain == _OWN_DOMAIN:
            item.domain = ""
    return changed


def _with_domains(
    model: onnx.ModelProto,
) -> Iterator[onnx.NodeProto | onnx.OperatorSetIdProto]:
    """Yield the nodes and the imported opsets of a model and of its functions."""
    yield from model.opset_import
    yield from nodes_of(model.graph)
    for function in model.functions:
        yield from function.opset_import
        yield from nodes_of(function)


def with_nodes_in_order(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with each node after the nodes whose results it reads; `model` itself if they
    are so already, or if nodes form a circle.
    """
    made = {name for node in model.graph.node for name in node.output if name}
    seen: set[str] = set()
    ordered: list[onnx.NodeProto] = []
    waiting = [*model.graph.node]
    while waiting:
        left = []
        for node in waiting:
            read = {name for each in (node, *inner_nodes(node)) for name in each.input}
            if read & made <= seen:
                ordered.append(node)
                seen.update(node.output)
            else:
                left.append(node)
        if len(left) == len(waiting):
            return model
        waiting = left
    if all(map(operator.is_, ordered, model.graph.node)):
        return model
    return _with_nodes(model, ordered)


def without_unused_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` without the nodes that no output needs; `model` itself if all are needed.

    The nodes of `model` must be in order.
    """
    kept, _ = needed_nodes(model.graph)
    if len(kept) == len(model.graph.node):
        return model
    return _with_nodes(model, kept)


def _with_nodes(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    return changed


def needed_nodes(graph: onnx.GraphProto) -> tuple[list[onnx.NodeProto], set[str]]:
    """Return the nodes that the outputs of `graph` need, and the names of all tensors they need."""
    needed, kept = {value.name for value in graph.output}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            for each in (node, *inner_nodes(node)):
                needed.update(each.input)
                needed.update(value.name for g in inner_graphs(each) for value in g.output)
    return kept[::-1], needed


def with_dense_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with dense tensors in place of sparse ones; `model` itself if it has none."""
    if not any(_is_sparse(graph) for graph in _graphs_of(model.graph)):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for graph in _graphs_of(changed.graph):
        graph.initializer.extend(map(_dense, graph.sparse_initializer))
        del graph.sparse_initializer[:]
        for attribute in _sparse_constants(graph):
            tensor = _dense(attribute.sparse_tensor)
            attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
    return changed


def _graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in nodes_of(graph):
        yield from inner_graphs(node)


def _is_sparse(graph: onnx.GraphProto) -> bool:
    return bool(graph.sparse_initializer) or any(True for _ in _sparse_constants(graph))


def _sparse_constants(graph: onnx.GraphProto) -> Iterator[onnx.AttributeProto]:
    for node in graph.node:
        if node.op_type == "Constant":
            yield from (each for each in node.attribute if each.name == _CONSTANT)


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """The dense tensor with the numbers of `sparse`, and with 0 elsewhere.

    The indices have the shape (numbers,) and count in row-major order, or the shape (numbers, axes)
    with an index for each axis.
    """
    values, indices = map(numpy_helper.to_array, (sparse.values, sparse.indices))
    shape = tuple(sparse.dims)
    array = np.zeros(shape, values.dtype)
    if indices.ndim == 1:
        array.reshape(-1)[indices] = values
    else:
        array[tuple(indices.T)] = values
    return numpy_helper.from_array(array, sparse.values.name)
