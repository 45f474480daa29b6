"""Simulates a schedule over several GPUs, including the copies between the GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from .._native import passes as native
from ..errors import ScheduleError
from ..latency.base import LatencyModel, op_latencies
from ..latency.transfers import edge_transfers
from ..program.graph import OpGraph
from ..program.planning import launch_order, sync_plan

Links = Literal["delay", "fifo"]
"""How copies between GPUs are timed; see `Schedule.simulate`."""


class StageOnGpu(Protocol):
    """The fields of a stage that the simulation reads."""

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def ops(self) -> tuple[int, ...]: ...
    @property
    def streams(self) -> tuple[int, ...]: ...
    @property
    def device(self) -> int | None: ...


class OnGpus(Protocol):
    """The fields of a schedule that the simulation reads.

    The class `Schedule` has these fields. This file does not import `Schedule`, because `schedules`
    imports this file.
    """

    @property
    def stages(self) -> Sequence[StageOnGpu]: ...
    @property
    def streams(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def devices(self) -> tuple[int, ...]: ...
    @property
    def launch_order(self) -> tuple[int, ...] | None: ...

    def validate(self, graph: OpGraph) -> None:
        """See `Schedule.validate`."""

    def ids_in(self, graph: OpGraph) -> list[int]:
        """See `Schedule.ids_in`."""

    def stages_us(self, graph: OpGraph, latency: LatencyModel) -> list[float]:
        """See `Schedule.stages_us`."""

    def launch_order_of_stages(self, graph: OpGraph) -> list[int]:
        """See `Schedule.launch_order_of_stages`."""


@dataclass(frozen=True)
class GpuTimes:
    """The times of a simulated run over GPUs.

    Attributes
    ----------
    makespan_us: microseconds from the start to the end of the last operator.
    timeline: each operator as (op, stream, start_us, end_us), in launch order; `op` is an id of the
        schedule. The operators of a stage start and end together.
    """

    makespan_us: float
    timeline: tuple[tuple[int, int, float, float], ...]


def simulate_gpus(
    graph: OpGraph, schedule: OnGpus, latency: LatencyModel, links: Links = "delay"
) -> GpuTimes:
    """Simulate a schedule over several GPUs.

    A stage starts when the stage before it on its GPU has ended and all inputs of its operators
    have arrived. It takes the latency that `latency` gives for the stage, and its operators end
    together (HIOS, section III-B). An operator of a stream starts when its stream is free and its
    inputs have arrived. It takes the latency that it has when it runs alone. So operators of a GPU
    slow each other down in the simulation only if the latencies of stages say so.

    With `fifo` links, copies leave in the order in which their operators are launched. If operators
    on one GPU read different outputs of an operator, only the longest of these transfers counts.

    Raises
    ------
    ScheduleError: the schedule has a fault (see `Schedule.validate`), or `links` is unknown.
    LatencyError: `latency` gives a number that is not a latency. The message names the operators.
    """
    if links not in get_args(Links):
        raise ScheduleError(f"`links` is {links!r}; it must be `delay` or `fifo`")
    schedule.validate(graph)
    launches = (
        _stages(graph, schedule, latency) if schedule.stages else _ops(graph, schedule, latency)
    )
    ids = schedule.ids_in(graph)
    start_us, end_us = (
        np.frombuffer(times, dtype=np.float64).tolist()
        for times in native.simulate_gpus(
            graph.native,
            [[ids[op] for op in launch.ops] for launch in launches],
            [launch.lane for launch in launches],
            [launch.device for launch in launches],
            np.array([launch.us for launch in launches], dtype=np.float64).tobytes(),
            edge_transfers(latency, graph).tobytes(),
            links == "fifo",
        )
    )
    rows = [
        (op, stream, start, end)
        for launch, start, end in zip(launches, start_us, end_us, strict=True)
        for op, stream in zip(launch.ops, launch.streams, strict=True)
    ]
    return GpuTimes(max(end_us, default=0.0), tuple(rows))


@dataclass(frozen=True)
class _Launch:
    """One launch of the simulation: an operator of a stream, or all operators of a stage together.

    The attribute `lane` is the operator's stream or the stage's GPU, which runs one launch at a
    time. A launch takes `us` microseconds. `ops` are operator ids in the schedule.
    """

    ops: tuple[int, ...]
    streams: tuple[int, ...]
    lane: int
    device: int
    us: float


def _stages(graph: OpGraph, schedule: OnGpus, latency: LatencyModel) -> list[_Launch]:
    stages_us = schedule.stages_us(graph, latency)
    launches = []
    for s in schedule.launch_order_of_stages(graph):
        stage = schedule.stages[s]
        streams = [
            stream for stream, group in zip(stage.streams, stage.groups, strict=True) for _ in group
        ]
        device = stage.device or 0
        launches.append(_Launch(stage.ops, tuple(streams), device, device, stages_us[s]))
    return launches


def _ops(graph: OpGraph, schedule: OnGpus, latency: LatencyModel) -> list[_Launch]:
    op_us = op_latencies(latency, graph.names)
    ids = schedule.ids_in(graph)
    ours = {op: i for i, op in enumerate(ids)}
    stream_of = {op: s for s, ops in enumerate(schedule.streams) for op in ops}
    order: Sequence[int]
    if schedule.launch_order is not None:
        order = schedule.launch_order
    else:
        streams = [[ids[op] for op in ops] for ops in schedule.streams if ops]
        order = [ours[op] for op in launch_order(streams, sync_plan(graph, streams))]
    return [
        _Launch(
            (op,),
            (stream_of[op],),
            stream_of[op],
            schedule.devices[stream_of[op]] if schedule.devices else 0,
            float(op_us[ids[op]]),
        )
        for op in order
    ]
