"""Pieces of Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def interval(ends: Sequence[float], digits: int) -> str:
    """Two numbers."""
    low, high = ends
    return f"{low:.{digits}f} to {high:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A head and rows; all columns but the first hold numbers."""
    align = ["---", *["--:"] * (len(head) - 1)]
    lines = [head, align, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine(report: dict[str, Any]) -> str:
    """Of a report: cores and CPU, and whether it was quiet."""
    found = report["machine"]
    quiet = "" if found["quiet"] else ", which was **not quiet**"
    return f"{found['cores']} cores of {found['cpu'].split(' [')[0]}{quiet}"


def geometric(numbers: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, numbers)) / len(numbers))
