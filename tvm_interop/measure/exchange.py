"""Exports and imports the latency database as JSON lines, one workload or record on each line.

Workloads come before the records that refer to them. (TVM's meta_schedule JSONDatabase instead
keeps workloads and records in two separate files.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from ..errors import TVMInteropError
from ..latency.measurement import Record, Workload
from .store import LatencyStore


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["tvm_interop.latencies"]
    version: Literal[1, 2]
    """The version of the exported lines. Lines of version 1 are read too; their records have no
    spread.
    """


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    workload: Workload | None = None
    record: Record | None = None


def export_lines(store: LatencyStore) -> Iterator[str]:
    """The contents of `store`, line by line."""
    yield _encode(_Head("tvm_interop.latencies", 2))
    for workload in store.workloads().values():
        yield _encode(_Line(workload=workload))
    for record in store.records():
        yield _encode(_Line(record=record))


def import_lines(store: LatencyStore, lines: Iterable[str], source: str) -> tuple[int, int]:
    """Add the lines that `export_lines` wrote to `store`. For each key, the newest record is kept.

    Parameters
    ----------
    source: a name for the source of the lines, for error messages.

    Returns
    -------
    The number of records that were added, and the number of all records in the lines.

    Raises
    ------
    TVMInteropError
        A line is not in our format; the message says which line. In this case nothing is added.
    """
    workloads: dict[str, Workload] = {}
    records: dict[str, Record] = {}
    number = 0
    for number, line in enumerate(_readable(lines, source), start=1):
        try:
            if number == 1:
                msgspec.json.decode(line, type=_Head)
                continue
            read = msgspec.json.decode(line, type=_Line)
            _check(read, workloads)
        except (msgspec.DecodeError, ValueError) as error:
            raise TVMInteropError(
                f"line {number} of `{source}` is not a line that `tvm-interop db export` writes: "
                f"{error}"
            ) from error
        if read.workload is not None:
            workloads[read.workload.hash] = read.workload
        if read.record is not None:
            records[read.record.key] = read.record
    if number == 0:
        raise TVMInteropError(
            f"`{source}` is empty; give a file that `tvm-interop db export` wrote"
        )
    there = {record.key: record.measured_at for record in store.records()}
    newer = [r for r in records.values() if r.measured_at > there.get(r.key, "")]
    store.put(newer, workloads.values())
    return len(newer), len(records)


def _readable(lines: Iterable[str], source: str) -> Iterator[str]:
    """Yield the lines. An error says which file is not a text."""
    try:
        yield from lines
    except UnicodeDecodeError as error:
        raise TVMInteropError(
            f"`{source}` is not a text in UTF-8 ({error}): give a file that `tvm-interop db "
            "export` wrote"
        ) from error


def _check(line: _Line, workloads: dict[str, Workload]) -> None:
    if (line.workload is None) == (line.record is None):
        raise ValueError("a line must hold either a workload or a record")
    record = line.record
    if record is None:
        return
    if not 0 <= record.latency_us < float("inf"):
        raise ValueError(
            f"record `{record.key}` took {record.latency_us} us; a latency must be finite and not "
            "negative"
        )
    if record.spread_us is not None and not 0 <= record.spread_us < float("inf"):
        raise ValueError(
            f"record `{record.key}` has a spread of {record.spread_us} us; a spread must be finite "
            "and not negative"
        )
    for hash_ in (h for group in record.groups or () for h in group):
        if hash_ not in workloads:
            raise ValueError(
                f"record `{record.key}` refers to workload `{hash_}`, which no earlier line "
                "describes; export the database again"
            )


def _encode(line: _Head | _Line) -> str:
    return msgspec.json.encode(line).decode()
