"""SVG elements: a little under `xml.etree`, which escapes what needs it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

Element = ElementTree.Element
NAMESPACE = "http://www.w3.org/2000/svg"
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif"


def child(parent: Element, tag: str, text: str | None = None, **attributes: object) -> Element:
    """Add an element; `class_` and `font_size` become `class` and `font-size`."""
    named = {key.rstrip("_").replace("_", "-"): _number(value) for key, value in attributes.items()}
    made = ElementTree.SubElement(parent, tag, named)
    made.text = None if text is None else printable(text)
    return made


def canvas(width: float | str, height: float, **attributes: object) -> Element:
    """An `svg` element to draw on."""
    named = {key.replace("_", "-"): _number(value) for key, value in attributes.items()}
    root = Element("svg", {"width": _number(width), "height": _number(height), **named})
    root.set("font-family", FONT)
    root.set("font-size", "11")
    return root


def place(parent: Element, drawing: Element, x: float, y: float) -> None:
    """Put one drawing into another."""
    drawing.set("x", _number(x))
    drawing.set("y", _number(y))
    parent.append(drawing)


def box(
    parent: Element,
    label: str,
    title: str,
    fill: str,
    ink: str,
    x: float | str,
    y: float,
    width: float | str,
    height: float,
    **attributes: object,
) -> Element:
    """A rectangle whose label is cut off at its edge, with a tooltip."""
    frame = child(parent, "svg", None, x=x, y=y, width=width, height=height, **attributes)
    child(frame, "title", title)
    child(frame, "rect", width="100%", height="100%", fill=fill, stroke="#FFFFFF", stroke_width=0.7)
    if label:
        child(frame, "text", label, x=3, y=height / 2 + 4, fill=ink)
    return frame


def to_text(root: Element, *, standalone: bool = False) -> str:
    """The markup; standalone with the namespace a file of its own needs."""
    if standalone:
        root.set("xmlns", NAMESPACE)
    return ElementTree.tostring(root, encoding="unicode")


def printable(text: str) -> str:
    r"""The text without what neither XML nor a page may have, each such character by its number.

    Names come from models, and may be anything.

    Examples
    --------
    >>> printable("a\x00b")
    'a\\x00b'
    """
    return _FORBIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))
