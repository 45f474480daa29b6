"""Transposes large weights as they are read, so that no weight is in memory twice.

PyTorch exports a linear layer as a `Gemm` with `transB`, or as a `Transpose` and a `MatMul`. If the
transpositions were folded only after the import, memory would hold every weight together with its
transpose until the end of the import.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx

from ..models.external_weights import is_outside


def turned_weights(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the names of the matrices to transpose.

    A matrix is listed if it is stored outside the model's file, and if only one node reads it and
    transposes it.
    """
    outside = {
        tensor.name for tensor in graph.initializer if is_outside(tensor) and len(tensor.dims) == 2
    }
    uses = Counter(_used(graph))
    return frozenset(
        name
        for node in graph.node
        for name in _turned_by(node)
        if name in outside and uses[name] == 1
    )


def turn_no_more(graph: onnx.GraphProto, weights: frozenset[str]) -> None:
    """Change the nodes of `graph` so that they read the transposed `weights` directly."""
    for node in graph.node:
        if not weights.intersection(_turned_by(node)):
            continue
        if node.op_type == "Transpose":
            node.op_type = "Identity"
            del node.attribute[:]
        else:
            kept = [each for each in node.attribute if each.name != "transB"]
            del node.attribute[:]
            node.attribute.extend(kept)


def _turned_by(node: onnx.NodeProto) -> list[str]:
    """Return a list with the name of the matrix that a node transposes, or an empty list."""
    if node.domain not in ("", "ai.onnx"):
        return []
    attributes = {each.name: each for each in node.attribute}
    if node.op_type == "Gemm" and "transB" in attributes and attributes["transB"].i:
        return [node.input[1]]
    if node.op_type == "Transpose" and (
        "perm" not in attributes or [*attributes["perm"].ints] == [1, 0]
    ):
        return [node.input[0]]
    return []


def _used(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the name of a tensor once for each node that uses it, and once if the graph returns it.

    The nodes of subgraphs are included.
    """
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _used(inner)
