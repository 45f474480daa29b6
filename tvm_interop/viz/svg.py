"""Makes SVG elements with `xml.etree`. This module of Python escapes text."""

from __future__ import annotations

import re
from xml.etree import ElementTree

Element = ElementTree.Element
NAMESPACE = "http://www.w3.org/2000/svg"
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif"


def child(parent: Element, tag: str, text: str | None = None, **attributes: object) -> Element:
    """Add an element; the keywords `class_` and `font_size` become `class` and `font-size`."""
    named = {key.rstrip("_").replace("_", "-"): _number(value) for key, value in attributes.items()}
    made = ElementTree.SubElement(parent, tag, named)
    made.text = None if text is None else printable(text)
    return made


def canvas(width: float | str, height: float, **attributes: object) -> Element:
    """Make an `svg` element to draw on."""
    named = {key.replace("_", "-"): _number(value) for key, value in attributes.items()}
    root = Element("svg", {"width": _number(width), "height": _number(height), **named})
    root.set("font-family", FONT)
    root.set("font-size", "11")
    return root


def place(parent: Element, drawing: Element, x: float, y: float) -> None:
    """Put `drawing` into `parent`, at pixel (x, y)."""
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
    """Draw a rectangle with a tooltip and a label that is cut off at its edge."""
    frame = child(parent, "svg", None, x=x, y=y, width=width, height=height, **attributes)
    child(frame, "title", title)
    child(frame, "rect", width="100%", height="100%", fill=fill, stroke="#FFFFFF", stroke_width=0.7)
    if label:
        child(frame, "text", label, x=3, y=height / 2 + 4, fill=ink)
    return frame


def to_text(root: Element, *, standalone: bool = False) -> str:
    """The markup of `root`. With `standalone`, it has the namespace that an SVG file needs."""
    if standalone:
        root.set("xmlns", NAMESPACE)
    return ElementTree.tostring(root, encoding="unicode")


def printable(text: str) -> str:
    r"""Replace each character that is not allowed in XML by an escape such as `\x00`.

    The text may be a name from a model, which may contain any character.

    Examples
    --------
    >>> printable("a\x00b")
    'a\\x00b'
    """
    return _FORBIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))
