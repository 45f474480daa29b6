"""What a person sees: messages, and a progress bar while stages are measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from ..machine.kernel_libraries import Device
    from ..measure.measured import Progress as MeasuringProgress

INTERRUPTED = 130
"""Exit code of a program that was stopped by Ctrl-C, as shells have it."""
TERMINATED = 143
"""The same by SIGTERM."""


def complain(message: str) -> None:
    """One message on standard error."""
    print(f"tvm-interop: error: {message}", file=sys.stderr)


def note(message: str) -> None:
    """One message on standard error about what is no error."""
    print(f"tvm-interop: {message}", file=sys.stderr)


def note_missing_libraries(wanted: Sequence[str] | None, device: Device) -> None:
    """Tell on standard error which of the wanted kernel libraries are not there, and why.

    Parameters
    ----------
    wanted: names; None stands for all that have kernels for `device`.
    """
    from ..machine.kernel_libraries import TVM, provider_names, why_missing

    if wanted is not None and device == "cuda":
        return  # Those that are named run what they can: it is no longer TVM's.
    for name in wanted if wanted is not None else provider_names(device):
        why = None if name == TVM else why_missing(name)
        if why is not None:
            print(f"tvm-interop: no kernels of {name}, TVM's do its work: {why}", file=sys.stderr)


def table(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Columns of equal width, the first row their headings; figures to the right.

    Parameters
    ----------
    left: the columns that are text, and so stand to the left.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


@contextmanager
def measuring_bar() -> Iterator[MeasuringProgress]:
    """A bar on standard error that says what is done; silent where that is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield _MeasuringBar(bar)


class _MeasuringBar:
    """Says what is being done, and of how many stages that are measured for it how many are."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None)

    def __call__(self, stages_done: int, stages_total: int) -> None:
        self._bar.update(self._task, completed=stages_done, total=stages_total)

    def say(self, what: str) -> None:
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=None)


@contextmanager
def counting_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error of how much is done of how much; silent where that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def tuning_bar(quiet: bool) -> Iterator[Progress]:
    """A bar on standard error for a search, which says what it is at; none where `quiet`."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    ) as bar:
        yield bar
