"""Chooses a provider's kernel for each operator. All tensors are row-major (in plain layout)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..errors import OutOfTimeError
from ..machine.kernel_libraries import TVM, why_refused
from ..measure.measured import MeasuredLatency
from ..program.program import Operator, Program
from .time_budget import TimeBudget

_LOG = logging.getLogger("tvm_interop")

LatencyOf = Callable[[Program], MeasuredLatency]
MayRun = Callable[[str, Operator], bool]


def give_to_libraries(
    program: Program,
    libraries: Sequence[str],
    may_run: MayRun = lambda library, op: True,
) -> Program:
    """Give each operator to the first of `libraries` that can run it, without measurements.

    Operators that a library already runs keep their kernels.

    Parameters
    ----------
    libraries: names of kernel libraries; `tvm` among them is ignored.
    may_run: tells whether the library of a given name may run a given operator.
    """
    for name in libraries:
        if name != TVM:
            free = [i for i, op in enumerate(program.operators) if op.library is None]
            wanted = [i for i in free if may_run(name, program.operators[i])]
            able = [i for i in wanted if can_run(name, program.operators[i])]
            program = given_to(program, able, name)
    return program


@dataclass
class PlainChoice:
    """The choice of the fastest kernels if all tensors are row-major (plain).

    Attributes
    ----------
    program: the program with the chosen kernels.
    us: the latencies of the chosen kernels in microseconds, by the operator's index. Operators that
        no library can run are left out.
    """

    program: Program
    us: dict[int, float]


class NoKernelError(Exception):
    """A library got operators without a measurement, but its kernels for them are far too slow.

    Attributes
    ----------
    names: the names of the operators.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"no kernel for {', '.join(names)}")
        self.names = names


def fastest_plain(
    program: Program, providers: Sequence[str], latency_of: LatencyOf, margin: float = 1.0
) -> PlainChoice:
    """Choose the fastest kernel for each operator; ties go to the kernel chosen so far.

    The choice begins with the kernels of `program` and goes through the libraries in the order of
    `providers`. If `program` has a library's kernel for an operator, TVM's kernel is not tried. If
    two latencies that this compilation measured are close, both kernels are measured again in
    turns. So noise at one moment does not decide the choice.

    Parameters
    ----------
    providers: the names of the available providers. If `tvm` is not among them, TVM's kernels run
        only operators that no provider among them can run.
    latency_of: makes the latency model that measures the operators of a program with the same
        tensors as `program`.
    margin: TVM's kernel is kept only if its latency divided by the library kernel's latency is at
        most this number.

    Raises
    ------
    NoKernelError
        `program` has a library's kernel for an operator, and this kernel does not exist, or is too
        slow to be worth measuring.
    """
    chosen = program
    best_us: dict[int, float] = {}
    for name in providers:
        if name == TVM:
            continue
        described = [i for i, op in enumerate(program.operators) if can_run(name, op)]
        given = given_to(chosen, described, name)
        theirs, ours = latency_of(given), latency_of(chosen)
        candidates = [
            i
            for i in described
            if _has_kernel(theirs, given.operators[i], i)
            and not (TVM in providers and is_hopeless(theirs, given.operators[i], i))
        ]
        _require_kernels(program, name, {*described} - {*candidates})
        tvms = [i for i in candidates if _tvm_competes(chosen.operators[i], providers)]
        slow = _far_slower(theirs, ours, tvms, given)
        candidates = [i for i in candidates if i not in slow]
        rivals = [
            i for i in candidates if chosen.operators[i].library not in (None, name) or i in tvms
        ]
        # The kernel chosen so far first runs once or twice. If it is far slower than the library's
        # kernel, it cannot win, so it is not measured further.
        times_us = theirs.stages([[[i]] for i in rivals]).tolist()
        near = ours.near(rivals, [_CLOSE * us for us in times_us])
        if _measured_again(theirs, ours, dict(zip(rivals, times_us, strict=True)), near):
            # Make the latency models of both programs again, so that they use all measurements in
            # the database. The next compilation of the model will use these measurements, too.
            theirs, ours = latency_of(given), latency_of(chosen)
        theirs_us = dict(zip(candidates, theirs.stages([[[i]] for i in candidates]), strict=True))
        bars_us = {
            i: us if chosen.operators[i].library is not None else margin * us
            for i, us in theirs_us.items()
        }
        ours_us = ours.stages([[[i]] for i in near]).tolist()
        faster = {i for i, us in zip(near, ours_us, strict=True) if us <= bars_us[i]}
        taken = [i for i in candidates if i not in faster]
        kept = [i for i in described if i not in taken]
        best_us |= dict(zip(kept, ours.stages([[[i]] for i in kept]).tolist(), strict=True))
        best_us |= {i: float(theirs_us[i]) for i in taken}
        chosen = given_to(chosen, taken, name)
    return PlainChoice(chosen, best_us)


