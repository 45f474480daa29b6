"""Draws timelines as one SVG picture, or as PNG if `resvg_py` is installed."""

from __future__ import annotations

from ..errors import DeviceError
from .kinds import FAINT, INK, KINDS, WAIT
from .record import Record
from .svg import Element, canvas, child, place, to_text
from .timeline import MARGIN, labels, scale_of, timeline

_NARROWEST, _WIDEST, _PER_OPERATOR = 900, 6000, 14
_HEADER, _LEGEND = 22, 24


def to_svg(records: list[Record]) -> str:
    """Draw the timelines one below the other, on one time scale, as the text of an SVG file."""
    return to_text(_draw(records), standalone=True)


def to_png(records: list[Record]) -> bytes:
    """The drawing of `to_svg` as the bytes of a PNG file, with two pixels per SVG unit of length.

    Raises
    ------
    DeviceError
        The package `resvg_py` is not installed.
    """
    try:
        import resvg_py
    except ImportError as error:
        raise DeviceError(
            "drawing a PNG needs the package resvg_py: pip install 'tvm-interop[png]', "
            "or take --format svg"
        ) from error
    return bytes(resvg_py.svg_to_bytes(to_svg(records), background="#FFFFFF", zoom=2))


def _draw(records: list[Record]) -> Element:
    most = max(len(record.operators) for record in records)
    width = min(max(most * _PER_OPERATOR, _NARROWEST), _WIDEST)
    scale_us = scale_of(records)
    root = canvas(width + MARGIN + 16, 0)
    _draw_legend(root)
    y = float(_LEGEND)
    for record in records:
        head = child(root, "text", x=4, y=y + 15, fill=INK, font_size=13)
        child(head, "tspan", record.title, font_weight="bold")
        child(head, "tspan", f"  {record.scheduler}, {record.time_said}", dx=6)
        y += _HEADER
        rows = timeline(record, scale_us, float(width))
        place(root, labels(record), 4, y)
        place(root, rows, MARGIN + 4, y)
        y += float(rows.get("height", "0")) + 12
    root.set("height", f"{y:g}")
    return root


def _draw_legend(root: Element) -> None:
    x = 4.0
    for kind in KINDS:
        child(root, "rect", x=x, y=6, width=12, height=12, fill=kind.fill)
        child(root, "text", kind.name, x=x + 16, y=16, fill=INK)
        x += 28 + 6.4 * len(kind.name)
    child(root, "line", x1=x, x2=x + 14, y1=12, y2=12, stroke=WAIT, stroke_width=2)
    child(root, "text", "wait", x=x + 18, y=16, fill=INK)
    child(root, "line", x1=x + 52, x2=x + 72, y1=12, y2=12, stroke=FAINT, stroke_dasharray="5 3")
    child(root, "text", "predicted end", x=x + 76, y=16, fill=INK)
