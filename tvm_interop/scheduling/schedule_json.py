"""The text form of a schedule: versioned, readable, strict about what it does not know."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ScheduleError

if TYPE_CHECKING:
    from .schedule import Schedule, Stage

FORMAT = "tvm_interop.schedule"
VERSION = 1
_LINE = 96


def write_schedule(schedule: Schedule) -> str:
    """A schedule as JSON: operators by name, one line for a group, a stream or a placement."""
    names = schedule.op_names
    fields = [
        f'"format": {_dump(FORMAT)}',
        f'"version": {VERSION}',
        f'"scheduler": {_dump(schedule.scheduler)}',
        f'"makespan_us": {_dump(schedule.makespan)}',
        f'"operators": [\n{_wrapped(map(_dump, names))}\n  ]',
    ]
    if schedule.is_staged:
        stages = ",\n".join(f"    {_stage_text(stage, names)}" for stage in schedule.stages)
        fields.append(f'"stages": [\n{stages}\n  ]')
    else:
        streams = ",\n".join(
            f"    {_dump([_name(op, names) for op in ops])}" for ops in schedule.streams
        )
        fields.append(f'"streams": [\n{streams}\n  ]')
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


def read_schedule(make_schedule: type[Schedule], make_stage: type[Stage], text: str) -> Schedule:
    """The schedule that `text` describes; ScheduleError for anything it does not expect."""
    root = _Fields(_parse(text), "the schedule")
    if root.take("format", str) != FORMAT:
        raise ScheduleError(f"this is no schedule: its `format` is not `{FORMAT}`")
    version = root.take("version", int)
    if version != VERSION:
        raise ScheduleError(
            f"the schedule is of version {version}, but this tvm_interop reads version {VERSION}; "
            + ("update tvm_interop" if version > VERSION else "schedule the model again")
        )
    scheduler = root.take("scheduler", str)
    makespan = root.take("makespan_us", float, optional=True)
    names = _strings(root.take("operators", list), "`operators`")
    ids = {name: i for i, name in enumerate(names)}
    if len(ids) < len(names):
        twice = next(name for i, name in enumerate(names) if ids[name] != i)
        raise ScheduleError(f"`operators` lists `{twice}` twice; names must be unique")
    stages = root.take("stages", list, optional=True)
    streams = root.take("streams", list, optional=True)
    timeline = root.take("timeline", list, optional=True)
    launch_order = root.take("launch_order", list, optional=True)
    root.finish()
    if (stages is None) == (streams is None):
        raise ScheduleError("a schedule has either a field `stages` or a field `streams`")
    return make_schedule(
        scheduler=scheduler,
        op_names=tuple(names),
        stages=tuple(
            _read_stage(make_stage, stage, f"stage {i}", ids)
            for i, stage in enumerate(stages or ())
        ),
        streams=tuple(_ids(stream, f"stream {i}", ids) for i, stream in enumerate(streams or ())),
        makespan=makespan,
        timeline=None
        if timeline is None
        else tuple(_read_row(row, f"row {i} of `timeline`", ids) for i, row in enumerate(timeline)),
        launch_order=None if launch_order is None else _ids(launch_order, "`launch_order`", ids),
    )


class _Fields:
    """The fields of a JSON object, taken one by one so that what is left over can be refused."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise ScheduleError(f"{where} is {_kind(value)}; it must be an object")
        self._fields = dict(value)
        self._where = where

    def take(self, name: str, kind: type, optional: bool = False) -> Any:
        if name not in self._fields and not optional:
            raise ScheduleError(f"{self._where} has no field `{name}`; add it")
        value = self._fields.pop(name, None)
        if value is None and optional:
            return None
        return _typed(value, kind, f"field `{name}` of {self._where}")

    def finish(self) -> None:
        for name in self._fields:
            raise ScheduleError(f"{self._where} has an unknown field `{name}`; remove it")


def _parse(text: str) -> Any:
    if not isinstance(text, str):
        raise ScheduleError(f"a schedule is read from a string, not from {type(text).__name__}")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ScheduleError(
            f"the schedule is no valid JSON: {error}; write it with to_json"
        ) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ScheduleError(f"field `{twice}` is there twice; remove one")
    return fields


def _no_constant(name: str) -> float:
    raise ScheduleError(f"the schedule holds {name}, which is no JSON number; use a finite one")


def _read_stage(make_stage: type[Stage], value: Any, where: str, ids: dict[str, int]) -> Stage:
    stage = _Fields(value, where)
    kind = stage.take("kind", str)
    barrier = stage.take("barrier", bool)
    groups, streams = [], []
    for i, entry in enumerate(stage.take("groups", list)):
        group = _Fields(entry, f"group {i} of {where}")
        streams.append(group.take("stream", int))
        groups.append(_ids(group.take("operators", list), f"group {i} of {where}", ids))
        group.finish()
    stage.finish()
    return make_stage(tuple(groups), tuple(streams), kind, barrier)


def _read_row(value: Any, where: str, ids: dict[str, int]) -> tuple[int, int, float, float]:
    row = _typed(value, list, where)
    if len(row) != 4:
        raise ScheduleError(f"{where} has {len(row)} entries; give operator, stream, start, finish")
    (op,) = _ids(row[:1], where, ids)
    stream = _typed(row[1], int, f"the stream in {where}")
    start, finish = (_typed(time, float, f"a time in {where}") for time in row[2:])
    return op, stream, start, finish


def _ids(value: Any, where: str, ids: dict[str, int]) -> tuple[int, ...]:
    names = _strings(_typed(value, list, where), where)
    for name in names:
        if name not in ids:
            raise ScheduleError(
                f"{where} has an operator `{name}`, which `operators` does not list"
            )
    return tuple(ids[name] for name in names)


def _strings(values: list[Any], where: str) -> list[str]:
    return [_typed(value, str, f"an operator in {where}") for value in values]


def _typed(value: Any, kind: Any, where: str) -> Any:
    # In JSON a whole number is a number too, and True is none.
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**1023 else math.inf
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ScheduleError(f"{where} is {_kind(value)}; it must be {_KINDS[kind]}")
    if kind is float and not math.isfinite(value):
        raise ScheduleError(f"{where} is {value}; it must be finite")
    return value


_KINDS: dict[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def _kind(value: Any) -> str:
    return _KINDS[type(value)]


def _stage_text(stage: Stage, names: Sequence[str]) -> str:
    groups = ",\n".join(
        f'      {{"stream": {stream}, "operators": {_dump([_name(op, names) for op in group])}}}'
        for stream, group in zip(stage.streams, stage.groups, strict=True)
    )
    head = f'{{"kind": {_dump(stage.kind)}, "barrier": {_dump(stage.barrier)}, "groups": ['
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
    raise ScheduleError(f"the schedule holds operator {op}, but has {len(names)}, numbered from 0")


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
