"""Reads and writes a schedule as versioned JSON text, and refuses unknown fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from ..errors import ScheduleError

FORMAT = "tvm_interop.schedule"
VERSION = 2
"""Version of the format that `write_schedule` writes. Version 2 added the devices of stages.
`read_schedule` also reads version 1."""
_LINE = 96


class StageLike(Protocol):
    """The fields of a stage that `write_schedule` writes."""

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def streams(self) -> tuple[int, ...]: ...
    @property
    def kind(self) -> str: ...
    @property
    def barrier(self) -> bool: ...
    @property
    def device(self) -> int | None: ...


class ScheduleLike(Protocol):
    """The fields of a schedule that `write_schedule` writes.

    The class `Schedule` has these fields. This file does not import `Schedule`, because `schedules`
    imports this file.
    """

    @property
    def scheduler(self) -> str: ...
    @property
    def op_names(self) -> tuple[str, ...]: ...
    @property
    def stages(self) -> Sequence[StageLike]: ...
    @property
    def streams(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def makespan(self) -> float | None: ...
    @property
    def timeline(self) -> tuple[tuple[int, int, float, float], ...] | None: ...
    @property
    def launch_order(self) -> tuple[int, ...] | None: ...
    @property
    def devices(self) -> tuple[int, ...]: ...


class StageFields(NamedTuple):
    """The fields of a stage that `read_schedule` has read, with operators by id."""

    groups: tuple[tuple[int, ...], ...]
    streams: tuple[int, ...]
    kind: str
    barrier: bool
    device: int | None


class ScheduleFields(NamedTuple):
    """The fields of a schedule that `read_schedule` has read, with operators by id."""

    scheduler: str
    op_names: tuple[str, ...]
    stages: tuple[StageFields, ...]
    streams: tuple[tuple[int, ...], ...]
    makespan: float | None
    timeline: tuple[tuple[int, int, float, float], ...] | None
    launch_order: tuple[int, ...] | None
    devices: tuple[int, ...]


def write_schedule(schedule: ScheduleLike) -> str:
    """Write a schedule as JSON, with operators by name.

    The JSON text has a line for each group, each stream and each row of the timeline.
    """
    names = schedule.op_names
    fields = [
        f'"format": {_dump(FORMAT)}',
        f'"version": {VERSION}',
        f'"scheduler": {_dump(schedule.scheduler)}',
        f'"makespan_us": {_dump(schedule.makespan)}',
        f'"operators": [\n{_wrapped(map(_dump, names))}\n  ]',
    ]
    if schedule.stages:
        stages = ",\n".join(f"    {_stage_text(stage, names)}" for stage in schedule.stages)
        fields.append(f'"stages": [\n{stages}\n  ]')
    else:
        streams = ",\n".join(
            f"    {_dump([_name(op, names) for op in ops])}" for ops in schedule.streams
        )
        fields.append(f'"streams": [\n{streams}\n  ]')
    if schedule.devices and not schedule.stages:
        fields.append(f'"devices": {_dump(list(schedule.devices))}')
    if schedule.timeline is not None:
        rows = ",\n".join(
            f"    {_dump([_name(op, names), stream, start, finish])}"
            for op, stream, start, finish in schedule.timeline
        )
        fields.append(f'"timeline": [\n{rows}\n  ]')
    if schedule.launch_order is not None:
        launches = _wrapped(_dump(_name(op, names)) for op in schedule.launch_order)
        fields.append(f'"launch_order": [\n{launches}\n  ]')
    return "{\n  " + ",\n  ".join(fields) + "\n}\n"


class _Group(msgspec.Struct, forbid_unknown_fields=True):
    stream: int
    operators: list[str]


class _Stage(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    barrier: bool
    groups: list[_Group]
    device: int | None = None


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    scheduler: str
    operators: list[str]
    makespan_us: float | None = None
    stages: list[_Stage] | None = None
    streams: list[list[str]] | None = None
    devices: list[int] = []
    timeline: list[tuple[str, int, float, float]] | None = None
    launch_order: list[str] | None = None


class _Head(msgspec.Struct):
    """The fields that tell whether a text is a schedule, and the version of its format."""

    format: str | None = None
    version: int | None = None


def read_schedule(text: str) -> ScheduleFields:
    """Read the schedule that `text` describes; raise ScheduleError if `text` is malformed."""
    _check_head(_decoded(text, _Head))
    document = _decoded(text, _Document)
    names = document.operators
    ids = {name: i for i, name in enumerate(names)}
    if len(ids) < len(names):
        twice = next(name for i, name in enumerate(names) if ids[name] != i)
        raise ScheduleError(f"`operators` lists `{twice}` twice; names must be unique")
    if (document.stages is None) == (document.streams is None):
        raise ScheduleError("a schedule has either a field `stages` or a field `streams`")
    stages = [
        StageFields(
            groups=tuple(_ids(g.operators, f"stage {i}", ids) for g in stage.groups),
            streams=tuple(group.stream for group in stage.groups),
            kind=stage.kind,
            barrier=stage.barrier,
            device=stage.device,
        )
        for i, stage in enumerate(document.stages or ())
    ]
    timeline = (
        None
        if document.timeline is None
        else tuple(
            (_ids([name], "`timeline`", ids)[0], stream, start, finish)
            for name, stream, start, finish in document.timeline
        )
    )
    launch = document.launch_order
    return ScheduleFields(
        scheduler=document.scheduler,
        op_names=tuple(names),
        stages=tuple(stages),
        streams=tuple(
            _ids(ops, f"stream {i}", ids) for i, ops in enumerate(document.streams or ())
        ),
        makespan=document.makespan_us,
        timeline=timeline,
        launch_order=None if launch is None else _ids(launch, "`launch_order`", ids),
        devices=tuple(document.devices),
    )


_T = TypeVar("_T")


def _decoded(text: str, kind: type[_T]) -> _T:
    if not isinstance(text, str):
        raise ScheduleError(f"a schedule is read from a string, not from {type(text).__name__}")
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise ScheduleError(
            f"the schedule cannot be read: {error}; correct the schedule there"
        ) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ScheduleError(
            f"the schedule is not valid JSON: {error}; write it with to_json"
        ) from None


def _check_head(head: _Head) -> None:
    if head.format != FORMAT:
        raise ScheduleError(f"this is not a schedule: its `format` is not `{FORMAT}`")
    if head.version is not None and not 1 <= head.version <= VERSION:
        newer = head.version > VERSION
        raise ScheduleError(
            f"the schedule is of version {head.version}, but this tvm_interop reads versions 1 to "
            f"{VERSION}; " + ("update tvm_interop" if newer else "schedule the model again")
        )


def _ids(names: list[str], where: str, ids: dict[str, int]) -> tuple[int, ...]:
    for name in names:
        if name not in ids:
            raise ScheduleError(f"{where} has an operator `{name}`, which `operators` lacks")
    return tuple(ids[name] for name in names)


def _stage_text(stage: StageLike, names: Sequence[str]) -> str:
    groups = ",\n".join(
        f'      {{"stream": {stream}, "operators": {_dump([_name(op, names) for op in group])}}}'
        for stream, group in zip(stage.streams, stage.groups, strict=True)
    )
    device = "" if stage.device is None else f'"device": {_dump(stage.device)}, '
    head = f'{{{device}"kind": {_dump(stage.kind)}, "barrier": {_dump(stage.barrier)}, "groups": ['
    return f"{head}\n{groups}\n    ]}}"


def _wrapped(items: Iterable[str]) -> str:
    return ",\n".join(f"    {line}" for line in _lines(items))


def _lines(items: Iterable[str]) -> Iterator[str]:
    line = ""
    for item in items:
        if line and len(line) + len(item) > _LINE - 6:
            yield line
            line = item
        else:
            line = f"{line}, {item}" if line else item
    yield line


def _name(op: int, names: Sequence[str]) -> str:
    if 0 <= op < len(names):
        return names[op]
    raise ScheduleError(
        f"the schedule holds operator {op}, but has {len(names)} operators, numbered from 0"
    )


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
