"""What a check found: faults, in words, and the first of them drawn as plain text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ..errors import PlanError
from .stream_program import StreamOperator, StreamProgram

Kind = Literal["race", "overwritten", "overlap", "deadlock"]

HOST = "the host"
"""Who reads the outputs."""

_AROUND = 3
"""Operators shown before, between and behind those at fault, on their streams."""
_WIDEST = 28


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where.

    Attributes
    ----------
    kind: `race`: nothing orders two operators that touch the same bytes, one of them writing;
        `overwritten`: the first operator writes over a tensor that the second has yet to read;
        `overlap`: an operator with `restrict` writes over what it touches; `deadlock`: operators
        wait for each other in a circle.
    operators: names: the two at fault, of a race the one launched first in front; those of the
        circle; the one that overlaps. `HOST` stands for the host, which reads outputs.
    buffer, begin, end: the bytes that both touch, or that are lost; no buffer of a deadlock.
    wait: the wait that is missing, (who waits, for whom); None where no wait mends it.
    text: all of it as a sentence.
    """

    kind: Kind
    operators: tuple[str, ...]
    buffer: str | None
    begin: int
    end: int
    wait: tuple[str, str] | None
    text: str


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes
    ----------
    faults: one for each two operators and kind, by the later of the two; of its own, those about a
        tensor that one reads from the other first, then by the earlier. Empty for a safe program.
    """

    program: StreamProgram
    faults: tuple[Fault, ...]

    @property
    def is_safe(self) -> bool:
        """Whether there is no fault."""
        return not self.faults

    def raise_for_faults(self) -> None:
        """Do nothing for a safe program.

        Raises
        ------
        PlanError
            The first fault, and how many more there are.
        """
        if self.faults:
            more = len(self.faults) - 1
            raise PlanError(self.faults[0].text + (f" (and {more} more faults)" if more else ""))

    @cached_property
    def text(self) -> str:
        """The verdict, and the first fault drawn, for a terminal."""
        return _drawn(self)


def operators_to_show(report: Report) -> list[StreamOperator]:
    """The operators at fault, those they wait for, and neighbours on the same streams."""
    at_fault = set(report.faults[0].operators) if report.faults else set()
    streams = {op.stream for op in report.program.operators if op.name in at_fault}
    there = [op for op in report.program.operators if op.stream in streams or op.name in at_fault]
    places = [i for i, op in enumerate(there) if op.name in at_fault]
    near = {i for place in places for i in range(place - _AROUND, place + _AROUND + 1)}
    return [op for i, op in enumerate(there) if i in near]


def _drawn(report: Report) -> str:
    """The verdict in words; of an unsafe program also the streams at fault, side by side.

    Time runs downwards, in the order of launches; a `>` marks the operators at fault.
    """
    count = len(report.program.operators)
    if report.is_safe:
        return f"safe: {count} operators, in whatever order their streams let them run"
    fault = report.faults[0]
    more = len(report.faults) - 1
    lines = [f"unsafe ({fault.kind}): {fault.text}", ""]
    shown = operators_to_show(report)
    streams = list(dict.fromkeys(op.stream for op in shown))
    width = min(max(len(name) for op in shown for name in (op.name, op.stream)), _WIDEST)
    lines.append("  ".join(f"  {_cut(stream, width):{width}}" for stream in streams).rstrip())
    for op in shown:
        cells = [" " * (width + 2) for _ in streams]
        mark = ">" if op.name in fault.operators else " "
        cells[streams.index(op.stream)] = f"{mark} {_cut(op.name, width):{width}}"
        waits = f"  waits for {', '.join(op.waits)}" if op.waits else ""
        lines.append(("  ".join(cells) + waits).rstrip())
    if fault.wait is not None:
        lines += ["", f"missing: {fault.wait[0]} waits for {fault.wait[1]}"]
    if more:
        lines.append(f"and {more} more {'fault' if more == 1 else 'faults'}")
    return "\n".join(lines)


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else "…" + name[1 - width :]
