"""What a schedule over GPUs takes, by the definition, and the best there is, by trying all.

Nothing here is shared with the schedulers or their simulation.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_interop.latency import LatencyModel
from tvm_interop.program.graph import OpGraph

GpuStages = Sequence[Sequence[Sequence[int]]]


def makespan_of(graph: OpGraph, stages: GpuStages, latency: LatencyModel) -> float:
    """HIOS, section III-B: a stage starts behind the one before it and behind all its inputs."""
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


def fifo_makespan_of(
    graph: OpGraph, stages: GpuStages, latency: LatencyModel, order: Sequence[int]
) -> float:
    """The same with one copy for each operator and GPU, in turns on each link.

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


def shortest(graph: OpGraph, gpus: int, latency: LatencyModel) -> float:
    """The least makespan of any mapping and any order, one operator at a time on each GPU.

    All topological orders are tried, each with all mappings: for a handful of operators.
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
        for op in range(graph.num_ops):
            if op in done or any(u not in done for u in graph.predecessors(op)):
                continue
            for gpu in range(min(gpus, used + 1)):  # Empty GPUs are all alike.
                start = free[gpu]
                for u in graph.predecessors(op):
                    copy = 0.0 if done[u][0] == gpu else latency.transfer(u, op)
                    start = max(start, done[u][1] + copy)
                finish = start + latency.op(op)
                if finish + behind[op] < best:
                    extend({**done, op: (gpu, finish)}, (*free[:gpu], finish, *free[gpu + 1 :]))

    extend({}, (0.0,) * gpus)
    return best
