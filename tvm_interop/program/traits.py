"""The resources of a device that operators need: arithmetic, memory traffic and occupancy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import ScheduleError
from .kernel_demand import KernelDemand
from .program import Program


@dataclass(frozen=True)
class OperatorTraits:
    """The resources of a device that one operator needs.

    Attributes
    ----------
    flops: floating point operations.
    nbytes: bytes that the operator reads and writes.
    demand: the fraction of the device that the operator occupies, from 0 to 1. On a GPU it is the
        largest fraction of a multiprocessor's threads, shared memory or registers that one block of
        the operator's kernels takes. If None, the larger of two ratios is used: the operator's
        flops divided by the most flops of any operator, and its bytes divided by the most bytes of
        any operator.
    memory_bound: whether memory traffic, not arithmetic, limits the operator's speed. If None, the
        operator's flops per byte decide.
    kernels: the resources of a GPU that the operator's launches need, in order. Empty on a CPU, or
        if the resources are not known.
    """

    flops: float = 0.0
    nbytes: float = 0.0
    demand: float | None = None
    memory_bound: bool | None = None
    kernels: tuple[KernelDemand, ...] = ()

    def __post_init__(self) -> None:
        for name in ("flops", "nbytes", "demand"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ScheduleError(
                    f"`{name}` of an operator is {value!r}; it must be finite, not negative"
                )


def operator_traits(program: Program) -> list[OperatorTraits]:
    """The traits of each operator, by id: only floating-point operations and bytes.

    The number of bytes is the size of all tensors that the operator reads and writes, including
    weights. The numbers of operations and of bytes are the same for every provider's kernel.
    """
    return [
        OperatorTraits(
            flops=op.flops,
            nbytes=sum(nbytes for _, _, nbytes in program.arguments_of(i)),
        )
        for i, op in enumerate(program.operators)
    ]


def demands(traits: Sequence[OperatorTraits]) -> npt.NDArray[np.float64]:
    """The fraction of the device that each operator occupies; shape (len(traits),)."""
    most_flops = max((t.flops for t in traits), default=0.0) or 1.0
    most_bytes = max((t.nbytes for t in traits), default=0.0) or 1.0
    return np.array(
        [
            max(t.flops / most_flops, t.nbytes / most_bytes) if t.demand is None else t.demand
            for t in traits
        ],
        dtype=np.float64,
    )


def are_memory_bound(
    traits: Sequence[OperatorTraits], flops_per_byte: float
) -> npt.NDArray[np.bool_]:
    """Whether each operator is limited by memory; shape (len(traits),).

    If `memory_bound` of an operator is None, the operator counts as limited by memory if it does
    fewer than `flops_per_byte` operations per byte.
    """
    return np.array(
        [
            t.flops < flops_per_byte * t.nbytes if t.memory_bound is None else t.memory_bound
            for t in traits
        ],
        dtype=np.bool_,
    )
