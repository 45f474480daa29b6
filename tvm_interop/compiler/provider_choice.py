"""Which provider's kernel each operator gets, where all tensors are plain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..machine.kernel_libraries import TVM, is_supported
from ..measure.measured import MeasuredLatency
from ..program.program import Operator, Program

LatencyOf = Callable[[Program], MeasuredLatency]


def give_to_libraries(program: Program, libraries: Sequence[str]) -> Program:
    """`program` with each operator run by the first of `libraries` that can; nothing is measured.

    Parameters
    ----------
    libraries: names; `tvm` among them is passed over.
    """
    for name in libraries:
        if name != TVM:
            free = [i for i, op in enumerate(program.operators) if op.library is None]
            able = [i for i in free if can_run(name, program.operators[i])]
            program = given_to(program, able, name)
    return program


@dataclass
class PlainChoice:
    """The fastest kernels on plain tensors, and the microseconds they take, by operator."""

    program: Program
    us: dict[int, float]


def fastest_plain(program: Program, providers: Sequence[str], latency_of: LatencyOf) -> PlainChoice:
    """The fastest kernel for each operator; ties go to TVM, then to the provider named first.

    Parameters
    ----------
    providers: names, available. Without `tvm` among them its kernels run only what no other can.
    latency_of: measures the operators of a program that has the same tensors.
    """
    chosen = program
    best_us: dict[int, float] = {}
    for name in providers:
        if name == TVM:
            continue
        described = [i for i, op in enumerate(program.operators) if can_run(name, op)]
        theirs = latency_of(given_to(chosen, described, name))
        candidates = [i for i in described if theirs.can_run(i)]
        times_us = theirs.stages([[[i]] for i in candidates])
        ours = latency_of(chosen)
        taken = {
            i: float(us)
            for i, us in zip(candidates, times_us, strict=True)
            if (TVM not in providers and chosen.operators[i].library is None)
            or ours.takes_longer(i, float(us))
        }
        kept = [i for i in candidates if i not in taken]
        best_us |= dict(zip(kept, ours.stages([[[i]] for i in kept]).tolist(), strict=True))
        best_us |= taken
        chosen = given_to(chosen, list(taken), name)
    return PlainChoice(chosen, best_us)


def can_run(library: str, op: Operator) -> bool:
    """Whether `library` could compute `op`.

    One whose kernel of TVM's has a workspace (see `lift_workspaces`) stays with that kernel: the
    workspace is a tensor of the program, and no library would have a use for it.
    """
    if op.description is None or len(op.outputs) > 1:
        return False
    return is_supported(library, op.description)


def given_to(program: Program, ops: Sequence[int], library: str) -> Program:
    """`program` with these operators run by `library`."""
    operators = list(program.operators)
    for i in ops:
        operators[i] = replace(operators[i], library=library)
    return replace(program, operators=operators)
