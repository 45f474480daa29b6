"""Draws the timeline of a run: when each stream ran each operator.

A timeline has a row per stream, in which stages are shaded and waits are lines. Below these rows
are the predicted times and the memory in use. With several GPUs, the rows of each GPU are together,
below the name of the GPU. Rows of copies to other GPUs come last, in order of the receiving GPU.

All horizontal positions are percentages of the length of the time axis. So a page can stretch the
drawing without stretching the labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from .kinds import FAINT, INK, STAGES, WAIT, colours_of
from .record import OperatorRecord, Record
from .svg import Element, box, canvas, child

MARGIN = 128
"""Pixels to the left of the time axis, for the labels of the rows."""

_RULER, _STRIP, _HEAD, _LANE, _GAP, _MEMORY = 20, 16, 20, 30, 14, 54
_LABEL_PX = 34
"""Smallest width of a box with a label, in pixels. It does not apply to drawings on a page, because
the page can stretch them."""
_DIGIT_PX = 7


@dataclass(frozen=True)
class _Rows:
    """The vertical positions of the rows, in pixels from the top."""

    strip: int | None
    heads: dict[str, int]
    measured: tuple[int, ...]
    predicted: tuple[int, ...]
    memory: int

    @property
    def height(self) -> int:
        return self.memory + _MEMORY + 4


def scale_of(records: list[Record]) -> float:
    """Length of the time axis in microseconds: the longest makespan, plus 1%.

    The longest makespan is the longest of all measured and predicted makespans.
    """
    ends = [max(record.makespan_us, record.predicted_us or 0.0) for record in records]
    return max(ends, default=0.0) * 1.01 or 1.0


def labels(record: Record) -> Element:
    """Draw the names of the rows to the left of the time axis."""
    rows = _rows(record)
    root = canvas(MARGIN, rows.height)
    if rows.strip is not None:
        child(root, "text", "stages", x=2, y=rows.strip + 12, fill=FAINT)
    for device, y in rows.heads.items():
        child(root, "text", device, x=2, y=y + 13, fill=INK, font_size=13, font_weight="bold")
    for stream, y in enumerate(rows.measured):
        child(root, "text", record.stream_said(stream), x=2, y=y + 13, fill=INK, font_weight="bold")
        busy = f"{record.busy_share(stream):.0%} busy, {record.lost_share(stream):.0%} no core"
        child(root, "text", busy, x=2, y=y + 26, fill=FAINT, font_size=10)
    for stream, y in enumerate(rows.predicted):
        child(root, "text", record.stream_said(stream), x=2, y=y + 13, fill=INK)
        child(root, "text", "predicted", x=2, y=y + 26, fill=FAINT, font_size=10)
    child(root, "text", "memory", x=2, y=rows.memory + 13, fill=INK)
    peak = max((used for _, used in record.memory), default=0)
    child(root, "text", f"peak {_mib(peak)}", x=2, y=rows.memory + 27, fill=FAINT, font_size=10)
    child(
        root, "text", f"arena {_mib(record.arena_bytes)}", x=2, y=rows.memory + 40,
        fill=FAINT, font_size=10,
    )  # fmt: skip
    return root


def timeline(record: Record, scale_us: float, width: float | str = "100%") -> Element:
    """Draw the rows of a record.

    Parameters
    ----------
    scale_us: length of the time axis in microseconds.
    width: width of the drawing, in pixels or as a percentage. If it is in pixels, a box that is too
        narrow for its label has no label. If it is a percentage, a page can stretch the drawing.
        The script of the page then hides labels and draws the marks of the time axis again.
    """
    rows = _rows(record)
    root = canvas(width, rows.height, data_scale_us=scale_us)
    _draw_ruler(root, scale_us, rows.height, width)
    for y in rows.heads.values():
        child(root, "line", x1="0%", x2="100%", y1=y, y2=y, stroke=INK, class_="gpu")
    if record.num_stages:
        _draw_stages(root, record, rows, scale_us, width)
    for y in (*rows.measured, *rows.predicted):
        child(root, "line", x1="0%", x2="100%", y1=y + _LANE, y2=y + _LANE, stroke="#BBBBBB")
    _draw_waits(root, record, rows, scale_us)  # Draw the boxes last, so that they cover the lines.
    for i, op in enumerate(record.operators):
        _draw_operator(
            root, i, op, (op.start_us, op.end_us), rows.measured[op.stream], scale_us, width
        )
        if rows.predicted and op.predicted_us is not None:
            _draw_operator(root, i, op, op.predicted_us, rows.predicted[op.stream], scale_us, width)
    if record.predicted_us is not None:
        _draw_prediction(root, record.predicted_us, rows, scale_us)
    _draw_memory(root, record, rows.memory, scale_us)
    return root


def _rows(record: Record) -> _Rows:
    y = _RULER
    strip = y if record.has_one_order_of_stages else None
    y += _STRIP + 4 if strip is not None else 0
    heads: dict[str, int] = {}
    tops: dict[int, int] = {}
    for device, streams in record.lanes().items():
        if record.on_several:
            heads[device] = y
            y += _HEAD
        for stream in streams:
            tops[stream] = y
            y += _LANE + _GAP
    measured = tuple(tops[stream] for stream in range(len(record.threads)))
    has_prediction = any(op.predicted_us is not None for op in record.operators)
    predicted = tuple(y + s * (_LANE + 4) for s in range(len(measured))) if has_prediction else ()
    y += len(predicted) * (_LANE + 4) + (_GAP if predicted else 0)
    return _Rows(strip, heads, measured, predicted, y)


def _draw_ruler(root: Element, scale_us: float, height: int, width: float | str) -> None:
    step = _round_step(scale_us / (10 if isinstance(width, str) else max(width / 130, 1)))
    for i in range(math.ceil(0.97 * scale_us / step)):
        x = _percent(i * step, scale_us)
        child(root, "line", x1=x, x2=x, y1=14, y2=height, stroke="#E4E4E4", class_="tick")
        child(
            root,
            "text",
            _time(i * step, step),
            x=x,
            y=11,
            dx=2,
            fill=FAINT,
            font_size=10,
            class_="tick",
        )


def _draw_stages(
    root: Element, record: Record, rows: _Rows, scale_us: float, width: float | str
) -> None:
    """Shade the time of each stage on each stream.

    If the stages run one after the other, also draw a row that shows the stages.
    """
    spans: dict[tuple[int, int], tuple[float, float]] = {}
    for op in record.operators:
        if op.stage is not None:
            start, end = spans.get((op.stage, op.stream), (op.start_us, op.end_us))
            spans[op.stage, op.stream] = (min(start, op.start_us), max(end, op.end_us))
    for (stage, stream), (start, end) in spans.items():
        child(
            root, "rect", x=_percent(start, scale_us), width=_percent(end - start, scale_us),
            y=rows.measured[stream] - 4, height=_LANE + 8, fill=STAGES[stage % 2],
        )  # fmt: skip
    if rows.strip is None:
        return
    first_start: dict[int, float] = {}
    for (stage, _), (start, _) in spans.items():
        first_start[stage] = min(start, first_start.get(stage, start))
    began = sorted((start, stage) for stage, start in first_start.items())
    ends = [start for start, _ in began[1:]] + [record.makespan_us]
    for (start, stage), end in zip(began, ends, strict=True):
        # Show the number of a stage whole or not at all: if 173 were cut off to 17, it would name
        # another stage.
        needed = 6 + _DIGIT_PX * len(str(stage))
        label = str(stage) if _fits(start, end, scale_us, width, needed) else ""
        box(
            root, label, f"stage {stage}", STAGES[stage % 2], INK,
            _percent(start, scale_us), rows.strip, _percent(end - start, scale_us), _STRIP,
            class_="stage",
        )  # fmt: skip


def _draw_operator(
    root: Element,
    index: int,
    op: OperatorRecord,
    span: tuple[float, float],
    y: int,
    scale_us: float,
    width: float | str,
) -> None:
    start, end = span
    fill, ink = colours_of(op.kind)
    fits = _fits(start, end, scale_us, width, _LABEL_PX)
    lines = [op.name, f"{op.kind}, {op.provider}", f"{start:.1f} to {end:.1f} us"]
    box(
        root, op.name if fits else "", "\n".join(lines), fill, ink,
        _percent(start, scale_us), y, _percent(end - start, scale_us), _LANE,
        class_="op", data_op=index,
    )  # fmt: skip


def _draw_waits(root: Element, record: Record, rows: _Rows, scale_us: float) -> None:
    """Draw a line per wait, from the end of an operator to the start of the operator that waits."""
    for op in record.operators:
        for w in op.waits:
            awaited = record.operators[w]
            down = rows.measured[awaited.stream] < rows.measured[op.stream]
            line = child(
                root, "line",
                x1=_percent(awaited.end_us, scale_us), x2=_percent(op.start_us, scale_us),
                y1=rows.measured[awaited.stream] + (_LANE if down else 0),
                y2=rows.measured[op.stream] + (0 if down else _LANE),
                stroke=WAIT, stroke_width=1.4, class_="wait",
            )  # fmt: skip
            child(line, "title", f"{op.name} waits for {awaited.name}")


def _draw_prediction(root: Element, predicted_us: float, rows: _Rows, scale_us: float) -> None:
    x = _percent(predicted_us, scale_us)
    top, bottom = min(rows.measured) - 4, rows.memory - _GAP / 2
    line = child(
        root, "line", x1=x, x2=x, y1=top, y2=bottom,
        stroke=INK, stroke_width=1.5, stroke_dasharray="5 3",
    )  # fmt: skip
    child(line, "title", f"predicted end: {predicted_us:.1f} us")


def _draw_memory(root: Element, record: Record, y: int, scale_us: float) -> None:
    most = max(record.arena_bytes, max((used for _, used in record.memory), default=0), 1)
    bottom = y + _MEMORY
    for (us, used), (end, _) in pairwise([*record.memory, (record.makespan_us, 0)]):
        height = used / most * _MEMORY
        bar = child(
            root, "rect", x=_percent(us, scale_us), width=_percent(end - us, scale_us),
            y=bottom - height, height=height, fill="#9A9A9A", class_="memory",
        )  # fmt: skip
        child(bar, "title", f"{us:.1f} us: {_mib(used)}")
    top = bottom - record.arena_bytes / most * _MEMORY
    child(
        root, "line", x1="0%", x2="100%", y1=top, y2=top, stroke=INK, stroke_dasharray="2 3",
    )  # fmt: skip
    child(root, "line", x1="0%", x2="100%", y1=bottom, y2=bottom, stroke="#BBBBBB")


def _fits(start: float, end: float, scale_us: float, width: float | str, at_least: float) -> bool:
    """Whether a box is wide enough for its label; True on a page, whose script hides labels."""
    return isinstance(width, str) or (end - start) / scale_us * width >= at_least


def _percent(us: float, scale_us: float) -> str:
    return f"{100 * us / scale_us:.4f}%"


def _round_step(at_least: float) -> float:
    """The smallest number that is 1, 2 or 5 times a power of ten and not below `at_least`."""
    power: float = 10.0 ** math.floor(math.log10(at_least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= at_least * 0.999)


def _time(us: float, step: float) -> str:
    """The time of a mark on the time axis as text, in ms if `step` is 100 us or more."""
    return f"{us / 1e3:g} ms" if step >= 100 else f"{us:g} us"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.2f} MiB" if nbytes < 2**20 * 10 else f"{nbytes / 2**20:.0f} MiB"
