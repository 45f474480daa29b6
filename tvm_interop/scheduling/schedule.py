"""What a scheduler decides: which operators run side by side, and in which order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import tvm_ffi

from ..errors import LatencyError, ScheduleError
from ..graph import OpGraph
from ..latency.base import LatencyModel, check_size, op_latencies
from ..planning import pack_groups
from .schedule_json import read_schedule, write_schedule

_VALIDATE_STAGES = tvm_ffi.get_global_func("tvm_interop.validate_stages")
_VALIDATE_STREAMS = tvm_ffi.get_global_func("tvm_interop.validate_streams")
_SIMULATE_STREAMS = tvm_ffi.get_global_func("tvm_interop.simulate_streams")

STAGE_KINDS = ("concurrent", "merge")


@dataclass(frozen=True)
class Stage:
    """Groups of operators that run side by side; the operators of a group run in order.

    Attributes
    ----------
    groups: operator ids, one tuple a group.
    streams: the stream of each group. Groups may share one: they then run in order.
    kind: `concurrent`, or `merge` for one wider operator in place of several.
    barrier: whether every operator waits for all of the stages before, rather than only for
        those it depends on.
    """

    groups: tuple[tuple[int, ...], ...]
    streams: tuple[int, ...]
    kind: str = "concurrent"
    barrier: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(tuple(group) for group in self.groups))
        object.__setattr__(self, "streams", tuple(self.streams))
        if self.kind not in STAGE_KINDS:
            raise ScheduleError(
                f"there is no stage kind `{self.kind}`; use one of {', '.join(STAGE_KINDS)}"
            )
        if len(self.groups) != len(self.streams):
            raise ScheduleError(
                f"a stage of {len(self.groups)} groups names {len(self.streams)} streams; "
                "name the stream of each group"
            )
        for stream in self.streams:
            if stream < 0:
                raise ScheduleError(f"a group is on stream {stream}; streams count from 0")

    def by_stream(self) -> dict[int, tuple[int, ...]]:
        """The operators that each stream of this stage runs, in order, by ascending stream."""
        running: dict[int, tuple[int, ...]] = {}
        for stream, group in sorted(
            zip(self.streams, self.groups, strict=True), key=lambda pair: pair[0]
        ):
            running[stream] = running.get(stream, ()) + group
        return running


@dataclass(frozen=True)
class Schedule:
    """Which operators run side by side. Immutable; either staged or streamed.

    Attributes
    ----------
    scheduler: name of the scheduler that made it.
    op_names: the operators' names; ids in the other fields are positions here.
    stages: the stages of a staged schedule, in order; empty for a streamed one.
    streams: the operators of each stream, in order. A staged schedule's are derived: the stages
        laid one after the other onto their streams.
    makespan: predicted microseconds, or None where nothing was predicted.
    timeline: of a streamed schedule, each operator as (op, stream, start_us, finish_us) in the
        order in which it was scheduled; None where nothing was predicted.
    launch_order: of a streamed schedule, all operators in the order in which one host thread is to
        launch them; None where any order will do that the dependencies allow.
    devices: of a streamed schedule, the number of each stream's device: GPU 1 is `cuda:1`. Empty
        where all streams are on the one device that the model is compiled for.
    stats: what the search took and counted. No part of equality, and not saved.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "op_names", tuple(self.op_names))
        object.__setattr__(self, "stages", tuple(self.stages))
        object.__setattr__(self, "streams", tuple(tuple(ops) for ops in self.streams))
        if self.timeline is not None:
            object.__setattr__(self, "timeline", tuple(tuple(row) for row in self.timeline))
        object.__setattr__(self, "devices", tuple(self.devices))
        self._check_devices()
        if self.launch_order is not None:
            object.__setattr__(self, "launch_order", tuple(self.launch_order))
            if self.stages:
                raise ScheduleError(
                    "a schedule of stages has a launch order; stages are launched in turn"
                )
        if not self.stages:
            return
        for i, stage in enumerate(self.stages):
            for stream in stage.streams:
                if stream >= len(self.op_names):
                    raise ScheduleError(
                        f"stage {i} has a group on stream {stream}, but {len(self.op_names)} "
                        "operators cannot fill that many streams; number streams from 0"
                    )
        derived = _streams_of(self.stages)
        if self.streams and self.streams != derived:
            raise ScheduleError("give a schedule its stages or its streams, not both")
        object.__setattr__(self, "streams", derived)

    @property
    def is_staged(self) -> bool:
        """Whether it is a list of stages; otherwise it is one order of operators per stream."""
        return bool(self.stages)

    @property
    def num_streams(self) -> int:
        """How many streams it takes to run."""
        return len(self.streams)

    def validate(self, graph: OpGraph) -> None:
        """Check that `graph` can run in this order.

        Raises
        ------
        ScheduleError: at the first fault, naming the operators: one that the graph lacks, that
            is missing or there twice, or that would run before an operator whose output it
            reads. Groups of one stage may not depend on each other. A launch order must agree
            with the dependencies and the streams.
        """
        ids = self.ids_in(graph)
        if self.is_staged:
            _VALIDATE_STAGES(graph.native, [_pack_stage(stage, ids) for stage in self.stages])
        else:
            _VALIDATE_STREAMS(graph.native, self._streams_in(ids))
        if self.launch_order is not None:
            self._validate_launches(graph, [_id_in(op, ids) for op in self.launch_order])

    def ordering_edges(self) -> tuple[tuple[int, int], ...]:
        """The edges, beyond the dependencies, that the stages' barriers ask for, as ids.

        One from the last operator of each stream before a barrier to the first operator of each
        stream behind it; the streams' own order does the rest.
        """
        edges: list[tuple[int, int]] = []
        last: dict[int, int] = {}
        for stage in self.stages:
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

    def simulate(self, graph: OpGraph, latency: LatencyModel) -> float:
        """Predict the makespan in microseconds.

        Of a staged schedule: the sum of its stages' latencies, groups that share a stream taken
        as one group, and a merged stage as the one operator that it becomes. Of a streamed one:
        each operator starts when its stream is free and the operators it reads have finished.
        Copies between devices count nothing.

        Raises
        ------
        ScheduleError: as `validate`.
        LatencyError: where `latency` gives no usable number, naming the operator; for a merged
            stage that it does not know.
        """
        self.validate(graph)
        ids = self.ids_in(graph)
        if not self.is_staged:
            op_us = op_latencies(latency, graph.names)
            return float(_SIMULATE_STREAMS(graph.native, self._streams_in(ids), op_us.tobytes()))
        check_size(latency, graph.names)
        merged = [
            [ids[op] for group in stage.groups for op in group]
            for stage in self.stages
            if stage.kind == "merge"
        ]
        merges_us = latency.merges(merged).tolist() if merged else []
        for ops, us in zip(merged, merges_us, strict=True):
            if not math.isfinite(us):
                raise LatencyError(
                    "the latency model does not know what "
                    + ", ".join(f"`{graph.names[op]}`" for op in ops)
                    + " take as one operator; have a compilation measure it"
                )
        stages_us = latency.stages(
            [
                tuple(tuple(ids[op] for op in ops) for ops in stage.by_stream().values())
                for stage in self.stages
                if stage.kind != "merge"
            ]
        )
        return float(sum(merges_us)) + sum(map(float, stages_us))

    def to_json(self) -> str:
        """Write it as JSON that people can read and edit: operators by name, a group a line."""
        return write_schedule(self)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Read what `to_json` wrote.

        Raises
        ------
        ScheduleError: for text that is no JSON, a field that is missing, unknown (named) or of
            the wrong type, an operator that is not in the list, or a newer version.
        """
        return read_schedule(cls, Stage, text)

    def _check_devices(self) -> None:
        if not self.devices:
            return
        if self.stages:
            raise ScheduleError("a schedule of stages has devices; give streams in place of stages")
        if len(self.devices) != len(self.streams):
            raise ScheduleError(
                f"the schedule has {len(self.streams)} streams and names the devices of "
                f"{len(self.devices)}; name the device of each stream"
            )
        for stream, device in enumerate(self.devices):
            if device < 0:
                raise ScheduleError(f"stream {stream} is on device {device}; devices count from 0")

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
        """The graph's id of each of our operators: the two may number them differently."""
        if self.op_names == graph.names:
            return list(range(graph.num_ops))
        ids = {name: i for i, name in enumerate(graph.names)}
        for name in self.op_names:
            if name not in ids:
                raise ScheduleError(
                    f"the schedule has an operator `{name}`, which the graph has not; it was "
                    "made for another model"
                )
        return [ids[name] for name in self.op_names]

    def _streams_in(self, ids: list[int]) -> list[list[int]]:
        return [[_id_in(op, ids) for op in ops] for ops in self.streams]


