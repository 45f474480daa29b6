"""Simulates a schedule on one GPU block by block: residency, waves, launches and bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ScheduleError
from ..latency.gpu_blocks import BlockGpu, BlockKernel, Launch, check_kernel, run_launches
from ..program.graph import OpGraph
from ..program.planning import launch_order, sync_plan
from .schedules import Schedule


@dataclass(frozen=True)
class BlockRun:
    """The times of one simulated run of a schedule, block by block.

    Attributes
    ----------
    makespan_us: microseconds from the first launch to the end of the last block.
    timeline: each operator as (op, stream, start_us, end_us), in launch order. `op` is an id of the
        graph. An operator starts with its first block and ends with its last one.
    """

    makespan_us: float
    timeline: tuple[tuple[int, int, float, float], ...]


def simulate_blocks(
    graph: OpGraph,
    schedule: Schedule,
    kernels: Sequence[Sequence[BlockKernel]],
    gpu: BlockGpu,
) -> BlockRun:
    """Simulate `schedule` on one GPU, with the thread blocks of every kernel.

    One host thread launches the kernels in the schedule's launch order, `gpu.launch_us` apart. The
    n-th kernel, counted from 1, arrives at the GPU after n times `gpu.launch_us`. The kernel
    becomes ready `gpu.gap_us` after the end of the kernel before it on its stream. If its operator
    waits for operators on other streams, it becomes ready at the earliest `gpu.wait_us` after the
    end of each of them. The waits are the same as in a plan (`sync_plan`), and a stage with a
    barrier waits for the stage before it. When a kernel is ready, the rules of `latency.gpu_blocks`
    decide how its blocks run. If a schedule has no launch order, its streams launch one operator
    each in turn, as in a plan (`planning.launch_order`).

    Parameters
    ----------
    kernels: for each operator of the graph, by id, its kernels in order. An operator that launches
        no kernels, such as a view, has an empty list, and takes no time.

    Raises
    ------
    ScheduleError: the schedule has a fault (see `Schedule.validate`); a stage is merged, so
        `kernels` does not describe its operator; the schedule is over several GPUs; `kernels` and
        the graph have different numbers of operators; or a kernel cannot run (the message names
        its operator).

    Complexity: see `run_launches`.
    """
    schedule.validate(graph)
    _check(graph, schedule, kernels)
    ids = schedule.ids_in(graph)
    streams = [[ids[op] for op in ops] for ops in schedule.streams]
    barriers = [(ids[u], ids[v]) for u, v in schedule.ordering_edges()]
    waits = sync_plan(graph, streams, barriers)
    if schedule.launch_order is not None:
        order = [ids[op] for op in schedule.launch_order]
    else:
        order = launch_order([ops for ops in streams if ops], waits)
    launches, last_of = _launches(order, streams, waits, kernels, gpu.launch_us)
    start_us, end_us = run_launches(launches, gpu)
    stream_of = {op: s for s, ops in enumerate(streams) for op in ops}
    first_of = {op: last_of[op] - max(len(kernels[op]), 1) + 1 for op in order}
    timeline = tuple(
        (op, stream_of[op], start_us[first_of[op]], end_us[last_of[op]]) for op in order
    )
    return BlockRun(max(end_us, default=0.0), timeline)


def _launches(
    order: Sequence[int],
    streams: Sequence[Sequence[int]],
    waits: Sequence[Sequence[int]],
    kernels: Sequence[Sequence[BlockKernel]],
    launch_us: float,
) -> tuple[list[Launch], dict[int, int]]:
    """All kernel launches in order, and the index of each operator's last launch."""
    before = {op: ops[place - 1] for ops in streams for place, op in enumerate(ops) if place > 0}
    launches: list[Launch] = []
    last_of: dict[int, int] = {}
    arrives_us = 0.0
    for op in order:
        after = (last_of[before[op]],) if op in before else ()
        waited_for = tuple(last_of[source] for source in waits[op])
        for kernel in kernels[op] or (None,):
            if kernel is not None:
                arrives_us += launch_us
            launches.append(Launch(kernel, arrives_us, after, waited_for))
            after, waited_for = (len(launches) - 1,), ()
        last_of[op] = len(launches) - 1
    return launches, last_of


def _check(graph: OpGraph, schedule: Schedule, kernels: Sequence[Sequence[BlockKernel]]) -> None:
    if any(stage.kind == "merge" for stage in schedule.stages):
        raise ScheduleError(
            "a merged stage cannot be simulated block by block, because its operator has no "
            "kernels here; give a schedule without merged stages"
        )
    if len(set(schedule.devices)) > 1:
        raise ScheduleError(
            f"the schedule is over {len(set(schedule.devices))} GPUs, but this simulation has one "
            "GPU; use `simulate_gpus`"
        )
    if len(kernels) != graph.num_ops:
        raise ScheduleError(
            f"`kernels` describes {len(kernels)} operators, but the graph has {graph.num_ops}; "
            "give the kernels of each, by id"
        )
    for name, launches in zip(graph.names, kernels, strict=True):
        for kernel in launches:
            check_kernel(kernel, f"a kernel of operator `{name}`")