def plain_in_time(
    program: Program, providers: Sequence[str], latency_of: LatencyOf, budget: TimeBudget
) -> Program:
    """Choose as `fastest_plain` does, but measure only until the time in `budget` is over.

    Parameters
    ----------
    providers: as in `fastest_plain`.
    latency_of: as in `fastest_plain`, but its latency models raise `OutOfTimeError` when `budget`
        is spent.
    budget: the time for the choice. It also records the operators that were not measured.
    """
    if budget.measures_nothing:
        return unmeasured(program, providers, budget)
    try:
        return fastest_plain(program, providers, latency_of).program
    except OutOfTimeError:
        return fastest_known(program, providers, latency_of, budget)


def unmeasured(
    program: Program,
    providers: Sequence[str],
    budget: TimeBudget,
    may_run: MayRun = lambda library, op: True,
) -> Program:
    """Choose kernels by `give_to_libraries`, and record in `budget` that nothing was measured."""
    budget.leave_out("measuring which kernel is the fastest for each operator")
    return give_to_libraries(program, providers, may_run)


def guessed_on_cpu(program: Program, providers: Sequence[str], budget: TimeBudget) -> Program:
    """Choose like `unmeasured`, but leave operators of some kinds to TVM (`is_usually_tvms`)."""
    return unmeasured(program, providers, budget, lambda _, op: not is_usually_tvms(op, providers))


def is_usually_tvms(op: Operator, providers: Sequence[str]) -> bool:
    """Whether TVM is among the providers and probably has the fastest kernel for `op` on a CPU."""
    return TVM in providers and op.description is not None and op.description.tvm_usually_wins


def fastest_known(
    program: Program,
    providers: Sequence[str],
    latency_of: LatencyOf,
    budget: TimeBudget,
    margin: float = 1.0,
) -> Program:
    """Choose the fastest kernel for each operator by the latencies that were measured in time.

    An operator whose kernels were not measured in time gets the kernel of the first library that
    can run it.

    Parameters
    ----------
    providers, margin: as in `fastest_plain`.
    latency_of: as in `fastest_plain`, but its latency models raise `OutOfTimeError` for unknown
        latencies.
    budget: records how many operators were not measured.
    """
    chosen = program
    unknown: set[int] = set()
    for name in (name for name in providers if name != TVM):
        described = [i for i, op in enumerate(program.operators) if can_run(name, op)]
        given = given_to(chosen, described, name)
        theirs, ours = latency_of(given), latency_of(chosen)
        taken = []
        candidates = [i for i in described if _has_kernel(theirs, given.operators[i], i)]
        _require_kernels(program, name, {*described} - {*candidates})
        for i in (i for i in candidates if chosen.operators[i].library != name):
            is_tvms = chosen.operators[i].library is None
            is_faster = is_tvms
            if not is_tvms or _may_try_tvm(given.operators[i], providers):
                try:
                    if is_tvms and _far_slower(theirs, ours, [i], given):
                        continue
                    us = float(theirs.stage([[i]]))
                    (is_faster,) = ours.take_longer([i], [margin * us if is_tvms else us])
                except OutOfTimeError:
                    unknown.add(i)
            if is_faster:
                taken.append(i)
        chosen = given_to(chosen, taken, name)
    if unknown:
        budget.leave_out(f"measuring the kernels of {len(unknown)} operators")
    return chosen


def _may_try_tvm(op: Operator, providers: Sequence[str]) -> bool:
    return TVM in providers and (op.description is None or op.description.tvm_may_win)


def _tvm_competes(op: Operator, providers: Sequence[str]) -> bool:
    """Whether TVM's kernel runs `op` so far, and is measured against a library's kernel."""
    return op.library is None and _may_try_tvm(op, providers)


def _far_slower(
    theirs: MeasuredLatency, ours: MeasuredLatency, ops: Sequence[int], given: Program
) -> set[int]:
    """The operators among `ops` whose library kernel is far slower than TVM's kernel.

    On row-major tensors, a library may take a hundred times as long as TVM for a pooling. Such a
    kernel cannot win, so it runs once or twice and is not measured further. For products the
    library nearly always wins, so products are left out here (see also `is_hopeless`).

    Parameters
    ----------
    theirs, ours: as in `_measured_again`.
    given: the program with the library's kernels.
    """
    kinds = {i: given.operators[i].description for i in ops}
    tried = [i for i, kind in kinds.items() if kind is not None and not kind.multiplies]
    than_us = [max(us, _CHEAP_US) for us in ours.rough_us(tried)]
    return {*tried} - {*theirs.near(tried, than_us)}