def pack_onto_streams(
    stages: Sequence[Stage], op_us: Sequence[float], num_streams: int
) -> tuple[Stage, ...]:
    """Give the groups of each stage one of `num_streams` streams.

    Longest group first (the sum of its operators' `op_us`) onto the least loaded stream; ties:
    lowest group, lowest stream.
    """
    packed = []
    for stage in stages:
        group_us = [sum(op_us[op] for op in group) for group in stage.groups]
        streams = pack_groups(group_us, num_streams)
        packed.append(Stage(stage.groups, streams, stage.kind, stage.barrier))
    return tuple(packed)


def unpack_stages(native: Any) -> tuple[Stage, ...]:
    """Stages as the native schedulers return them: {kind, barrier}, streams, then the groups."""
    return tuple(
        Stage(
            groups=tuple(tuple(group) for group in list(lists)[2:]),
            streams=tuple(lists[1]),
            kind=STAGE_KINDS[lists[0][0]],
            barrier=bool(lists[0][1]),
        )
        for lists in native
    )


def _pack_stage(stage: Stage, ids: list[int]) -> list[list[int]]:
    groups = [[_id_in(op, ids) for op in group] for group in stage.groups]
    return [[STAGE_KINDS.index(stage.kind), int(stage.barrier)], list(stage.streams), *groups]


def _id_in(op: int, ids: list[int]) -> int:
    # An id of no operator stays one, for the native check to name.
    return ids[op] if 0 <= op < len(ids) else op


def _streams_of(stages: Sequence[Stage]) -> tuple[tuple[int, ...], ...]:
    num_streams = max((s + 1 for stage in stages for s in stage.streams), default=0)
    streams: list[list[int]] = [[] for _ in range(num_streams)]
    for stage in stages:
        for stream, group in zip(stage.streams, stage.groups, strict=True):
            streams[stream].extend(group)
    return tuple(tuple(ops) for ops in streams)
