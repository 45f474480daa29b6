"""The progress of trainings, shown on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS = 30.0


@contextmanager
def bar(name: str, done: int, total: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show a progress bar, and yield a function to call after each step with a status text.

    Where standard error is not a terminal, a line is written every `_SECONDS` in place of the bar.
    Nothing is shown if `quiet` is set.
    """
    if quiet:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        yield _lines(name, done, total)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[said]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        task = progress.add_task(name, total=total, completed=done, said="")

        def advance(said: str) -> None:
            progress.update(task, advance=1, said=said)

        yield advance


def _lines(name: str, done: int, total: int) -> Callable[[str], None]:
    began = shown = time.monotonic()
    first = done

    def advance(said: str) -> None:
        nonlocal done, shown
        done += 1
        now = time.monotonic()
        if now - shown >= _SECONDS or done == total:
            shown = now
            left_s = (now - began) / (done - first) * (total - done)
            print(f"{name} {done}/{total}, {left_s / 60:.1f} min left, {said}", file=sys.stderr)

    return advance
