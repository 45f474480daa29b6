"""Computes convolutions by Winograd's algorithm where it beats the kernel chosen before."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

from ..errors import OutOfTimeError
from ..machine.kernel_libraries import why_refused
from ..program.kinds.winograd_conv2d import WinogradConv2d, as_winograd
from ..program.program import Operator, Program
from .provider_choice import LatencyOf
from .time_budget import TimeBudget

LIBRARY = "onednn"
"""The library whose convolutions may be replaced. In plans, Winograd's kernels have this library's
name."""

_FASTER = 0.9
"""Winograd's kernel is chosen if its time is at most this fraction of the present kernel's time."""

_BYTES_PER_US = 12e3
"""The speed at which memory is assumed to deliver weights to one core: 12 GB/s.

The time to read the additional weights is added to the measured time. Winograd's algorithm reads
four times as many weights as other kernels, and in float32 even if the others read bfloat16. A
kernel that is measured alone finds its weights in the caches, but in a network other operators
drive them out before the kernel runs again.
"""


def with_winograd(program: Program, latency_of: LatencyOf, budget: TimeBudget) -> Program:
    """Use Winograd's algorithm for each convolution that it makes faster.

    Each convolution keeps the layouts of its tensors. Kernels are measured on one thread, before
    operators are divided into parts.

    Parameters
    ----------
    program: the program with the chosen kernels.
    latency_of: makes the latency model that measures the operators of a program with the same
        tensors as `program`.
    budget: the time for the choice. If it is spent, the remaining convolutions keep their kernels.
    """
    if budget.measures_nothing:
        return program
    candidates = _candidates(program)
    if not candidates:
        return program
    stages = [[[i]] for i in candidates]
    try:
        before_us = latency_of(program).stages(stages).tolist()
        faster = _faster_us(
            program, candidates, latency_of, dict(zip(candidates, before_us, strict=True))
        )
    except OutOfTimeError:
        budget.leave_out("measuring convolutions by Winograd's algorithm")
        return program
    return _given(program, {i: candidates[i] for i in faster})


def winograd_us(
    program: Program, present_us: Mapping[int, float], latency_of: LatencyOf
) -> dict[int, float]:
    """The latencies of the convolutions that Winograd's algorithm computes faster, by their index.

    Layouts of tensors are chosen by these latencies. `with_winograd` chooses the kernels later, for
    the chosen layouts.

    Parameters
    ----------
    program: the program with the layouts to measure.
    present_us: the latencies of the present kernels in microseconds, by the operator's index. Only
        these operators are measured.
    latency_of: as in `with_winograd`.

    Raises
    ------
    OutOfTimeError
        The time budget is spent.
    """
    candidates = {i: kind for i, kind in _candidates(program).items() if i in present_us}
    return _faster_us(program, candidates, latency_of, present_us)


def _faster_us(
    program: Program,
    candidates: Mapping[int, WinogradConv2d],
    latency_of: LatencyOf,
    present_us: Mapping[int, float],
) -> dict[int, float]:
    """The latencies of the `candidates` that are clearly faster than the present kernels.

    Each latency includes the time to read the additional weights.
    """
    if not candidates:
        return {}
    latency = latency_of(_given(program, candidates))
    more_us = {i: _more_weights_us(program.operators[i], kind) for i, kind in candidates.items()}
    limits_us = [max(_FASTER * present_us[i] - more_us[i], 0.0) for i in candidates]
    is_slower = latency.take_longer(list(candidates), limits_us)
    faster = [i for i, slower in zip(candidates, is_slower, strict=True) if not slower]
    times_us = latency.stages([[[i]] for i in faster]).tolist()
    return {i: us + more_us[i] for i, us in zip(faster, times_us, strict=True)}


def by_winograd(program: Program, names: Collection[str]) -> Program:
    """Use Winograd's algorithm for the convolutions in `names` that it suits.

    Nothing is measured. Names of operators that are not convolutions have no effect.
    """
    candidates = _candidates(program).items()
    named = {i: kind for i, kind in candidates if program.operators[i].name in names}
    return _given(program, named)


def _candidates(program: Program) -> dict[int, WinogradConv2d]:
    """Descriptions of the operators that Winograd's algorithm suits, by the operator's index."""
    found = ((i, _candidate(program, op)) for i, op in enumerate(program.operators))
    return {i: kind for i, kind in found if kind is not None}


def _candidate(program: Program, op: Operator) -> WinogradConv2d | None:
    """The description of `op` for Winograd's algorithm; None if the algorithm does not suit it.

    The weight must be a constant, because it is transformed only once. If a convolution has fewer
    channels than `_FEWEST_CHANNELS`, the transforms take more time than the algorithm saves.
    """
    if op.library != LIBRARY or op.description is None:
        return None
    kind = as_winograd(op.description)
    if kind is None or not program.is_constant(op.inputs[1]):
        return None
    if min(kind.shapes[1][:2]) < _FEWEST_CHANNELS or kind.flops < _FEWEST_FLOPS:
        return None
    return None if why_refused(LIBRARY, kind) else kind


_FEWEST_CHANNELS = 8
_FEWEST_FLOPS = 5e5
"""The fewest operations of a convolution for Winograd's algorithm. Smaller convolutions take a few
microseconds with any kernel."""


def _more_weights_us(op: Operator, kind: WinogradConv2d) -> float:
    """The time to read the additional bytes of the transformed weights of `op`, in microseconds.

    Weights that are transformed for Winograd's algorithm are larger than the original weights.
    """
    assert op.description is not None
    word = 2 if op.description.dtype == "bfloat16" else 4
    return (kind.packed_nbytes - word * prod(kind.shapes[1])) / _BYTES_PER_US


def _given(program: Program, kinds: Mapping[int, WinogradConv2d]) -> Program:
    operators = [
        replace(op, description=kinds[i]) if i in kinds else op
        for i, op in enumerate(program.operators)
    ]
    return replace(program, operators=operators)
