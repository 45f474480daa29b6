"""From a schedule to what runs it safely: who waits for whom, and which buffers share storage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import tvm_ffi

from . import _library as _library
from .graph import OpGraph, pack_edges

_PLAN_SYNC = tvm_ffi.get_global_func("tvm_interop.plan_sync")
_CHECK_SYNC = tvm_ffi.get_global_func("tvm_interop.check_sync")
_PLAN_MEMORY = tvm_ffi.get_global_func("tvm_interop.plan_memory")
_CHECK_MEMORY = tvm_ffi.get_global_func("tvm_interop.check_memory")
_MEMORY_ORDER = tvm_ffi.get_global_func("tvm_interop.memory_order")


_PACK_GROUPS = tvm_ffi.get_global_func("tvm_interop.pack_groups")


@dataclass(frozen=True)
class Buffer:
    """A tensor that needs storage while the model runs.

    Attributes
    ----------
    nbytes: its size; 0 is allowed.
    producers: the operators that write it, by id: one, or several that each write a part of it.
    users: all operators that read it, by id.
    """

    nbytes: int
    producers: tuple[int, ...]
    users: tuple[int, ...] = ()


@dataclass(frozen=True)
class MemoryPlan:
    """Where each buffer lies in one arena.

    Attributes
    ----------
    offsets: of each buffer, in bytes.
    arena_bytes: size of the arena.
    """

    offsets: tuple[int, ...]
    arena_bytes: int


@dataclass(frozen=True)
class MemoryOrder:
    """An order of operators, and the most bytes in use at once in it.

    Attributes
    ----------
    topological_peak_bytes: the same of `OpGraph.topological_order`.
    """

    order: tuple[int, ...]
    peak_bytes: int
    topological_peak_bytes: int


def pack_groups(group_us: Sequence[float], num_streams: int) -> tuple[int, ...]:
    """The stream of each group of a stage: longest group first onto the least loaded stream.

    Ties: lowest group, lowest stream.

    Parameters
    ----------
    group_us: microseconds each group takes.
    """
    return tuple(_PACK_GROUPS(np.asarray(group_us, dtype=np.float64).tobytes(), num_streams))


def sync_plan(
    graph: OpGraph,
    streams: Sequence[Sequence[int]],
    extra_edges: Iterable[tuple[int, int]] = (),
) -> list[tuple[int, ...]]:
    """For each operator, the operators on other streams that it must wait for.

    They are the edges between streams that remain when the streams' order, the dependencies and
    `extra_edges` are reduced transitively: no smaller set of waits orders as much. The waits of
    an operator come by ascending stream.

    Parameters
    ----------
    streams: the operators of each stream, in order; each operator on exactly one.
    extra_edges: pairs of operators to order besides, e.g. `Schedule.ordering_edges()`.

    Raises
    ------
    PlanError: for streams that cannot be run, naming the operators that would wait for each
        other in a circle, or the one that is missing or there twice.

    Complexity: O((operators + edges) * streams), by vector clocks.
    """
    waits = _PLAN_SYNC(graph.native, _lists(streams), pack_edges(extra_edges))
    return [tuple(ops) for ops in waits]


def check_sync(
    graph: OpGraph,
    streams: Sequence[Sequence[int]],
    waits: Sequence[Sequence[int]],
    extra_edges: Iterable[tuple[int, int]] = (),
) -> None:
    """Prove, apart from the planner, that these waits order every dependency.

    Raises
    ------
    PlanError: for a dependency or an extra edge that they leave open, naming both operators,
        and for operators that wait for each other in a circle.
    """
    _CHECK_SYNC(graph.native, _lists(streams), _lists(waits), pack_edges(extra_edges))


def memory_plan(
    graph: OpGraph,
    streams: Sequence[Sequence[int]],
    waits: Sequence[Sequence[int]],
    buffers: Sequence[Buffer],
    alignment: int = 64,
) -> MemoryPlan:
    """Lay buffers into one arena, sharing bytes only where the plan's order makes it safe.

    Two buffers may share bytes when every operator that touches the one has finished before any of
    the other's producers starts, in these streams with these waits, whatever the timing. So an
    operator never writes over what it reads. Largest first (ties: lowest index), each at the
    lowest aligned offset that is free.

    Raises
    ------
    PlanError: for a buffer of negative size or with an unknown operator, an alignment below 1,
        or streams that cannot be run.
    """
    offsets, arena_bytes = _PLAN_MEMORY(
        graph.native, _lists(streams), _lists(waits), *_columns(buffers), alignment
    )
    return MemoryPlan(tuple(offsets), int(arena_bytes))


def memory_order(graph: OpGraph, buffers: Sequence[Buffer]) -> MemoryOrder:
    """An order in which all operators can run on one stream and few bytes are in use at once.

    Of the operators that are ready, again and again the one that adds least to the bytes in use,
    what it frees taken off; ties: lowest id. Greedy, so not the least there is; where the
    topological order needs less, it is that one. A buffer is in use from the start of its producer
    to the end of its last user.

    Raises
    ------
    PlanError: for a buffer of negative size or with an unknown operator.

    Complexity: O(n * operators ready at once * buffers an operator touches).
    """
    order, peak_bytes, topological = _MEMORY_ORDER(graph.native, *_columns(buffers))
    return MemoryOrder(tuple(order), int(peak_bytes), int(topological))


def check_memory(
    graph: OpGraph,
    streams: Sequence[Sequence[int]],
    waits: Sequence[Sequence[int]],
    buffers: Sequence[Buffer],
    plan: MemoryPlan,
    alignment: int = 64,
) -> None:
    """Prove, apart from the planner, that no two buffers in use at once share bytes.

    Raises
    ------
    PlanError: naming the producers of two buffers that do, or of one that lies outside the arena
        or off its alignment.
    """
    columns = _columns(buffers)
    _CHECK_MEMORY(
        graph.native,
        _lists(streams),
        _lists(waits),
        *columns,
        alignment,
        list(plan.offsets),
        plan.arena_bytes,
    )


def _lists(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(row) for row in rows]


def _columns(buffers: Sequence[Buffer]) -> tuple[list[int], list[list[int]], list[list[int]]]:
    return (
        [buffer.nbytes for buffer in buffers],
        [list(buffer.producers) for buffer in buffers],
        [list(buffer.users) for buffer in buffers],
    )
