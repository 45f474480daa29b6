"""Which provider's kernel each operator gets: the fastest measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..kernel_libraries import TVM, is_supported
from ..program import Operator, Program
from .measured import MeasuredLatency


def choose_kernels(
    program: Program,
    providers: Sequence[str],
    latency_of: Callable[[Program], MeasuredLatency],
) -> Program:
    """`program`, each operator given to the provider whose kernel is the fastest alone.

    Ties go to TVM, then to the provider named first. The choice is made once for a model, not for
    a schedule: all schedules of it run the same kernels, and so give the same bits.

    Parameters
    ----------
    providers: names, available. Without `tvm` among them its kernels run only what no other can.
    latency_of: measures the operators of a program that has the same tensors.
    """
    chosen = program
    for name in providers:
        if name == TVM:
            continue
        candidates = [i for i, op in enumerate(program.operators) if _can_run(name, op)]
        offered = _given(chosen, candidates, name)
        theirs = latency_of(offered)
        times_us = theirs.stages([[[i]] for i in candidates])
        ours = latency_of(chosen)
        taken = [
            i
            for i, us in zip(candidates, times_us, strict=True)
            if (TVM not in providers and chosen.operators[i].library is None)
            or ours.takes_longer(i, float(us))
        ]
        chosen = _given(chosen, taken, name)
    return chosen


def _can_run(library: str, op: Operator) -> bool:
    return op.description is not None and is_supported(library, op.description)


def _given(program: Program, ops: Sequence[int], library: str) -> Program:
    operators = list(program.operators)
    for i in ops:
        operators[i] = replace(operators[i], library=library)
    return replace(program, operators=operators)
