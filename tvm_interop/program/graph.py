"""The graph of a model's operators and the data between them, which every scheduler works on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .._native import passes as native
from ..errors import GraphError
from ..plain_data import is_text, is_whole

if TYPE_CHECKING:
    from .layers import Layer

MOST_OPERATORS = 2**31 - 1
"""Largest number of operators in a graph: an id has 32 bits in the native code."""


class OpGraph:
    """A directed acyclic graph of operators. Immutable.

    An operator has an id, a number from 0, and a name that is unique in its graph. Ids are in any
    order; algorithms that need an order use `topological_order`. Make a graph with `from_edges`, or
    from a model with `tvm_interop.operator_graph`.

    Examples
    --------
    >>> graph = OpGraph.from_edges(["a", "b", "c", "d"], [("a", "b"), ("a", "c"), ("c", "d")])
    >>> graph.width, graph.reaches(0, 3)
    (2, True)
    """

    def __init__(
        self,
        names: Sequence[str],
        edges: Iterable[tuple[int, int] | tuple[str, str]],
        edge_bytes: Sequence[int] | None = None,
        layers: Sequence[Layer] | None = None,
    ) -> None:
        self._names = _checked_names(names)
        if layers is not None and len(layers) != len(self._names):
            raise GraphError(
                f"there are {len(layers)} `layers` for {len(self._names)} operators; give one for "
                "each"
            )
        self._layers = None if layers is None else tuple(layers)
        if not isinstance(edges, Iterable):
            raise GraphError(f"the edges are {edges!r}; give a list of pairs")
        ids = {name: i for i, name in enumerate(self._names)}
        num_ops = len(self._names)
        self._edges = tuple(_edge_ids(edge, ids, num_ops) for edge in edges)
        self._edge_bytes = None if edge_bytes is None else _checked_bytes(edge_bytes, self._edges)
        self._native = native.graph_make(list(self._names), pack_edges(self._edges))

    @classmethod
    def from_edges(
        cls,
        n_or_names: int | Sequence[str],
        edges: Iterable[tuple[int, int] | tuple[str, str]],
        edge_bytes: Sequence[int] | None = None,
        layers: Sequence[Layer] | None = None,
    ) -> OpGraph:
        """Make a graph of its operators and the edges between them.

        Parameters
        ----------
        n_or_names: the operators' names, in order of their ids; or the number of operators, which
            are then named `op0`, `op1`, ...
        edges: pairs of the producer and the consumer of a tensor, either two ids or two names. An
            edge given twice counts twice.
        edge_bytes: for each edge, the number of bytes that the consumer reads from the producer. If
            two edges stand for the same tensor, one of them has its bytes, and the other has 0.
            None if not known. The latency of copies between GPUs depends on these bytes.
        layers: a description of each operator, from which the scheduler `gpg` learns. None if not
            known.

        Raises
        ------
        GraphError: there is a cycle (the message names its operators); an edge leads from an
            operator to itself or to an operator that does not exist; a name is empty, used twice or
            not a text; the number of operators is below 0; bytes are negative, or `edge_bytes` does
            not have one number for each edge.
        """
        if not is_whole(n_or_names):
            return cls(cast("Sequence[str]", n_or_names), edges, edge_bytes, layers)
        if not 0 <= n_or_names <= MOST_OPERATORS:
            raise GraphError(
                f"a graph cannot have {n_or_names} operators; give a number from 0 to "
                f"{MOST_OPERATORS}, or a list of names"
            )
        return cls([f"op{i}" for i in range(n_or_names)], edges, edge_bytes, layers)

    @property
    def native(self) -> Any:
        """The graph as the object that the native functions take."""
        return self._native

    @property
    def num_ops(self) -> int:
        """The number of operators."""
        return len(self._names)

    @property
    def num_edges(self) -> int:
        """The number of edges. An edge that was given twice counts twice."""
        return len(self._edges)

    @property
    def names(self) -> tuple[str, ...]:
        """The operators' names, by id."""
        return self._names

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """The edges as pairs of ids, in the given order, with repeats."""
        return self._edges

    @property
    def edge_bytes(self) -> tuple[int, ...] | None:
        """The bytes that each of `edges` carries (see `from_edges`); None if not known."""
        return self._edge_bytes

    @property
    def layers(self) -> tuple[Layer, ...] | None:
        """The description of each operator, by id (see `from_edges`); None if not known."""
        return self._layers

    @cached_property
    def width(self) -> int:
        """The size of the largest antichain, which is a set of operators that do not depend on each
        other.

        By Dilworth's theorem, the width is computed from a maximum bipartite matching.
        """
        return int(native.graph_width(self._native))

    def predecessors(self, op: int) -> tuple[int, ...]:
        """The operators whose output `op` reads, each once, in ascending order of ids."""
        return tuple(native.graph_predecessors(self._native, self._checked(op)))

    def successors(self, op: int) -> tuple[int, ...]:
        """The operators that read the output of `op`, each once, in ascending order of ids."""
        return tuple(native.graph_successors(self._native, self._checked(op)))

    def reaches(self, source: int, target: int) -> bool:
        """Whether a path of at least one edge leads from `source` to `target`."""
        return bool(
            native.graph_reaches(self._native, self._checked(source), self._checked(target))
        )

    def topological_order(self) -> tuple[int, ...]:
        """All operators in topological order; ties: the ready operator with the lowest id first."""
        return tuple(native.graph_topological_order(self._native))

    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """The blocks that IOS schedules one by one, in order, each in topological order.

        The graph is cut where each operator before the cut reaches each operator after it, and a
        block lies between two cuts. If a single operator follows several independent operators,
        such as the concat of an Inception module, it belongs to their block. Any other single
        operator between two cuts is a block of its own.
        """
        return tuple(tuple(block) for block in native.graph_blocks(self._native))

    def __repr__(self) -> str:
        return f"OpGraph({self.num_ops} operators, {self.num_edges} edges)"

    def _checked(self, op: int) -> int:
        if not is_whole(op) or not 0 <= op < self.num_ops:
            raise GraphError(
                f"there is no operator {op!r}: the graph has {self.num_ops}, numbered from 0"
            )
        return int(op)


