"""Draws the graph of a record, with a row of operators per stream and with shaded stages."""

from __future__ import annotations

from .graph_layout import BOX_HEIGHT, BOX_WIDTH, TOP, lay_out
from .kinds import FAINT, INK, STAGES, WAIT, colours_of
from .record import Record
from .svg import Element, box, canvas, child

_LONGEST_LABEL = 17


def graph(record: Record) -> Element:
    """Draw a record's graph. Each dependency is a line from an operator to its reader.

    The line is vermilion if the stream of the reader must wait for the operator.
    """
    layout = lay_out(record)
    root = canvas(layout.width, layout.height, viewBox=f"0 0 {layout.width:g} {layout.height:g}")
    for stage, (left, right) in enumerate(layout.stages):
        child(
            root, "rect", x=left, y=0, width=right - left, height=layout.height,
            fill=STAGES[stage % 2],
        )  # fmt: skip
        label = f"stage {stage}"
        child(root, "text", label, x=left + 4, y=TOP - 11, fill=FAINT, font_size=10)
    for stream, y in enumerate(layout.lanes):
        child(
            root, "text", record.stream_said(stream), x=2, y=y + BOX_HEIGHT / 2 + 4,
            fill=INK, font_weight="bold",
        )  # fmt: skip
        if record.on_several:
            on = record.devices[stream]
            child(root, "text", on, x=2, y=y + BOX_HEIGHT / 2 + 17, fill=FAINT, font_size=10)
    for (source, target), corners in layout.lines.items():
        waited_for = source in record.operators[target].waits
        path = " ".join(f"{x:g},{y:g}" for x, y in corners)
        child(
            root, "polyline", points=path, fill="none",
            stroke=WAIT if waited_for else "#777777", stroke_width=1.4 if waited_for else 0.9,
            class_="edge", data_from=source, data_to=target,
        )  # fmt: skip
    for i, (op, (x, y)) in enumerate(zip(record.operators, layout.boxes, strict=True)):
        fill, ink = colours_of(op.kind)
        title = f"{op.name}\n{op.kind}, {op.provider}\n{op.took_us:.1f} us on stream {op.stream}"
        box(
            root, short_name(op.name), title, fill, ink, x, y, BOX_WIDTH, BOX_HEIGHT,
            class_="op", data_op=i, font_size=10,
        )  # fmt: skip
    return root


def short_name(name: str) -> str:
    """Cut off the beginning of a long name, because the end of a name identifies the operator."""
    return name if len(name) <= _LONGEST_LABEL else "…" + name[-(_LONGEST_LABEL - 1) :]
