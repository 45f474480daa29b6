"""A progress bar for trainings, shown on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def bar(name: str, done: int, total: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show a progress bar, and yield a function to call after each step with a status text.

    Nothing is shown if `quiet` is set.
    """
    if quiet:
        yield lambda _: None
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
