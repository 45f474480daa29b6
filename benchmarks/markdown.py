"""Helpers of the programs that write result pages: tables and numbers in Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

_NUMBER = re.compile(r"[*~<>+-]*\.?\d")


def interval(ends: Sequence[float], digits: int) -> str:
    """Two numbers as text, such as "0.98 to 1.02", with `digits` digits after the point."""
    low, high = ends
    return f"{low:.{digits}f} to {high:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table. Columns of numbers are aligned to the right, and others to the left.

    A column counts as numbers if each of its cells begins with a number or is empty, and not all of
    its cells are empty. The first column names the rows, so it is on the left.
    """
    columns = list(zip(*rows, strict=True))[1:] or [()] * (len(head) - 1)
    lines = [head, ["---", *("--:" if _numbers(cells) else "---" for cells in columns)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _numbers(cells: Sequence[str]) -> bool:
    filled = [cell for cell in cells if cell]
    return bool(filled) and all(_NUMBER.match(cell) for cell in filled)


def machine(report: dict[str, Any]) -> str:
    """The number of cores and the CPU in a report, and a note if the machine was not quiet."""
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
