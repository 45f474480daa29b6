"""What a person sees: messages, and a progress bar while stages are measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..latency.measured import Progress as MeasuringProgress


def complain(message: str) -> None:
    """One message on standard error."""
    print(f"tvm-interop: error: {message}", file=sys.stderr)


@contextmanager
def measuring_bar() -> Iterator[MeasuringProgress]:
    """A bar on standard error that shows stages measured; silent where that is no terminal."""
    columns = (
        TextColumn("measuring stages"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("measuring", total=None)

        def show(stages_done: int, stages_total: int) -> None:
            bar.update(task, completed=stages_done, total=stages_total)

        yield show