def pack_edges(edges: Iterable[tuple[int, int]]) -> bytes:
    """Edges in the form that native functions take: pairs of int64, one after the other."""
    return np.asarray(list(edges), dtype=np.int64).tobytes()


def _checked_bytes(edge_bytes: Sequence[int], edges: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    if len(edge_bytes) != len(edges):
        raise GraphError(
            f"there are {len(edge_bytes)} `edge_bytes` for {len(edges)} edges; give one for each"
        )
    for edge, nbytes in zip(edges, edge_bytes, strict=True):
        if not is_whole(nbytes) or nbytes < 0:
            raise GraphError(f"edge {edge} carries {nbytes!r} bytes; give a number, 0 or more")
    return tuple(map(int, edge_bytes))


def _checked_names(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise GraphError(
            f"the operators are {names!r}; give how many there are, or a list of their names"
        )
    checked = tuple(names)
    for name in checked:
        if not isinstance(name, str):
            raise GraphError(f"operator name {name!r} is not a string; names are strings")
        if not is_text(name):
            raise GraphError(
                f"operator name {name!r} is not a text that UTF-8 can hold; give another name"
            )
    return checked


def _edge_ids(
    edge: tuple[int, int] | tuple[str, str], ids: dict[str, int], num_ops: int
) -> tuple[int, int]:
    try:
        source, target = edge
    except (TypeError, ValueError):
        raise GraphError(f"edge {edge!r} is not a pair; give its producer and consumer") from None
    return _op_id(source, edge, ids, num_ops), _op_id(target, edge, ids, num_ops)


def _op_id(op: int | str, edge: object, ids: dict[str, int], num_ops: int) -> int:
    if isinstance(op, str):
        if op not in ids:
            raise GraphError(f"edge {edge!r} names `{op}`, but there is no operator of that name")
        return ids[op]
    if not is_whole(op):
        raise GraphError(f"edge {edge!r} holds {op!r}; give the id or the name of an operator")
    if not 0 <= op < num_ops:
        raise GraphError(
            f"edge {edge!r} names operator {op}, but the graph has {num_ops} operators, numbered "
            "from 0"
        )
    return int(op)
