"""Draws a chart of latencies by percentile, with a line for each set of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .svg import Element, canvas, child, to_text

_WIDTH, _PLOT_HEIGHT = 520.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 14.0, 16.0, 46.0
_LINE_HEIGHT = 18.0
_TICKS = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)
_COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#806000")
_INK, _GRID = "#333333", "#DDDDDD"


def percentiles_svg(latencies_us: Mapping[str, npt.NDArray[np.float64]]) -> str:
    """Draw the latencies as the text of an SVG file.

    The horizontal axis shows percentiles on a logarithmic scale: the percentiles 0, 90, 99 and 99.9
    have equal distances. So rare, slow runs get much space at the right. A line ends at the
    percentile of the slowest of its runs, because its runs cannot show a higher percentile.

    Parameters
    ----------
    latencies_us: the latency of each run in microseconds, by name in the legend. Each name has at
        least one run.
    """
    height = _TOP + _PLOT_HEIGHT + _BOTTOM + _LINE_HEIGHT * len(latencies_us) + 6
    root = canvas("100%", height, viewBox=f"0 0 {_WIDTH:g} {height:g}")
    root.set("font-size", "13")
    root.set("style", f"max-width: {1.6 * _WIDTH:g}px; height: auto; background: #FFFFFF")
    child(root, "title", "Latencies by percentile")
    right = max(_place(_last(len(each))) for each in latencies_us.values())
    curves = {name: _curve(each) for name, each in latencies_us.items()}
    top_us = max(us for curve in curves.values() for _, us in curve)
    step_us = _step(top_us)
    top_us = step_us * math.ceil(top_us / step_us)
    _axes(root, right, top_us, step_us)
    for i, (name, each) in enumerate(latencies_us.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        line = child(
            root,
            "polyline",
            fill="none",
            stroke=colour,
            stroke_width=2,
            points=" ".join(
                f"{_x(place, right):.1f},{_y(us, top_us):.1f}" for place, us in curves[name]
            ),
        )
        child(line, "title", name)
        y = _TOP + _PLOT_HEIGHT + _BOTTOM + _LINE_HEIGHT * i
        child(root, "line", x1=_LEFT, x2=_LEFT + 24, y1=y, y2=y, stroke=colour, stroke_width=3)
        median_ms = float(np.median(each)) / 1e3
        label = f"{name}: median {median_ms:.3g} ms of {len(each)} runs"
        child(root, "text", label, x=_LEFT + 32, y=y + 4, fill=_INK)
    return to_text(root, standalone=True)


def _axes(root: Element, right: float, top_us: float, step_us: float) -> None:
    bottom = _TOP + _PLOT_HEIGHT
    for i in range(round(top_us / step_us) + 1):
        y = _y(i * step_us, top_us)
        child(root, "line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, stroke=_GRID)
        label = f"{i * step_us / 1e3:.4g}"
        child(root, "text", label, x=_LEFT - 6, y=y + 4, text_anchor="end", fill=_INK)
    for percent in _TICKS:
        if _place(percent) > right:
            break
        x = _x(_place(percent), right)
        child(root, "line", x1=x, x2=x, y1=_TOP, y2=bottom, stroke=_GRID)
        child(root, "text", f"{percent:g}", x=x, y=bottom + 16, text_anchor="middle", fill=_INK)
    child(root, "text", "ms", x=4, y=_TOP + 4, fill=_INK)
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    label = "percent of runs with this latency or less"
    child(root, "text", label, x=middle, y=bottom + 32, text_anchor="middle", fill=_INK)


def _curve(latencies_us: npt.NDArray[np.float64]) -> list[tuple[float, float]]:
    """The points of a line: pairs of a place on the axis (see `_place`) and a latency in us."""
    places = np.linspace(0.0, _place(_last(len(latencies_us))), 200)
    percents = 100 * (1 - 10.0**-places)
    return list(zip(places.tolist(), np.percentile(latencies_us, percents).tolist(), strict=True))


def _last(runs: int) -> float:
    """The percentile of the slowest of `runs` runs, the highest percentile that they can show."""
    return 100 * (1 - 1 / max(runs, 2))


def _place(percent: float) -> float:
    """The distance of a percentile from the left end of the axis: 1 for 90%, 2 for 99%."""
    return -math.log10(1 - percent / 100)


def _x(place: float, right: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * place / right


def _y(us: float, top_us: float) -> float:
    return _TOP + _PLOT_HEIGHT * (1 - us / top_us)


def _step(top_us: float) -> float:
    """A round number of microseconds between grid lines that gives 4 to 10 lines up to `top_us`."""
    size = 10.0 ** math.floor(math.log10(max(top_us, 1e-3)))
    return size * next(factor for factor in (0.2, 0.5, 1.0, 2.0) if top_us / (size * factor) <= 10)
