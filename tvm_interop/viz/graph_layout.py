"""Places the boxes and lines of a drawing of the graph.

Operators are boxes. Each stream has a row of boxes, called its lane. Boxes are in columns, in the
order in which operators run. Dependencies are lines. Lines run only between lanes and between
columns, so that no line crosses a box.
"""

from __future__ import annotations

from dataclasses import dataclass

from .record import Record

BOX_WIDTH, BOX_HEIGHT = 116, 24
GAP = 44
"""Pixels between two columns. Lines turn up or down in this gap: lines from the left column in its
left half, and lines to the right column in its right half."""

TRACK = 5
TOP = 24
_LEFT = 70
_PADDING = 10
_LINE = 4


@dataclass(frozen=True)
class GraphLayout:
    """The positions of the graph's boxes and lines, in pixels.

    Attributes
    ----------
    boxes: upper left corner of each operator's box.
    lines: for each edge (producer, consumer), the corners of its line.
    lanes: top of each stream's lane.
    stages: left and right end of each stage.
    """

    width: float
    height: float
    boxes: tuple[tuple[float, float], ...]
    lines: dict[tuple[int, int], tuple[tuple[float, float], ...]]
    lanes: tuple[float, ...]
    stages: tuple[tuple[float, float], ...]


def lay_out(record: Record) -> GraphLayout:
    """Place the boxes and lines of a record's graph.

    An operator is placed in the first column to the right of its inputs' operators and of the
    operator before it on its stream. A stage begins after the stage before it.

    If an operator's reader is further right than the next column, the line to the reader runs along
    a track. A track is a horizontal line below the lane of the operator. All lines of an operator
    to such readers share one track. Operators get their tracks from left to right, and each
    operator gets the topmost free track.

    With several GPUs, stages overlap in time, so the drawing does not mark stages.
    """
    columns = _columns(record)
    tracks = _tracks(record, columns)
    lanes, y = [], float(TOP)
    for stream in range(len(record.threads)):
        lanes.append(y)
        used = [t for op, t in tracks.items() if record.operators[op].stream == stream]
        y += BOX_HEIGHT + 2 * _PADDING + TRACK * (max(used, default=-1) + 1)
    boxes = tuple(
        (_LEFT + columns[i] * (BOX_WIDTH + GAP), lanes[op.stream])
        for i, op in enumerate(record.operators)
    )
    lines = {
        (source, target): _line(record, boxes, columns, tracks, source, target)
        for target, op in enumerate(record.operators)
        for source in op.reads
    }
    right = max((x for x, _ in boxes), default=0) + BOX_WIDTH + GAP
    return GraphLayout(right, y, boxes, lines, tuple(lanes), _stage_spans(record, boxes))


def _columns(record: Record) -> list[int]:
    columns: list[int] = []
    last_of_stream: dict[int, int] = {}
    stage, first_free, begin = None, 0, 0
    in_order = record.has_one_order_of_stages
    for op in sorted(
        range(len(record.operators)), key=lambda i: (record.operators[i].stage or 0) * in_order
    ):
        columns.extend([0] * (op + 1 - len(columns)))
        row = record.operators[op]
        if in_order and row.stage != stage:
            stage, begin = row.stage, first_free
        before = [columns[p] for p in row.reads] + [last_of_stream.get(row.stream, -1)]
        columns[op] = max(begin, 1 + max(before))
        last_of_stream[row.stream] = columns[op]
        first_free = max(first_free, columns[op] + 1)
    return columns


def _needs_track(columns: list[int], source: int, target: int) -> bool:
    return columns[target] > columns[source] + 1


def _tracks(record: Record, columns: list[int]) -> dict[int, int]:
    """Return the number of the track of each operator that needs one. The topmost track is 0."""
    furthest: dict[int, int] = {}
    for target, op in enumerate(record.operators):
        for source in op.reads:
            if _needs_track(columns, source, target):
                furthest[source] = max(furthest.get(source, 0), columns[target])
    tracks: dict[int, int] = {}
    free_from: dict[int, list[int]] = {}  # By stream: the first free column of each track.
    for source in sorted(furthest, key=lambda op: columns[op]):
        rows = free_from.setdefault(record.operators[source].stream, [])
        found = next((t for t, column in enumerate(rows) if column <= columns[source]), len(rows))
        rows[found : found + 1] = [furthest[source]]
        tracks[source] = found
    return tracks


def _line(
    record: Record,
    boxes: tuple[tuple[float, float], ...],
    columns: list[int],
    tracks: dict[int, int],
    source: int,
    target: int,
) -> tuple[tuple[float, float], ...]:
    (x1, y1), (x2, y2) = boxes[source], boxes[target]
    begin, end = (x1 + BOX_WIDTH, y1 + BOX_HEIGHT / 2), (x2, y2 + BOX_HEIGHT / 2)
    stream = record.operators[source].stream
    leave = begin[0] + 5 + _LINE * (stream % 4)
    if not _needs_track(columns, source, target):
        if y1 == y2:
            return (begin, end)
        return (begin, (leave, begin[1]), (leave, end[1]), end)
    track = tracks[source]
    arrive = end[0] - 5 - _LINE * (track % 4)
    y = y1 + BOX_HEIGHT + _PADDING + TRACK * track
    return (begin, (leave, begin[1]), (leave, y), (arrive, y), (arrive, end[1]), end)


def _stage_spans(
    record: Record, boxes: tuple[tuple[float, float], ...]
) -> tuple[tuple[float, float], ...]:
    spans: dict[int, tuple[float, float]] = {}
    for op, (x, _) in zip(record.operators, boxes, strict=True):
        if op.stage is not None and record.has_one_order_of_stages:
            left, right = spans.get(op.stage, (x, x))
            spans[op.stage] = (min(left, x), max(right, x))
    half = GAP / 2
    return tuple((spans[s][0] - half, spans[s][1] + BOX_WIDTH + half) for s in sorted(spans))
