"""The table of `benchmarks.two_releases`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import geometric, interval, machine, table


def rows_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of the artifacts, in Markdown."""
    head = ["artifact", "old, us", "new over old", "interval", "old again over old"]
    lines = [
        [
            row["artifact"],
            f"{row['old_us']:.1f}",
            f"{row['ratio']:.3f}",
            interval(row["interval"], 3),
            f"{row['noise']:.3f}",
        ]
        for row in rows
    ]
    return table(head, lines)


def section(report: dict[str, Any]) -> list[str]:
    """The section that compares the runtime library with an older version of it, as Markdown."""
    rows = report["rows"]
    return [
        "## The runtime library against an older one",
        "Measured by `python -m benchmarks.two_releases`. The release of 23 November ran models by "
        "TVM's foreign function interface, and today's release runs them by a library of its own. "
        "Both ran artifacts that the older release wrote. They ran from Python, each in a process "
        f"of its own, in {report['rounds']} rounds, on {machine(report)}. Each turn began after "
        "half a second of rest. The last column is the noise.",
        rows_table(rows),
        f"Geometric mean: {geometric([row['ratio'] for row in rows]):.3f}.",
    ]
