"""Finds numbers computed from sizes from which a model computes further numbers unseen.

`size_values` does not follow numbers through all nodes. ONNX's reference lacks some operators, and
some constants are too large. `size_values` does not follow numbers into the body of a `Loop` or a
`Scan`. If the condition of an `If` is data, it does not follow them into branches in which two
tensors have the same name. A node in such a subgraph may use a number together with data, for
example as the shape of a `Reshape`. It may also compute further numbers from the number, for
example whether the batch is 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import NamedTuple

import numpy as np
import onnx

from .even_growth import Sizes, are_same, begin_alike, ones_of
from .expand import inner_graphs, inner_nodes
from .sizes_alike import wanted_of
from .sizes_hidden import UnevenSizesError


class Origin(NamedTuple):
    """Where a value comes from that depends only on sizes and constants.

    Attributes
    ----------
    numbers: the followed values that it is computed from; none for a constant.
    is_followed: whether it is itself such a value.
    """

    numbers: frozenset[str]
    is_followed: bool = False


CONSTANT = Origin(frozenset())


class Unfollowed:
    """Collects what must hold for followed values from which a model computes numbers unseen.

    Attributes
    ----------
    alike: the values whose elements must be the same for all sizes, at all indices that they have
        for these sizes. Each has the name of a node that needs this.
    equal: the values that must be the same for all sizes, each with the name of a node.
    """

    def __init__(
        self,
        followed: Callable[[str], Origin | None],
        value_of: Callable[[str], np.ndarray | None],
    ) -> None:
        """Begin without any nodes.

        Parameters
        ----------
        followed: returns the origin of a constant or a followed value; None for any other value.
        value_of: returns the elements of a constant; None if they are not known.
        """
        self.alike: dict[str, str] = {}
        self.equal: dict[str, str] = {}
        self._value_of = value_of
        self._top = _Scope(followed)

    def take(self, node: onnx.NodeProto, name: str) -> None:
        """Note a node whose results are not followed. Its name in messages is `name`."""
        self._take(node, name, self._top)

    def origin_of(self, name: str) -> Origin | None:
        """The origin of a result of a node that was given to `take`; None for other values."""
        return self._top.own.get(name)

    def check(self, corners: Mapping[Sizes, Mapping[str, np.ndarray]]) -> None:
        """Raise UnevenSizesError for a value that does not have the same elements for all sizes.

        Parameters
        ----------
        corners: the values for the largest sizes, and for sizes that are smaller by 1.
        """
        wanted = (self.alike, begin_alike), (self.equal, are_same)
        for name, node, test in ((*each, test) for names, test in wanted for each in names.items()):
            by_ones: dict[tuple[bool, ...], list[np.ndarray]] = {}
            for sizes, values in corners.items():
                if name in values:
                    by_ones.setdefault(ones_of(sizes), []).append(values[name])
            if not all(map(test, by_ones.values())):
                raise UnevenSizesError(
                    f"node `{node}` computes further numbers from `{name}`, which is computed from "
                    "the size of an input, and these numbers are not followed for all sizes"
                )

    def _take(self, node: onnx.NodeProto, name: str, scope: _Scope) -> None:
        origins = [scope.of(each) for each in _read_by(node)]
        known = [origin for origin in origins if origin is not None]
        if len(known) == len(origins):
            self._take_alone(node, name, scope, known)
            return
        if node.op_type == "Loop":
            # A state of the loop may count the iterations.
            self._demand_equal(map(scope.of, node.input[:2]), name)
        for graph in inner_graphs(node):
            self._take_inside(graph, node, name, _Scope(scope.of))

    def _take_alone(
        self, node: onnx.NodeProto, name: str, scope: _Scope, origins: list[Origin]
    ) -> None:
        """Note a node that depends only on sizes and constants."""
        wanted = None
        if not any(True for _ in inner_graphs(node)):
            wanted = wanted_of(node, self._value_of)
        if wanted is None:
            # If its inputs are the same for all sizes, its results are constants.
            self._demand_equal(origins, name)
            made = CONSTANT
        else:
            self._demand_equal(map(scope.of, wanted.equal), name)
            for origin in map(scope.of, wanted.alike):
                # For a value that is not followed itself, this was noted when it was computed.
                if origin is not None and origin.is_followed:
                    self.alike.update(dict.fromkeys(origin.numbers - self.alike.keys(), name))
            made = Origin(frozenset().union(*(origin.numbers for origin in origins)))
        scope.own.update((each, made) for each in node.output if each)

    def _take_inside(
        self, graph: onnx.GraphProto, node: onnx.NodeProto, name: str, scope: _Scope
    ) -> None:
        scope.own.update((tensor.name, CONSTANT) for tensor in graph.initializer)
        inputs, given = [value.name for value in graph.input], list(node.input)
        if node.op_type == "Loop":
            # The body's inputs are the iteration, the condition, and the states.
            scope.own.update((each, CONSTANT) for each in inputs[:2])
            inputs, given = inputs[2:], given[2:]
        for inside, outside in zip(inputs, given, strict=False):
            origin = scope.of(outside)
            if origin is not None:
                scope.own[inside] = origin
        for inner in graph.node:
            self._take(inner, name, scope)
        self._demand_equal((scope.of(value.name) for value in graph.output), name)

    def _demand_equal(self, origins: Iterable[Origin | None], name: str) -> None:
        for origin in origins:
            numbers = frozenset() if origin is None else origin.numbers
            self.equal.update(dict.fromkeys(numbers - self.equal.keys(), name))


class _Scope:
    """The values of a graph or subgraph that depend only on sizes and constants.

    Attributes
    ----------
    own: the origins of the values that the graph itself defines and that are not followed.
    """

    def __init__(self, outer: Callable[[str], Origin | None]) -> None:
        self.own: dict[str, Origin] = {}
        self._outer = outer

    def of(self, name: str) -> Origin | None:
        """The origin of a value; None if it depends on data."""
        return self.own.get(name) or self._outer(name)


def _read_by(node: onnx.NodeProto) -> list[str]:
    """The names of all values that a node reads, also in its subgraphs."""
    return [name for name in dict.fromkeys((*node.input, *captured_by(node))) if name]


def captured_by(node: onnx.NodeProto) -> list[str]:
    """The names of the values from outside that the subgraphs of a node read or return."""
    inner = list(inner_nodes(node))
    graphs = [*inner_graphs(node), *(graph for each in inner for graph in inner_graphs(each))]
    made = {name for graph in graphs for name in names_defined(graph)}
    made.update(value.name for graph in graphs for value in graph.input)
    read = [name for each in inner for name in each.input]
    read += [value.name for graph in graphs for value in graph.output]
    return [name for name in dict.fromkeys(read) if name and name not in made]


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
