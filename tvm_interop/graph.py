"""The operators of a model and who reads whose output: what every scheduler works on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import tvm_ffi

from . import _library as _library
from .errors import GraphError, InputError

_MAKE = tvm_ffi.get_global_func("tvm_interop.graph_make")
_WIDTH = tvm_ffi.get_global_func("tvm_interop.graph_width")
_REACHES = tvm_ffi.get_global_func("tvm_interop.graph_reaches")
_PREDECESSORS = tvm_ffi.get_global_func("tvm_interop.graph_predecessors")
_SUCCESSORS = tvm_ffi.get_global_func("tvm_interop.graph_successors")
_TOPOLOGICAL_ORDER = tvm_ffi.get_global_func("tvm_interop.graph_topological_order")
_BLOCKS = tvm_ffi.get_global_func("tvm_interop.graph_blocks")


class OpGraph:
    """A directed acyclic graph of operators. Immutable.

    An operator is a number from 0, its id, and a name, unique in its graph. Ids come in any
    order; algorithms that need one take `topological_order`. Make one with `from_edges` or
    `from_model`.

    Examples
    --------
    >>> graph = OpGraph.from_edges(["a", "b", "c", "d"], [("a", "b"), ("a", "c"), ("c", "d")])
    >>> graph.width, graph.reaches(0, 3)
    (2, True)
    """

    def __init__(self, names: Sequence[str], edges: Sequence[tuple[int, int]]) -> None:
        self._names = tuple(names)
        self._edges = tuple((int(u), int(v)) for u, v in edges)
        self._native = _MAKE(list(self._names), pack_edges(self._edges))

    @classmethod
    def from_edges(
        cls,
        n_or_names: int | Sequence[str],
        edges: Iterable[tuple[int, int] | tuple[str, str]],
    ) -> OpGraph:
        """Make a graph of its operators and the edges between them.

        Parameters
        ----------
        n_or_names: the operators' names, in order of their ids; or how many there are, and
            they are named `op0`, `op1`, ...
        edges: producer and consumer of each tensor, both as ids or both as names. An edge
            given twice counts twice.

        Raises
        ------
        GraphError: for a cycle (naming the operators on it), an edge from an operator to
            itself or to one that does not exist, a name that is empty or used twice.
        """
        if isinstance(n_or_names, (int, np.integer)):
            names = [f"op{i}" for i in range(n_or_names)]
        else:
            names = list(n_or_names)
        for name in names:
            if not isinstance(name, str):
                raise GraphError(f"operator name {name!r} is no string; names are strings")
        ids = {name: i for i, name in enumerate(names)}
        return cls(names, [_edge_ids(edge, ids) for edge in edges])

    @classmethod
    def from_model(cls, model: Any, unit: Literal["schedule", "kernel"] = "schedule") -> OpGraph:
        """Make the graph of a model's operators.

        Parameters
        ----------
        model: an ONNX file's path, a network's name (see `models.list`) or an ONNX model; with
            kernels for units also a Relax IRModule.
        unit: what an operator is. `schedule`: as the papers count, see
            `models.units.schedule_units`; that takes no compiler. `kernel`: a fused kernel of
            TVM's, what `compile` schedules.

        Raises
        ------
        UnsupportedModelError: the model cannot be read or imported.
        InputError: there is no such unit.

        Examples
        --------
        >>> OpGraph.from_model("squeezenet")
        OpGraph(50 operators, 65 edges)
        """
        if unit == "kernel":
            from .compilation import Compilation

            return Compilation(model).graph
        if unit != "schedule":
            raise InputError(f"there is no unit `{unit}`: give `schedule` or `kernel`")
        from .models.source import read_graph
        from .models.units import schedule_units

        units = schedule_units(read_graph(model))
        return cls(units.names, units.edges)

    @property
    def native(self) -> Any:
        """The object the native functions take."""
        return self._native

    @property
    def num_ops(self) -> int:
        """How many operators there are."""
        return len(self._names)

    @property
    def num_edges(self) -> int:
        """How many edges there are, repeated ones counted as often as they were given."""
        return len(self._edges)

    @property
    def names(self) -> tuple[str, ...]:
        """The operators' names, by id."""
        return self._names

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """The edges as ids, as they were given: same order, repeats kept."""
        return self._edges

    @cached_property
    def width(self) -> int:
        """The most operators of which none reaches another (Dilworth, by bipartite matching)."""
        return int(_WIDTH(self._native))

    def predecessors(self, op: int) -> tuple[int, ...]:
        """The operators whose output `op` reads, each once, ascending."""
        return tuple(_PREDECESSORS(self._native, self._checked(op)))

    def successors(self, op: int) -> tuple[int, ...]:
        """The operators that read the output of `op`, each once, ascending."""
        return tuple(_SUCCESSORS(self._native, self._checked(op)))

    def reaches(self, source: int, target: int) -> bool:
        """Whether a path of at least one edge leads from `source` to `target`."""
        return bool(_REACHES(self._native, self._checked(source), self._checked(target)))

    def topological_order(self) -> tuple[int, ...]:
        """All operators, each after those it reads; of those that are ready the lowest id first."""
        return tuple(_TOPOLOGICAL_ORDER(self._native))

    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """The blocks that IOS schedules one by one, in order, each in topological order.

        A cut lies where every operator before reaches every operator behind. A single operator
        right behind several that have none in common is their exit and joins them (the concat
        of an Inception module); otherwise it is a block of its own.
        """
        return tuple(tuple(block) for block in _BLOCKS(self._native))

    def __repr__(self) -> str:
        return f"OpGraph({self.num_ops} operators, {self.num_edges} edges)"

    def _checked(self, op: int) -> int:
        if not 0 <= op < self.num_ops:
            raise GraphError(
                f"there is no operator {op}: the graph has {self.num_ops}, numbered from 0"
            )
        return int(op)


def pack_edges(edges: Iterable[tuple[int, int]]) -> bytes:
    """Edges as the native functions take them: pairs of int64, one after the other."""
    return np.asarray(list(edges), dtype=np.int64).tobytes()


def _edge_ids(edge: tuple[int, int] | tuple[str, str], ids: dict[str, int]) -> tuple[int, int]:
    try:
        source, target = edge
    except (TypeError, ValueError):
        raise GraphError(f"edge {edge!r} is no pair; give producer and consumer") from None
    return _op_id(source, edge, ids), _op_id(target, edge, ids)


def _op_id(op: int | str, edge: object, ids: dict[str, int]) -> int:
    if isinstance(op, str):
        if op not in ids:
            raise GraphError(f"edge {edge!r} names `{op}`, but there is no operator of that name")
        return ids[op]
    if isinstance(op, (int, np.integer)) and not isinstance(op, bool):
        return int(op)
    raise GraphError(f"edge {edge!r} holds {op!r}; an operator is its id or its name")
