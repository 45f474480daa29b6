"""Draws the pictures of the pages about papers.

Each picture carries a digest of its numbers, so that a test can tell whether the picture still
shows what the result file says.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .record import Chart

_DIGEST = re.compile(r"numbers ([0-9a-f]{64})")


def file_name(paper: str, experiment: str, number: int) -> str:
    """The name of the picture `number`, from 1, of an experiment."""
    plain = re.sub(r"[^a-z0-9]+", "_", experiment.lower()).strip("_")
    return f"{paper}_{plain}_{number}.svg"


def digest(chart: Chart) -> str:
    """A digest of all that a picture shows."""
    return hashlib.sha256(json.dumps(asdict(chart), sort_keys=True).encode()).hexdigest()


def digest_in(path: Path) -> str | None:
    """The digest that a picture carries; None if there is no picture or no digest."""
    found = _DIGEST.search(path.read_text()) if path.exists() else None
    return found[1] if found else None


def draw(chart: Chart, path: Path) -> None:
    """Draw a chart into an SVG file. A picture that shows the same numbers is left as it is."""
    if digest_in(path) == digest(chart):
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "papers"
    figure, axes = plt.subplots(figsize=(max(5.5, 0.9 * len(chart.points) + 2), 3.4))
    {"bars": _bars, "lines": _lines, "boxes": _boxes}[chart.kind](axes, chart)
    axes.set_ylabel(chart.axis)
    axes.set_title(chart.title, fontsize=10)
    axes.set_ylim(bottom=0 if chart.kind != "boxes" else None)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    said = {"Description": f"numbers {digest(chart)}", "Date": None, "Creator": None}
    figure.savefig(path, metadata=said)
    plt.close(figure)


def _bars(axes: Any, chart: Chart) -> None:
    width = 0.8 / len(chart.series)
    for place, (label, numbers) in enumerate(chart.series.items()):
        at = [point + (place - (len(chart.series) - 1) / 2) * width for point in _places(chart)]
        axes.bar(at, [number or 0.0 for number in numbers], width * 0.95, label=label)
    axes.set_xticks(_places(chart), chart.points, fontsize=8)
    # A legend of many labels would hide bars, so it stands beside the axes.
    beside = {"bbox_to_anchor": (1.01, 1.0), "loc": "upper left"} if len(chart.series) > 6 else {}
    axes.legend(fontsize=7, **beside)


def _lines(axes: Any, chart: Chart) -> None:
    for label, numbers in chart.series.items():
        shown = [float("nan") if number is None else number for number in numbers]
        axes.plot(_places(chart), shown, marker="o", label=label, lw=1.2)
    axes.set_xticks(_places(chart), chart.points, fontsize=8)
    axes.legend(fontsize=7)


def _boxes(axes: Any, chart: Chart) -> None:
    width = 0.8 / len(chart.series)
    for place, (label, samples) in enumerate(chart.series.items()):
        at = [point + (place - (len(chart.series) - 1) / 2) * width for point in _places(chart)]
        axes.boxplot(samples, positions=at, widths=width * 0.8, label=label, showfliers=False)
    axes.set_xticks(_places(chart), chart.points, fontsize=8)


def _places(chart: Chart) -> list[int]:
    return list(range(len(chart.points)))
