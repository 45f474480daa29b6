"""What operators ask of the device, beyond time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import ScheduleError
from .program import Program


@dataclass(frozen=True)
class OperatorTraits:
    """What one operator computes, moves and occupies.

    Attributes
    ----------
    flops: floating point operations.
    nbytes: bytes it reads and writes.
    demand: the share of the device that it occupies, from 0 to 1: of a GPU the largest of its
        kernels' shares of threads, shared memory and registers. None: unknown, and derived from
        flops and bytes, each as a share of the largest operator's.
    memory_bound: whether memory and not arithmetic limits it. None: derived from its arithmetic
        intensity.
    """

    flops: float = 0.0
    nbytes: float = 0.0
    demand: float | None = None
    memory_bound: bool | None = None

    def __post_init__(self) -> None:
        for name in ("flops", "nbytes", "demand"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ScheduleError(
                    f"`{name}` of an operator is {value!r}; it must be finite, not negative"
                )


def operator_traits(program: Program) -> list[OperatorTraits]:
    """Floating-point operations and bytes of each operator, by id.

    The bytes are those of the tensors it reads and writes, weights too. Both are the same whoever's
    kernel runs the operator.
    """
    return [
        OperatorTraits(
            flops=op.flops,
            nbytes=sum(nbytes for _, _, nbytes in program.arguments_of(i)),
        )
        for i, op in enumerate(program.operators)
    ]


def demands(traits: Sequence[OperatorTraits]) -> npt.NDArray[np.float64]:
    """The share of the device that each operator occupies; shape (len(traits),)."""
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
    """Whether each operator does fewer than `flops_per_byte`; shape (len(traits),)."""
    return np.array(
        [
            t.flops < flops_per_byte * t.nbytes if t.memory_bound is None else t.memory_bound
            for t in traits
        ],
        dtype=np.bool_,
    )
