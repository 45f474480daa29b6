"""The tables of `benchmarks.start_up`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .markdown import machine, table

MAKING = ("loaded ms", "made ms")
"""Milliseconds from the start of a process until the model was loaded and its instance was made.
Only our program in C reports these times."""
COLUMNS = ("first ms", "second ms", "fifth ms", "twentieth ms", "peak MiB", "steady MiB")
"""The results of one process: milliseconds from its start until an output was there, its peak
memory until the first output, and its memory after all runs."""
Sample: TypeAlias = Mapping[str, float]
"""The result in each of `COLUMNS`, and of `MAKING` for our program in C."""


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """The means of all measurements over the rounds, as a Markdown table.

    Each row has the name of a `network`, and `samples` by contestant.
    """
    lines = []
    for row in rows:
        for label, samples in row["samples"].items():
            means = [_mean(samples, name) for name in (*MAKING, *COLUMNS)]
            lines.append([row["network"], label, *means])
    return table(["network", "contestant", *MAKING, *COLUMNS], lines)


def _mean(samples: Sequence[Sample], name: str) -> str:
    return f"{statistics.fmean(s[name] for s in samples):.0f}" if name in samples[0] else ""


def section(report: Mapping[str, Any], *others: Mapping[str, Any]) -> list[str]:
    """The section on the start of a process, as Markdown. `others` are further reports."""
    text = (
        "## From the start of a process\n\nMeasured by `python -m benchmarks.start_up`. Each "
        "entry is a mean over several processes of one network. The first columns have the "
        "milliseconds from the start of the process until an output was there. *Loaded* is the "
        "time until our program in C had checked the file, and *made* the time until its "
        "instance was ready. *Peak* is the most memory until the first output, and *steady* the "
        "memory after the last run."
    )
    parts = [text]
    for one in (report, *others):
        processes = {len(samples) for row in one["rows"] for samples in row["samples"].values()}
        vectors = "with" if "avx512f" in one["machine"]["cpu"] else "without"
        parts.append(
            f"On {machine(one)} {vectors} AVX-512, {min(processes)} processes:\n\n"
            f"{summary(one['rows'])}"
        )
    return parts
