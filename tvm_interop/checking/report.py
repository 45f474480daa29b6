"""The result of a check: the faults in words, and a drawing of the first fault as plain text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ..errors import PlanError
from .stream_program import StreamOperator, StreamProgram

Kind = Literal["race", "overwritten", "overlap", "deadlock"]

HOST = "the host"
"""The name under which a fault lists the host, which reads the program's outputs."""

_AROUND = 3
"""The number of operators that a drawing shows before each operator at fault, and also after it.
Only operators on the streams at fault are shown."""
_WIDEST = 28


@dataclass(frozen=True)
class Fault:
    """One fault of a program: what is wrong, and where.

    Attributes
    ----------
    kind: the kind of the fault. `race`: nothing orders two operators that touch the same bytes, and
        one of them writes. `overwritten`: the first operator writes over a tensor that the second
        has yet to read. `overlap`: an operator with `restrict` writes bytes that it also reads, or
        that two of its writes have in common. `deadlock`: operators wait for each other in a
        circle.
    operators: the names of the operators at fault. For a race, the operator that is launched first
        comes first. A deadlock lists the operators of the circle, and an overlap lists one
        operator. `HOST` stands for the host, which reads outputs.
    buffer, begin, end: the bytes that both operators touch, from `begin` to just before `end`. In
        an `overwritten` fault, the first operator writes over these bytes. In an `overlap`, one
        operator touches them twice. A deadlock has no buffer.
    wait: the missing wait, as (the operator that waits, the operator it waits for). None if no wait
        can remove the fault.
    text: the fault and its remedy in one sentence.
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
    """The result of a check.

    Attributes
    ----------
    program: the program that was checked.
    faults: the faults; empty for a safe program. Two operators have at most one fault of each kind.
        Faults are ordered by the later operator of the two. Among faults with the same later
        operator, the faults about a tensor that both operators access come first. The rest are
        ordered by the earlier operator.
    """

    program: StreamProgram
    faults: tuple[Fault, ...]

    @property
    def is_safe(self) -> bool:
        """Whether the program has no fault."""
        return not self.faults

    def raise_for_faults(self) -> None:
        """Raise an error unless the program is safe.

        Raises
        ------
        PlanError
            The program is unsafe; the message has the first fault and the number of further faults.
        """
        if self.faults:
            more = len(self.faults) - 1
            raise PlanError(self.faults[0].text + (f" (and {more} more faults)" if more else ""))

    @cached_property
    def text(self) -> str:
        """The verdict and a drawing of the first fault, as text for a terminal."""
        return _drawn(self)


def operators_to_show(report: Report) -> list[StreamOperator]:
    """The operators of the first fault, and operators launched near them on the same streams."""
    at_fault = set(report.faults[0].operators) if report.faults else set()
    streams = {op.stream for op in report.program.operators if op.name in at_fault}
    there = [op for op in report.program.operators if op.stream in streams or op.name in at_fault]
    places = [i for i, op in enumerate(there) if op.name in at_fault]
    near = {i for place in places for i in range(place - _AROUND, place + _AROUND + 1)}
    return [op for i, op in enumerate(there) if i in near]


def _drawn(report: Report) -> str:
    """The verdict in words, and a drawing of the first fault if the program is unsafe.

    The drawing has a column for each stream with an operator at fault. Time runs downwards, in the
    order of launches. A `>` marks the operators at fault.
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
