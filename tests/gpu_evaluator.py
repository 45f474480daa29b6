"""Computes makespans of schedules over GPUs, as HIOS defines them, and the least makespan.

This module shares no code with the schedulers or their simulation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tvm_interop.latency import LatencyModel
from tvm_interop.program.graph import OpGraph

GpuStages = Sequence[Sequence[Sequence[int]]]


def makespan_of(graph: OpGraph, stages: GpuStages, latency: LatencyModel) -> float:
    """The makespan as HIOS, section III-B, defines it.

    A stage waits for the stage before it on its GPU, and for its inputs.
    """
    where = {
        op: (gpu, i)
        for gpu, on_gpu in enumerate(stages)
        for i, ops in enumerate(on_gpu)
        for op in ops
    }
    assert sorted(where) == list(range(graph.num_ops))
    ends: dict[tuple[int, int], float] = {}

    def end(place: tuple[int, int]) -> float:
        if place not in ends:
            gpu, i = place
            start = end((gpu, i - 1)) if i > 0 else 0.0
            for op in stages[gpu][i]:
                for source in graph.predecessors(op):
                    copy = 0.0 if where[source][0] == gpu else latency.transfer(source, op)
                    start = max(start, end(where[source]) + copy)
            ops = stages[gpu][i]
            us = latency.op(ops[0]) if len(ops) == 1 else latency.stage([(op,) for op in ops])
            ends[place] = start + us
        return ends[place]

    return max(map(end, set(where.values())), default=0.0)


def streams_makespan_of(
    graph: OpGraph, streams: Sequence[Sequence[int]], latency: LatencyModel
) -> float:
    """The makespan of streams on one GPU.

    An operator waits for the operator before it on its stream, and for its inputs.
    """
    behind = {op: ops[i - 1] for ops in streams for i, op in enumerate(ops) if i > 0}
    ends: dict[int, float] = {}

    def end(op: int) -> float:
        if op not in ends:
            awaited = [*graph.predecessors(op), *([behind[op]] if op in behind else [])]
            ends[op] = max(map(end, awaited), default=0.0) + latency.op(op)
        return ends[op]

    return max((end(op) for ops in streams for op in ops), default=0.0)


def fifo_makespan_of(
    graph: OpGraph, stages: GpuStages, latency: LatencyModel, order: Sequence[int]
) -> float:
    """The makespan if each operator's result is copied to a GPU at most once.

    A link between two GPUs makes one copy at a time.

    Parameters
    ----------
    order: the operators in the order in which they are launched.
    """
    gpu_of = {op: g for g, on_gpu in enumerate(stages) for ops in on_gpu for op in ops}
    stage_of = {op: tuple(ops) for on_gpu in stages for ops in on_gpu for op in ops}
    free, link, end, there = {}, {}, {}, {}
    for op in order:
        stage = stage_of[op]
        if op != stage[0]:
            continue
        gpu = gpu_of[op]
        inputs = [
            end[u] if gpu_of[u] == gpu else there[u, gpu]
            for member in stage
            for u in graph.predecessors(member)
        ]
        start = max([free.get(gpu, 0.0), *inputs])
        us = latency.op(op) if len(stage) == 1 else latency.stage([(m,) for m in stage])
        free[gpu] = start + us
        for member in stage:
            end[member] = start + us
            for target in sorted({gpu_of[v] for v in graph.successors(member)} - {gpu}):
                copy = max(
                    latency.transfer(member, v)
                    for v in graph.successors(member)
                    if gpu_of[v] == target
                )
                begin = max(end[member], link.get((gpu, target), 0.0))
                there[member, target] = link[gpu, target] = begin + copy
    return max(end.values(), default=0.0)


def shortest(graph: OpGraph, gpus: int, latency: LatencyModel, window: int = 1) -> float:
    """The least makespan of all mappings and orders, with up to `window` operators in a stage.

    All orders of stages are tried, and all mappings for each order. So the graph must be small. A
    stage must take at least as long as each of its operators alone.
    """
    behind = dict.fromkeys(range(graph.num_ops), 0.0)
    for op in reversed(graph.topological_order()):
        behind[op] = max((latency.op(v) + behind[v] for v in graph.successors(op)), default=0.0)
    best = sum(map(latency.op, range(graph.num_ops)))

    def extend(done: dict[int, tuple[int, float]], free: tuple[float, ...]) -> None:
        nonlocal best
        if len(done) == graph.num_ops:
            best = min(best, max(free, default=0.0))
            return
        used = len({gpu for gpu, _ in done.values()})
        ready = [
            op
            for op in range(graph.num_ops)
            if op not in done and all(u in done for u in graph.predecessors(op))
        ]
        stages = [
            stage for size in range(1, window + 1) for stage in itertools.combinations(ready, size)
        ]
        for stage in stages:
            us = latency.op(*stage) if len(stage) == 1 else latency.stage([(op,) for op in stage])
            # GPUs without operators are all alike, so only one of them is tried for the next
            # operator.
            for gpu in range(min(gpus, used + 1)):
                start = free[gpu]
                for op in stage:
                    for u in graph.predecessors(op):
                        copy = 0.0 if done[u][0] == gpu else latency.transfer(u, op)
                        start = max(start, done[u][1] + copy)
                finish = start + us
                if finish + max(behind[op] for op in stage) < best:
                    ended = {**done, **dict.fromkeys(stage, (gpu, finish))}
                    extend(ended, (*free[:gpu], finish, *free[gpu + 1 :]))

    extend({}, (0.0,) * gpus)
    return best
