"""The evaluator that HIOS's published curves come from; for those curves alone.

The authors' program keeps one clock a GPU. An operator waits for the clock of each of its sources'
GPUs as it stands, and not for the source's own end: a GPU that was given other work in between
seems to hold it up. Operators are visited by id. The paper states the constraint itself (section
III-B) as `Schedule.simulate` has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi

from tvm_interop.scheduling import schedule
from tvm_interop.scheduling.on_gpus import GpuPrices

from .hios_instances import Instance

_LONGEST_PATHS = tvm_ffi.get_global_func("tvm_interop.longest_paths")


class Clock:
    """Prices mappings of one instance.

    A stage of several operators is visited where the first of them is, and waits for the sources of
    all.
    """

    def __init__(self, subject: Instance, gpus: int) -> None:
        graph, latency = subject.graph, subject.latency
        self._gpus = gpus
        self._latency = latency
        self._num_ops = graph.num_ops
        self._op_us = [latency.op(op) for op in range(graph.num_ops)]
        self._sources = [
            [(u, latency.transfer(u, op)) for u in graph.predecessors(op)]
            for op in range(graph.num_ops)
        ]

    def latency_us(
        self, gpu_of: Sequence[int], stages: dict[int, tuple[tuple[int, ...], float]] | None = None
    ) -> float:
        """The latest clock.

        Parameters
        ----------
        gpu_of: by operator; -1 where it is not mapped, and not counted.
        stages: by first operator, the operators of a stage and what they take together.
        """
        clock = [0.0] * self._gpus
        merged = {op for ops, _ in (stages or {}).values() for op in ops[1:]}
        for op in range(self._num_ops):
            gpu = gpu_of[op]
            if gpu < 0 or op in merged:
                continue
            ops, us = (stages or {}).get(op, ((op,), self._op_us[op]))
            start = clock[gpu]
            for member in ops:
                for source, copy_us in self._sources[member]:
                    there = gpu_of[source]
                    if there >= 0:
                        start = max(start, clock[there] + (0.0 if there == gpu else copy_us))
            clock[gpu] = start + us
        return max(clock)


def longest_paths_by_clock(subject: Instance, gpus: int) -> tuple[list[int], float]:
    """HIOS-LP's mapping with each path's GPU chosen by the clock, and its latency."""
    prices = GpuPrices(subject.graph, subject.latency)
    clock = Clock(subject, gpus)
    gpu_of = [-1] * subject.graph.num_ops
    latency_us = 0.0
    for path in _LONGEST_PATHS(*prices.costs(gpus)):
        latencies = []
        for gpu in range(gpus):
            for op in path:
                gpu_of[op] = gpu
            latencies.append(clock.latency_us(gpu_of))
        latency_us = min(latencies)
        for op in path:
            gpu_of[op] = latencies.index(latency_us)
    return gpu_of, latency_us


def recurrence_by_clock(subject: Instance, gpus: int) -> tuple[list[int], float]:
    """HIOS-MR's mapping, as the product makes it, and its latency by the clock."""
    made = schedule(subject.graph, "hios-mr", subject.latency, gpus=gpus, intra="none")
    gpu_of = [0] * subject.graph.num_ops
    for gpu, stages in enumerate(made.gpu_stages):
        for (op,) in stages:
            gpu_of[op] = gpu
    return gpu_of, Clock(subject, gpus).latency_us(gpu_of)


def windows_by_clock(
    subject: Instance, gpus: int, gpu_of: Sequence[int], latency_us: float
) -> float:
    """Algorithm 2 with windows of two, by the clock: the latency in the end."""
    graph, clock = subject.graph, Clock(subject, gpus)
    stages: dict[int, tuple[tuple[int, ...], float]] = {}
    taken: set[int] = set()
    orders: list[list[int]] = [[] for _ in range(gpus)]
    for op, gpu in enumerate(gpu_of):
        orders[gpu].append(op)
    behind = {op: order[i + 1] for order in orders for i, op in enumerate(order[:-1])}
    for op in range(graph.num_ops):
        other = behind.get(op)
        if op in taken or other is None or graph.reaches(op, other):
            continue
        us = subject.latency.stage([(op,), (other,)])
        tried = {**stages, op: ((op, other), us)}
        found = clock.latency_us(gpu_of, tried)
        if found < latency_us:
            latency_us, stages = found, tried
            taken.update((op, other))
    return latency_us
