"""Pieces of Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def interval(ends: Sequence[float], digits: int) -> str:
    """Two numbers."""
    low, high = ends
    return f"{low:.{digits}f} to {high:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A head and rows; all columns but the first hold numbers."""
    align = ["---", *["--:"] * (len(head) - 1)]
    lines = [head, align, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
