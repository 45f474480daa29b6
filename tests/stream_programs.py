"""Checks waits and memory that a planner has chosen, with the checker of stream programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvm_interop.checking.races import check_program
from tvm_interop.checking.stream_program import Access, StreamOperator, StreamProgram
from tvm_interop.program.graph import OpGraph
from tvm_interop.program.planning import Buffer, MemoryPlan


def check_sync(
    graph: OpGraph,
    streams: Sequence[Sequence[int]],
    waits: Sequence[Sequence[int]],
    extra_edges: Iterable[tuple[int, int]] = (),
) -> None:
    """Raise `PlanError` unless `waits` order every dependency and every edge of `extra_edges`."""
    edges = [*graph.edges, *extra_edges]
    reads = [[Access(f"of {u}") for u, v in edges if v == op] for op in range(graph.num_ops)]
    writes = [[Access(f"of {op}")] for op in range(graph.num_ops)]
    check_program(_program(graph, streams, waits, reads, writes)).raise_for_faults()


def check_memory(
    graph: OpGraph,
    streams: Sequence[Sequence[int]],
    waits: Sequence[Sequence[int]],
    buffers: Sequence[Buffer],
    plan: MemoryPlan,
) -> None:
    """Raise `PlanError` if a user of a buffer reads other data than its producers wrote.

    Also raise `PlanError` if a buffer lies outside of the arena. If a buffer has several producers,
    each writes a share of it. Users that no wait orders after the producers are not checked here,
    because `check_sync` reports them.
    """
    reads: list[list[Access]] = [[] for _ in range(graph.num_ops)]
    writes: list[list[Access]] = [[] for _ in range(graph.num_ops)]
    for b, (buffer, begin) in enumerate(zip(buffers, plan.offsets, strict=True)):
        for i, op in enumerate(buffer.producers):
            share = (i, len(buffer.producers))
            writes[op].append(Access("arena", begin, begin + buffer.nbytes, str(b), share))
        for op in buffer.users:
            reads[op].append(Access("arena", begin, begin + buffer.nbytes, str(b)))
    made = _program(graph, streams, waits, reads, writes, arena_bytes=plan.arena_bytes)
    check_program(made).raise_for_faults()


def _program(
    graph: OpGraph,
    streams: Sequence[Sequence[int]],
    waits: Sequence[Sequence[int]],
    reads: Sequence[Sequence[Access]],
    writes: Sequence[Sequence[Access]],
    arena_bytes: int | None = None,
) -> StreamProgram:
    operators = tuple(
        StreamOperator(
            graph.names[op],
            str(stream),
            tuple(reads[op]),
            tuple(writes[op]),
            tuple(graph.names[source] for source in waits[op]),
            restrict=True,
        )
        for stream, ops in enumerate(streams)
        for op in ops
    )
    buffers = {} if arena_bytes is None else {"arena": arena_bytes}
    return StreamProgram(operators=operators, buffers=buffers)
