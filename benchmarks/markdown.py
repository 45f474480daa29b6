"""Helpers of the programs that write result pages: tables and numbers in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def interval(ends: Sequence[float], digits: int) -> str:
    """Two numbers as text, such as "0.98 to 1.02", with `digits` digits after the point."""
    low, high = ends
    return f"{low:.{digits}f} to {high:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table. All columns but the first are aligned to the right, as numbers are."""
    align = ["---", *["--:"] * (len(head) - 1)]
    lines = [head, align, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine(report: dict[str, Any]) -> str:
    """The number of cores and the CPU in a report. Says so if the machine was not quiet."""
    found = report["machine"]
    quiet = "" if found["quiet"] else ", which was **not quiet**"
    return f"{found['cores']} cores of {found['cpu'].split(' [')[0]}{quiet}"


def named_machine(text: str) -> str:
    """The number of cores and the CPU in a text such as `AMD EPYC [avx] x2`."""
    return f"{text.rpartition(' x')[2]} cores of {text.split(' [')[0]}"


def at_commit(commit: str) -> str:
    """A commit of a result file in words: the ending `-dirty` means uncommitted changes."""
    clean = commit.removesuffix("-dirty")
    return f"`{clean}`" if clean == commit else f"`{clean}` with uncommitted changes"


def geometric(numbers: Sequence[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, numbers)) / len(numbers))
