"""Finds the waits between operators that make a schedule safe, and places buffers in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .._native import passes as native
from ..errors import PlanError
from ..plain_data import LARGEST, is_whole
from .graph import OpGraph, pack_edges


@dataclass(frozen=True)
class Buffer:
    """A tensor that needs storage while the model runs.

    Attributes
    ----------
    nbytes: size of the tensor in bytes; 0 is allowed.
    producers: ids of the operators that write the tensor: one, or several that each write a part.
    users: ids of all operators that read the tensor.
    """

    nbytes: int
    producers: tuple[int, ...]
    users: tuple[int, ...] = ()


@dataclass(frozen=True)
class MemoryPlan:
    """The place of each buffer in an arena, a block of memory that buffers share.

    Attributes
    ----------
    offsets: offset of each buffer, in bytes.
    arena_bytes: size of the arena, in bytes.
    """

    offsets: tuple[int, ...]
    arena_bytes: int


@dataclass(frozen=True)
class MemoryOrder:
    """An order of operators, and the memory that it needs.

    Attributes
    ----------
    order: ids of all operators, in the order in which they run.
    peak_bytes: the most bytes in use at once.
    topological_peak_bytes: for comparison, the most bytes in use at once if the operators run in
        the order of `OpGraph.topological_order`.
    """

    order: tuple[int, ...]
    peak_bytes: int
    topological_peak_bytes: int


def sync_plan(
    graph: OpGraph,
    streams: Sequence[Sequence[int]],
    extra_edges: Iterable[tuple[int, int]] = (),
) -> list[tuple[int, ...]]:
    """For each operator, find the operators on other streams that it must wait for.

    The dependencies, the order on each stream and `extra_edges` together form a graph. The waits
    are those edges of its transitive reduction that lead from one stream to another. No smaller set
    of waits enforces the same order. The waits of each operator are sorted by stream.

    Parameters
    ----------
    streams: the operators of each stream, in order. Each operator is on exactly one stream.
    extra_edges: further pairs of operators to order, such as `Schedule.ordering_edges()`.

    Raises
    ------
    PlanError: the streams cannot be run. The message names the operators that would wait for each
        other in a circle, or an operator that is missing or occurs twice.

    Complexity: O((operators + edges) * streams), by vector clocks.
    """
    edges = _lists(extra_edges)
    if any(len(edge) != 2 for edge in edges):
        raise PlanError("an entry of `extra_edges` is not a pair; give two operators for each edge")
    waits = native.plan_sync(graph.native, _lists(streams), pack_edges((u, v) for u, v in edges))
    return [tuple(ops) for ops in waits]


def launch_order(streams: Sequence[Sequence[int]], waits: Sequence[Sequence[int]]) -> list[int]:
    """Merge streams into one order, in which an operator comes after those that it waits for.

    The streams take turns (round robin). In its turn, a stream adds operators as far as its waits
    allow.

    Parameters
    ----------
    waits: for each operator, the operators that it waits for, as `sync_plan` returns them. The
        waits must not form a circle.
    """
    order: list[int] = []
    done: set[int] = set()
    next_of = [0] * len(streams)
    while any(place < len(ops) for place, ops in zip(next_of, streams, strict=True)):
        before = len(order)
        for s, ops in enumerate(streams):
            while next_of[s] < len(ops) and done.issuperset(waits[ops[next_of[s]]]):
                done.add(ops[next_of[s]])
                order.append(ops[next_of[s]])
                next_of[s] += 1
        assert len(order) > before, "validated schedules have no circular waits"
    return order


def memory_plan(
    graph: OpGraph,
    streams: Sequence[Sequence[int]],
    waits: Sequence[Sequence[int]],
    buffers: Sequence[Buffer],
    alignment: int = 64,
) -> MemoryPlan:
    """Place buffers in one arena. Buffers share bytes only if the order of operators allows it.

    Two buffers may share bytes if every operator that uses one buffer has finished before any
    producer of the other buffer starts. The given streams and waits must enforce this order for any
    latencies of the operators. One consequence is that an operator never writes over a buffer that
    it reads. Buffers are placed from the largest to the smallest, and equally large buffers by
    index. Each buffer gets the lowest aligned offset that is free.

    Raises
    ------
    PlanError: a buffer has a negative size or an unknown operator, the alignment is below 1, or the
        streams cannot be run.
    """
    offsets, arena_bytes = native.plan_memory(
        graph.native, _lists(streams), _lists(waits), *_columns(buffers), alignment
    )
    return MemoryPlan(tuple(offsets), int(arena_bytes))


def memory_order(graph: OpGraph, buffers: Sequence[Buffer]) -> MemoryOrder:
    """Find an order to run all operators on one stream in which few bytes are in use at once.

    The order is greedy. The next operator is the ready operator that adds the fewest bytes to the
    bytes in use. Bytes that an operator frees count as negative. Ties: the lowest id. Because the
    order is greedy, its peak is not always the smallest possible. If `OpGraph.topological_order`
    has a lower peak, that order is returned instead. A buffer is in use from the start of its
    producer to the end of its last user.

    Raises
    ------
    PlanError: a buffer has a negative size or an unknown operator.

    Complexity: O(operators * operators ready at once * buffers that an operator uses).
    """
    order, peak_bytes, topological = native.memory_order(graph.native, *_columns(buffers))
    return MemoryOrder(tuple(order), int(peak_bytes), int(topological))


def _lists(rows: Iterable[Sequence[int]]) -> list[list[int]]:
    if not isinstance(rows, Iterable):
        raise PlanError(f"{rows!r} is given for lists of operators; give a list of lists")
    return [_whole_numbers(row, "operator ids") for row in rows]


def _columns(buffers: Sequence[Buffer]) -> tuple[list[int], list[list[int]], list[list[int]]]:
    return (
        _whole_numbers((buffer.nbytes for buffer in buffers), "the buffers' numbers of bytes"),
        _lists([buffer.producers for buffer in buffers]),
        _lists([buffer.users for buffer in buffers]),
    )


def _whole_numbers(values: Iterable[int], what: str) -> list[int]:
    if not isinstance(values, Iterable):
        raise PlanError(f"{values!r} is given for {what}; give a list")
    numbers = list(values)
    for value in numbers:
        if not is_whole(value) or abs(value) > LARGEST:
            raise PlanError(f"{value!r} is given for {what}; give whole numbers, at most {LARGEST}")
    return numbers
