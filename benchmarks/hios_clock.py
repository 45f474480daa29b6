"""The latency model behind HIOS's published curves. It is used only for these curves.

The authors' program keeps one clock for each GPU. It visits the operators in the order of their
ids. The sources of an operator are the operators whose outputs it reads. For each source, the
operator should wait for the end of the source. Instead, the program makes it wait until the present
time of the clock of the source's GPU. So work that this GPU got after the source seems to delay the
operator. In the constraint that the paper states (section III-B), the operator waits for the end of
the source. `Schedule.simulate` implements this constraint.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_interop._native import passes as _passes
from tvm_interop.scheduling import schedule
from tvm_interop.scheduling.on_gpus import GpuPrices

from .hios_instances import Instance


class Clock:
    """Computes the latency of mappings of one random model onto GPUs.

    A stage of several operators is visited when its first operator is due. The stage waits for the
    sources of all its operators.
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
        """The latency of a mapping in microseconds: the latest clock of all GPUs.

        Parameters
        ----------
        gpu_of: the GPU of each operator; -1 if the operator is not mapped and is to be ignored.
        stages: the stages of several operators, by the id of their first operator. A stage is a
            pair: its operators, and the microseconds that they take together.
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
    """Run HIOS-LP. Each path gets the GPU that has the shortest latency by the clock.

    Returns
    -------
    The GPU of each operator, and the latency by the clock in microseconds.
    """
    prices = GpuPrices(subject.graph, subject.latency)
    clock = Clock(subject, gpus)
    gpu_of = [-1] * subject.graph.num_ops
    latency_us = 0.0
    for path in _passes.longest_paths(*prices.costs(gpus)):
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
    """Run our scheduler `hios-mr`, without stages of several operators (windows).

    Returns
    -------
    The GPU of each operator, and the latency by the clock in microseconds.
    """
    made = schedule(subject.graph, "hios-mr", subject.latency, gpus=gpus, intra="none")
    gpu_of = [0] * subject.graph.num_ops
    for gpu, stages in enumerate(made.gpu_stages):
        for (op,) in stages:
            gpu_of[op] = gpu
    return gpu_of, Clock(subject, gpus).latency_us(gpu_of)


def windows_by_clock(
    subject: Instance, gpus: int, gpu_of: Sequence[int], latency_us: float
) -> float:
    """Run Algorithm 2 of the HIOS paper on a mapping, with windows of two operators.

    The operators of a window form a stage, and start together on their GPU.

    Parameters
    ----------
    gpu_of, latency_us: the mapping and its latency by the clock.

    Returns
    -------
    The final latency by the clock, in microseconds.
    """
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
