"""Output for people: messages on standard error, tables, and progress bars."""

from __future__ import annotations

import inspect
import json
import math
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
"""The exit code of a program that Ctrl-C stopped, as in shells."""


def help_of(verb: Callable[..., object]) -> str:
    """Return the docstring of a verb with each paragraph on one line.

    The terminal then breaks the lines at its own width.

    Examples
    --------
    >>> help_of(complain)
    'Print an error message on standard error.'
    """
    paragraphs = (inspect.getdoc(verb) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def complain(message: str) -> None:
    """Print an error message on standard error."""
    print(f"tvm-interop: error: {message}", file=sys.stderr)


def note(message: str) -> None:
    """Print a note, which is not an error, on standard error."""
    print(f"tvm-interop: {message}", file=sys.stderr)


def note_warning(message: Warning | str, *_: object) -> None:
    """Print a warning of Python on standard error; this function replaces `warnings.showwarning`.

    Python would also print the line of source code that raised the warning. That line says nothing
    to a user of the command line.
    """
    note(f"warning: {message}")


def json_text(facts: object) -> str:
    """Return plain data as JSON text. NaN and infinity become null, because JSON lacks them.

    Examples
    --------
    >>> json_text({"name": "y", "values": [1, float("nan")]})
    '{"name": "y", "values": [1, null]}'
    """
    try:
        return json.dumps(facts, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(facts), allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def counted(number: int, noun: str) -> str:
    """Return the number and the noun, in the plural unless the number is 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def note_missing_libraries(wanted: Sequence[str] | None, device: Device) -> None:
    """Print on standard error which of the wanted kernel libraries are missing, and why.

    Parameters
    ----------
    wanted: names of kernel libraries; None stands for all libraries with kernels for `device`.
    """
    from ..machine.kernel_libraries import TVM, provider_names, why_missing

    if wanted is not None and device == "cuda":
        # The note says that TVM's kernels run instead of the library's. That would be wrong for a
        # library that the user named for a GPU: TVM's kernels do not replace it (see
        # `CudaBackend`).
        return
    for name in wanted if wanted is not None else provider_names(device):
        why = None if name == TVM else why_missing(name)
        if why is not None:
            print(
                f"tvm-interop: no kernels of {name}; TVM's kernels run instead: {why}",
                file=sys.stderr,
            )


def table(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Format rows as aligned columns; the first row holds the headings.

    Parameters
    ----------
    left: the indices of the columns with text, which are aligned to the left. Other columns hold
        figures and are aligned to the right.
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
    """Show a progress bar on standard error while a model is compiled and measured.

    No bar is shown if standard error is not a terminal.
    """
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
    """Shows the current step of a compilation, and how many of the step's stages are measured."""

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
    """Show a progress bar on standard error while the `with` block runs.

    The `with` block gets a function, and must call it with the amount of work done so far and the
    total amount.

    No bar is shown if standard error is not a terminal.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def tuning_bar(quiet: bool) -> Iterator[Progress]:
    """Show a progress bar on standard error for a search.

    No bar is shown if `quiet` is set or standard error is not a terminal.
    """
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