_CHEAP_US = 100.0
"""The least latency, in microseconds, with which `_far_slower` compares a library's kernel.

So short kernels are always measured. That takes little time, and a single run of a short kernel
says little, because the start of the run is a part of it.
"""


def _require_kernels(program: Program, library: str, without: Collection[int]) -> None:
    """Raise NoKernelError if `library` runs operators for which it has no kernel worth measuring.

    Parameters
    ----------
    without: the indices of the operators for which the library has no such kernel.
    """
    operators = [program.operators[i] for i in sorted(without)]
    names = [op.name for op in operators if op.library == library]
    if names:
        raise NoKernelError(names)


def is_hopeless(latency: MeasuredLatency, op: Operator, number: int) -> bool:
    """Whether the library of `op` has only a kernel that is too slow to be worth measuring.

    For some large products, such as convolutions with few channels in a group, a library may have
    only its reference implementation. Such an implementation takes a thousand times as long as
    TVM's kernel.
    """
    described = op.description
    return (
        described is not None
        and described.multiplies
        and described.flops >= _LARGE_FLOPS
        and (described.dtype, described.stored) == ("float32", ())
        and latency.has_only_reference(number)
    )


_LARGE_FLOPS = 1e6
"""For this number of operations or more, a reference implementation takes ten milliseconds or more.
"""


def _has_kernel(latency: MeasuredLatency, op: Operator, number: int) -> bool:
    """Whether the library of `op` has a kernel for this device; if not, the reason is logged."""
    refusal = latency.why_not(number)
    if refusal:
        _LOG.warning("no kernel of %s for `%s`: %s", op.library, op.name, refusal)
    return not refusal


_CLOSE = 0.85
"""Two latencies are close if the smaller divided by the larger is at least this."""
_SMALL = 0.02
"""The shortest operators are not measured again. They are the operators that together take this
fraction of the time of all operators.

A wrong choice between two close kernels costs little: at most a seventh of the operator's time.
"""


def _measured_again(
    theirs: MeasuredLatency,
    ours: MeasuredLatency,
    theirs_us: Mapping[int, float],
    near: Sequence[int],
) -> bool:
    """Measure again the operators whose library kernel takes about as long as the present kernel.

    Operators with small latencies are not measured again.

    Parameters
    ----------
    theirs, ours: latency models: of the program with the library's kernels (`theirs`), and of the
        program with the kernels chosen so far (`ours`).
    theirs_us: the latency in `theirs`, in microseconds, of each operator that has a kernel in both
        programs.
    near: the operators among `theirs_us` whose kernel in `ours` is not far slower than their kernel
        in `theirs`.

    Returns
    -------
    Whether any operator was measured again.
    """
    least_us = _least_that_matters(np.array([*theirs_us.values()]))
    close = [
        [[i]]
        for i, us in zip(near, ours.stages([[[i]] for i in near]).tolist(), strict=True)
        if _CLOSE * theirs_us[i] < us <= theirs_us[i] / _CLOSE and theirs_us[i] >= least_us
    ]
    if not close or not theirs.measured + ours.measured:
        return False
    again = [model.measure_again(close) for model in (theirs, ours)]
    return any(again)


def _least_that_matters(times_us: npt.NDArray[np.float64]) -> float:
    """The limit below which latencies count as small.

    The latencies below this limit add up to the fraction `_SMALL` of all latencies' sum.
    """
    ascending = np.sort(times_us)
    matter = ascending[np.cumsum(ascending) > _SMALL * ascending.sum()]
    return float(matter[0]) if len(matter) else 0.0


def can_run(library: str, op: Operator) -> bool:
    """Whether `library` could compute `op`."""
    return not why_not(library, op)


def why_not(library: str, op: Operator) -> str:
    """The reason why `library` cannot compute `op`; empty if it can.

    An operator keeps TVM's kernel if that kernel has a workspace (see `lift_workspaces`). The
    workspace is an argument of the operator, and a library's kernel would not accept this argument.
    """
    if op.description is None:
        refused = "" if op.refused is None else why_refused(library, op.refused)
        return refused or "is not of a kind that libraries compute"
    if len(op.outputs) > 1:
        return f"`{op.description.op}` has several results, and libraries compute only one"
    return why_refused(library, op.description)


def given_to(program: Program, ops: Sequence[int], library: str) -> Program:
    """Return a copy of `program` in which `library` runs the operators `ops`.

    Parameters
    ----------
    ops: the indices of the operators.
    """
    operators = list(program.operators)
    for i in ops:
        operators[i] = replace(operators[i], library=library)
    return replace(program, operators=operators)
