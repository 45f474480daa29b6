"""Finds the numbers computed from sizes that a subgraph uses to compute further numbers.

`size_values` does not follow numbers into some subgraphs. It does not follow them into the body of
a `Loop` or a `Scan`. If the condition of an `If` is data, it does not follow them into branches in
which two tensors have the same name. A node in such a subgraph may use a number together with data,
for example as the shape of a `Reshape`. It may also compute further numbers from the number, for
example whether the batch is 7.
"""

from __future__ import annotations

from collections.abc import Set

import onnx

from .expand import inner_graphs, inner_nodes


def used_alone(node: onnx.NodeProto, sized: Set[str], constants: Set[str]) -> list[str]:
    """Return the values in `sized` from which the subgraphs of `node` may compute further numbers.

    Parameters
    ----------
    sized: the names of values that are computed from sizes.
    constants: the names of values that are the same for all sizes.
    """
    found: dict[str, None] = {}
    for graph in inner_graphs(node):
        _Inside(sized, constants, found).take(graph, node)
    return list(found)


def names_defined(graph: onnx.GraphProto) -> list[str]:
    """The names of the tensors that a graph defines itself, outside of its subgraphs."""
    outputs = (name for node in graph.node for name in node.output if name)
    return [*(tensor.name for tensor in graph.initializer), *outputs]


def has_own_names(node: onnx.NodeProto, defined: Set[str]) -> bool:
    """Whether each tensor in the subgraphs of a node has a name that no other tensor has.

    Parameters
    ----------
    defined: the names of other tensors of the model.
    """
    graphs = list(inner_graphs(node))
    graphs += [graph for inner in inner_nodes(node) for graph in inner_graphs(inner)]
    names = [name for graph in graphs for name in names_defined(graph)]
    return len(set(names)) == len(names) and defined.isdisjoint(names)


class _Inside:
    """Goes through a subgraph.

    Attributes
    ----------
    sized: for each value that is computed from sizes, the name that it has outside.
    constants: values that depend neither on data nor on sizes.
    """

    def __init__(self, sized: Set[str], constants: Set[str], found: dict[str, None]) -> None:
        self._sized = {name: name for name in sized}
        self._constants = {*constants, ""}
        self._found = found

    def take(self, graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
        self._constants.update(tensor.name for tensor in graph.initializer)
        self._name_inputs(graph, node)
        for inner in graph.node:
            nested = list(inner_graphs(inner))
            for each in nested:
                again = _Inside(set(), self._constants, self._found)
                again._sized = dict(self._sized)
                again.take(each, inner)
            names = set(inner.input)
            if inner.op_type == "Loop":
                # A state of the loop may count the iterations.
                ends = [name for name in inner.input[:2] if name in self._sized]
                self._found.update((self._sized[name], None) for name in ends)
            if nested or not names <= self._constants | self._sized.keys():
                continue
            if names <= self._constants:
                self._constants.update(inner.output)
                continue
            self._found.update((self._sized[name], None) for name in names & self._sized.keys())
        for value in graph.output:
            if value.name in self._sized:
                self._found[self._sized[value.name]] = None

    def _name_inputs(self, graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
        """Find out which inputs of a body of a loop are numbers."""
        names = [value.name for value in graph.input]
        given = list(node.input)
        if node.op_type == "Loop":
            # The body's inputs are the iteration, the condition, and the states.
            self._constants.update(names[:2])
            names, given = names[2:], given[2:]
        for name, outside in zip(names, given, strict=False):
            if outside in self._sized:
                self._sized[name] = self._sized[outside]
            elif outside in self._constants:
                self._constants.add(name)
