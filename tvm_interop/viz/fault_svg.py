"""Draws the first fault that the checker found in a program, with the wait that is missing."""

from __future__ import annotations

from typing import Any

from ..checking.report import Report, operators_to_show
from .graph_svg import short_name
from .kinds import FAINT, INK, WAIT
from .svg import Element, box, canvas, child, to_text

_BOX, _GAP, _LANE, _LEFT, _TOP, _CHARACTER = 120, 36, 56, 110, 46, 7


def to_svg(report: Report) -> str:
    """Draw the operators around the first fault, in launch order, as the text of an SVG file.

    There is a row per stream. The two operators that race are vermilion, and so is the missing
    wait, a dashed line. Thin lines are the waits that the program has.
    """
    shown = operators_to_show(report) or list(report.program.operators[:12])
    streams = list(dict.fromkeys(op.stream for op in shown))
    place = {
        op.name: (_LEFT + i * (_BOX + _GAP), _TOP + streams.index(op.stream) * _LANE)
        for i, op in enumerate(shown)
    }
    fault = report.faults[0] if report.faults else None
    verdict = "safe" if fault is None else fault.text
    width = max(_LEFT + len(shown) * (_BOX + _GAP), _CHARACTER * len(verdict))
    root = canvas(width, _TOP + len(streams) * _LANE, background="#FFFFFF")
    child(root, "text", verdict, x=4, y=18, fill=INK, font_size=13)
    for stream, name in enumerate(streams):
        y = _TOP + stream * _LANE
        child(root, "text", short_name(name), x=4, y=y + 20, fill=INK, font_weight="bold")
        child(root, "line", x1=_LEFT, x2="100%", y1=y + 34, y2=y + 34, stroke="#DDDDDD")
    for op in shown:
        for source in op.waits:
            if source in place:
                _line(root, place[source], place[op.name], stroke=FAINT, stroke_width=1)
    if fault is not None and fault.wait is not None and set(fault.wait) <= set(place):
        waiter, source = fault.wait
        _line(
            root, place[source], place[waiter], stroke=WAIT, stroke_width=2.5,
            stroke_dasharray="6 4",
        )  # fmt: skip
    for op in shown:
        at_fault = fault is not None and op.name in fault.operators
        x, y = place[op.name]
        fill, ink = (WAIT, "#FFFFFF") if at_fault else ("#D9E8F2", "#000000")
        box(root, short_name(op.name), op.name, fill, ink, x, y, _BOX, 30)
    return to_text(root, standalone=True)


def _line(
    root: Element, source: tuple[int, int], target: tuple[int, int], **attributes: Any
) -> None:
    """Draw a line from the end of one box to the beginning of another.

    The box at which the line ends may lie to the left of the box at which it begins.
    """
    (x1, y1), (x2, y2) = source, target
    child(root, "line", x1=x1 + _BOX, y1=y1 + 15, x2=x2, y2=y2 + 15, **attributes)
