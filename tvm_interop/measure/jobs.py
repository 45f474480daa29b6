"""Divides the stages to be measured into jobs."""

from __future__ import annotations

from typing import TypeAlias

from ..program.program import Program
from .stage_operators import weights_nbytes
from .stage_timer import Streams

Programs: TypeAlias = dict[str, Streams]
"""The operators on each stream of some stages, by the stage's key."""

_JOB_NBYTES = 2**28
"""The largest size in bytes of the weights in one job of several stages. Kernels of libraries hold
a packed copy of their weights, and all kernels of a job are in memory at the same time."""


def in_jobs(program: Program, stages: Programs, most: int) -> list[Programs]:
    """Divide `stages` into jobs, in order, with at most `most` stages in a job.

    A stage whose weights alone exceed the limit of a job gets a job of its own.
    """
    jobs: list[Programs] = []
    left_nbytes = 0
    for key, streams in stages.items():
        nbytes = weights_nbytes(program, (op for ops in streams for op in ops))
        if not jobs or len(jobs[-1]) >= most or nbytes > left_nbytes:
            jobs.append({})
            left_nbytes = _JOB_NBYTES
        jobs[-1][key] = streams
        left_nbytes -= nbytes
    return jobs
