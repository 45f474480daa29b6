"""The class `Schedule`: which operators run side by side, and in which order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from .._native import passes as native
from ..errors import LatencyError, ScheduleError
from ..latency.base import (
    LatencyModel,
    check_size,
    merge_latencies,
    op_latencies,
    stage_latencies,
    sum_in_order,
)
from ..program.graph import OpGraph
from .gpu_simulation import Links, simulate_gpus
from .schedule_fields import as_ids, as_numbers, as_timeline, as_tuple, check_labels
from .schedule_json import read_schedule, write_schedule
from .stages import Stage, devices_of, side_by_side, streams_of


@dataclass(frozen=True, repr=False)
class Schedule:
    """An immutable schedule, which says which operators run side by side.

    A staged schedule is a list of stages. A streamed schedule has a list of operators for each
    stream. The stages or streams may be on several GPUs. A stage on one of several GPUs waits only
    for the stage before it on that GPU and for its inputs.

    Attributes
    ----------
    scheduler: name of the scheduler that made the schedule.
    op_names: the operators' names. An operator id in the other fields is a position in this tuple.
    stages: the stages of a staged schedule, in order; empty for a streamed schedule. With several
        GPUs, the stages of each GPU are in order. The host launches the stages in the order of this
        tuple. The exception is a stage that waits for stages later in the tuple: it is launched
        after them.
    streams: the operators of each stream, in order. In a staged schedule, the streams follow from
        `stages`: a stream holds the groups that the stages put on it, stage by stage.
    makespan: predicted time of a run in microseconds; None if the scheduler predicted no time.
    timeline: for a streamed schedule, each operator as (op, stream, start_us, finish_us), in the
        order in which the scheduler placed the operators; None if the scheduler predicted no times.
    launch_order: for a streamed schedule, all operators in the order in which one host thread
        launches them. None stands for any order that respects the dependencies.
    devices: the number of each stream's device: GPU 1 is `cuda:1`. Empty if all streams are on the
        one device that the model is compiled for. In a staged schedule, the devices follow from
        `stages`: a stream is on the device of its stages.
    stats: counts and times of the search. `==` does not compare them, and `to_json` does not write
        them.

    Examples
    --------
    >>> stages = [Stage([[0]], [0]), Stage([[1], [2]], [0, 1])]
    >>> schedule = Schedule("by hand", ("a", "b", "c"), stages=stages)
    >>> schedule
    Schedule(by hand: 3 operators, 2 stages on 2 stream(s))
    >>> Schedule.from_json(schedule.to_json()) == schedule
    True
    """

    scheduler: str
    op_names: tuple[str, ...]
    stages: tuple[Stage, ...] = ()
    streams: tuple[tuple[int, ...], ...] = ()
    makespan: float | None = None
    timeline: tuple[tuple[int, int, float, float], ...] | None = None
    launch_order: tuple[int, ...] | None = None
    devices: tuple[int, ...] = ()
    stats: dict[str, Any] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        stages = f"{len(self.stages)} stages on " if self.stages else ""
        predicted = "" if self.makespan is None else f", {self.makespan:.1f} us predicted"
        return (
            f"Schedule({self.scheduler}: {len(self.op_names)} operators, {stages}"
            f"{len(self.streams)} stream(s){predicted})"
        )

    def __post_init__(self) -> None:
        check_labels(self.scheduler, self.op_names, self.makespan)
        object.__setattr__(self, "op_names", tuple(self.op_names))
        object.__setattr__(self, "stages", as_tuple(self.stages, "the stages"))
        streams = as_tuple(self.streams, "the streams")
        object.__setattr__(self, "streams", tuple(as_ids(ops, "a stream") for ops in streams))
        if self.timeline is not None:
            object.__setattr__(self, "timeline", as_timeline(self.timeline))
        object.__setattr__(self, "devices", as_numbers(self.devices, "device", "stream"))
        if not self.stages:
            self._check_devices()
        if self.launch_order is not None:
            object.__setattr__(self, "launch_order", as_ids(self.launch_order, "the launch order"))
            if self.stages:
                raise ScheduleError(
                    "a schedule of stages has a launch order; stages are launched in turn, so "
                    "leave `launch_order` out"
                )
        if not self.stages:
            return
        for i, stage in enumerate(self.stages):
            if not isinstance(stage, Stage):
                raise ScheduleError(f"stage {i} is {stage!r}; it must be a `Stage`")
            for stream in stage.streams:
                if stream >= len(self.op_names):
                    raise ScheduleError(
                        f"stage {i} has a group on stream {stream}, but {len(self.op_names)} "
                        "operators cannot fill that many streams; number streams from 0"
                    )
        derived = streams_of(self.stages)
        if self.streams and self.streams != derived:
            raise ScheduleError("give a schedule its stages or its streams, not both")
        object.__setattr__(self, "streams", derived)
        devices = devices_of(self.stages, len(derived))
        if self.devices and self.devices != devices:
            raise ScheduleError(
                "a schedule of stages has `devices`; give each stage its `device` in place of them"
            )
        object.__setattr__(self, "devices", devices)

    @classmethod
    def from_gpu_stages(
        cls,
        scheduler: str,
        op_names: Sequence[str],
        gpu_stages: Sequence[Sequence[Sequence[int]]],
        **fields: Any,
    ) -> Schedule:
        """Make a schedule from the stages of each GPU, as the property `gpu_stages` returns them.

        The operators of a stage start together, each on its own stream. The host launches the
        first stage of each GPU, then the second stage of each GPU, and so on. But if a stage waits
        for another stage, it is launched after that stage.

        Parameters
        ----------
        gpu_stages: for each GPU, its stages in order. A stage is a list of operator ids.
        fields: other fields of the schedule, such as `makespan`.
        """
        widths = [max(map(len, stages), default=0) for stages in gpu_stages]
        stages = [
            (i, gpu, side_by_side(ops, gpu, sum(widths[:gpu])))
            for gpu, on_gpu in enumerate(gpu_stages)
            for i, ops in enumerate(on_gpu)
        ]
        in_turns = sorted(stages, key=lambda stage: stage[:2])
        return cls(scheduler, tuple(op_names), tuple(stage for *_, stage in in_turns), **fields)

    @property
    def gpu_stages(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """The stages of each GPU, in order, from GPU 0 on. A stage is a tuple of operator ids.

        If the stages name no GPU, all of them count as stages of GPU 0. For a streamed schedule,
        the result is empty.
        """
        on_gpu: list[list[tuple[int, ...]]] = [
            [] for _ in range(1 + max((stage.device or 0 for stage in self.stages), default=-1))
        ]
        for stage in self.stages:
            on_gpu[stage.device or 0].append(stage.ops)
        return tuple(map(tuple, on_gpu))

    @property
    def is_staged(self) -> bool:
        """Whether the schedule is staged; if not, it is streamed."""
        return bool(self.stages)

    @property
    def num_streams(self) -> int:
        """Number of streams that a run of the schedule uses."""
        return len(self.streams)

    def validate(self, graph: OpGraph) -> None:
        """Check that `graph` can run in the order of this schedule.

        Raises
        ------
        ScheduleError: the schedule has a fault. The message names the operators of the first fault.
            The faults are: an operator that the graph does not have; an operator that is missing or
            listed twice; an operator that would run before it has all its inputs; a group that
            depends on another group of its stage; stages on several GPUs that wait for each other
            in a circle; a launch order that contradicts the dependencies or the streams; and a
            timeline with an operator that the schedule does not have.
        """
        ids = self.ids_in(graph)
        if self.is_staged:
            native.validate_stages(graph.native, *self._packed_stages(ids))
        else:
            native.validate_streams(graph.native, self._streams_in(ids))
        for op, *_ in self.timeline or ():
            _id_in(op, ids)
        if self.launch_order is not None:
            self._validate_launches(graph, [_id_in(op, ids) for op in self.launch_order])

    def ordering_edges(self) -> tuple[tuple[int, int], ...]:
        """The edges that the stages' barriers add to the dependencies, as pairs of operator ids.

        A barrier adds edges between operators of the same device. For each pair of streams, an edge
        leads from the last operator before the barrier on one stream to the first operator after it
        on the other. Within a stream, no edge is needed, because a stream runs its operators in
        order.
        """
        edges: list[tuple[int, int]] = []
        last_on: dict[int | None, dict[int, int]] = {}
        for stage in self.stages:
            last = last_on.setdefault(stage.device, {})
            running = {stream: ops for stream, ops in stage.by_stream().items() if ops}
            if stage.barrier:
                edges += [
                    (last[before], ops[0])
                    for stream, ops in running.items()
                    for before in sorted(last)
                    if before != stream
                ]
            last.update((stream, ops[-1]) for stream, ops in running.items())
        return tuple(edges)

    def launch_order_of_stages(self, graph: OpGraph) -> list[int]:
        """The order in which the host launches the stages, as indices into `stages`.

        The host launches a stage only after all stages that it waits for. If several stages can be
        launched next, the first of them in `stages` is launched.

        Raises
        ------
        ScheduleError: the schedule has a fault (see `validate`).
        """
        return list(native.launch_order(graph.native, *self._packed_stages(self.ids_in(graph))))

    def simulate(self, graph: OpGraph, latency: LatencyModel, links: Links = "delay") -> float:
        """Predict the makespan of this schedule in microseconds.

        A staged schedule takes the sum of its stages' latencies. Groups that share a stream count
        as one group. A merged stage takes the latency of its merged operator.

        In a streamed schedule, an operator starts when its stream is free and the operators that it
        reads have finished.

        Over several GPUs, a stage starts when the stage before it on its GPU has ended and all its
        inputs have arrived. An operator of a stream starts when the operator before it on its
        stream has ended and its inputs have arrived. See `simulate_gpus`.

        Parameters
        ----------
        links: how copies between GPUs are timed. With `delay`, each edge between two GPUs adds
            `latency.transfer` microseconds (HIOS). With `fifo`, the output of an operator is
            copied once to each GPU that reads it, and a link makes one copy at a time. Plans run
            copies in this way.

        Raises
        ------
        ScheduleError: the schedule has a fault (see `validate`).
        LatencyError: `latency` gives a number that is not a latency, or does not know a merged
            stage. The message names the operators.
        """
        if len(set(self.devices)) > 1:
            return simulate_gpus(graph, self, latency, links).makespan_us
        self.validate(graph)
        ids = self.ids_in(graph)
        if not self.is_staged:
            op_us = op_latencies(latency, graph.names)
            return float(
                native.simulate_streams(graph.native, self._streams_in(ids), op_us.tobytes())
            )
        return sum_in_order(self.stages_us(graph, latency))

    def stages_us(self, graph: OpGraph, latency: LatencyModel) -> list[float]:
        """The latency of each stage in microseconds. Groups on the same stream count as one group.

        Raises
        ------
        LatencyError: `latency` gives a number that is not a latency, or does not know a merged
            stage. The message names the operators.
        """
        check_size(latency, graph.names)
        ids = self.ids_in(graph)
        merged: list[Sequence[int]] = [
            [ids[op] for op in stage.ops] for stage in self.stages if stage.kind == "merge"
        ]
        merges_us = merge_latencies(latency, merged, graph.names) if merged else np.empty(0)
        for ops, us in zip(merged, merges_us.tolist(), strict=True):
            if math.isinf(us):
                raise LatencyError(
                    "the latency model does not know how long "
                    + ", ".join(f"`{graph.names[op]}`" for op in ops)
                    + " take as one operator; have a compilation measure it"
                )
        concurrent_us = stage_latencies(latency, self._concurrent_stages(ids), graph.names)
        of_kind = {"merge": iter(merges_us.tolist()), "concurrent": iter(concurrent_us.tolist())}
        return [float(next(of_kind[stage.kind])) for stage in self.stages]

    def measure_again(self, graph: OpGraph, latency: LatencyModel) -> int:
        """Make `latency` measure the stages again, because their first latencies may be too low.

        Returns
        -------
        The number of stages that were measured; see `LatencyModel.measure_again`. Streamed
        schedules and merged stages are not measured.
        """
        return latency.measure_again(self.concurrent_stages(graph))

    def concurrent_stages(self, graph: OpGraph) -> list[tuple[tuple[int, ...], ...]]:
        """For each stage that is not merged, the operators of each stream, as ids of `graph`.

        The list is empty for a streamed schedule.
        """
        return self._concurrent_stages(self.ids_in(graph))

    def to_json(self) -> str:
        """Write the schedule as JSON that people can read and edit.

        Operators are written by name, and each group is on a separate line.
        """
        return write_schedule(self)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Read a schedule that `to_json` wrote.

        Raises
        ------
        ScheduleError: the text is not JSON or has a newer version of the format; a field is missing
            or of the wrong type; a field is unknown, and the message names it; or an operator is
            not in the list of operators.
        """
        fields = read_schedule(text)
        stages = tuple(Stage(**stage._asdict()) for stage in fields.stages)
        return cls(**fields._replace(stages=())._asdict() | {"stages": stages})

    def _check_devices(self) -> None:
        if not self.devices:
            return
        if len(self.devices) != len(self.streams):
            raise ScheduleError(
                f"the schedule has {len(self.streams)} streams and names the devices of "
                f"{len(self.devices)}; name the device of each stream"
            )

    def _validate_launches(self, graph: OpGraph, order: list[int]) -> None:
        if sorted(order) != list(range(graph.num_ops)):
            raise ScheduleError(
                f"the launch order has {len(order)} operators for {graph.num_ops}; "
                "it must hold each operator once"
            )
        position = {op: i for i, op in enumerate(order)}
        streams = self._streams_in(self.ids_in(graph))
        along_streams = (pair for ops in streams for pair in pairwise(ops))
        for before, after in (*graph.edges, *along_streams):
            if position[before] > position[after]:
                raise ScheduleError(
                    f"the launch order has `{graph.names[after]}` before "
                    f"`{graph.names[before]}`, which must run first"
                )

    def ids_in(self, graph: OpGraph) -> list[int]:
        """The id in `graph` of each operator of this schedule.

        The schedule and the graph may number the operators differently.
        """
        if self.op_names == graph.names:
            return list(range(graph.num_ops))
        ids = {name: i for i, name in enumerate(graph.names)}
        for name in self.op_names:
            if name not in ids:
                raise ScheduleError(
                    f"the schedule has an operator `{name}`, which the graph does not have; it was "
                    "made for another model"
                )
        return [ids[name] for name in self.op_names]

    def _concurrent_stages(self, ids: list[int]) -> list[tuple[tuple[int, ...], ...]]:
        """For each stage that is not merged, the operators of each stream, as ids of the graph."""
        return [
            tuple(tuple(ids[op] for op in ops) for ops in stage.by_stream().values())
            for stage in self.stages
            if stage.kind != "merge"
        ]

    def _packed_stages(self, ids: list[int]) -> tuple[list[list[list[int]]], list[int]]:
        """The stages in the native form (see `unpack_stages`), and their devices (-1 for none)."""
        devices = [-1 if stage.device is None else stage.device for stage in self.stages]
        return [_pack_stage(stage, ids) for stage in self.stages], devices

    def _streams_in(self, ids: list[int]) -> list[list[int]]:
        return [[_id_in(op, ids) for op in ops] for ops in self.streams]


def _pack_stage(stage: Stage, ids: list[int]) -> list[list[int]]:
    groups = [[_id_in(op, ids) for op in group] for group in stage.groups]
    return [list(stage.streams), *groups]


def _id_in(op: int, ids: list[int]) -> int:
    if 0 <= op < len(ids):
        return ids[op]
    raise ScheduleError(
        f"the schedule holds operator {op}, but has {len(ids)} operators, numbered from 0"
    )
