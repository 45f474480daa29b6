"""Prices in place of measured ones: given ones for a test, random ones to find bad tests.

What a compiler chooses depends on what it measured, and so on whatever else the machine did. A test
must hold for each of these choices, or say by prices of its own which it is about. `pytest
--random-prices SEED` times nothing: every stage and every schedule runs, and then gets a time that
was drawn. Whatever fails then would fail on some machine, on some day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tvm_interop.compiler.cpu import LoweredForCpu
from tvm_interop.latency.measurement import Setting
from tvm_interop.measure.repeats import Measure
from tvm_interop.measure.stage_timer import Job, Result, Streams
from tvm_interop.program.program import Program

_FEWEST_US, _MOST_US = 1.0, 1000.0


def random_clock(seed: int, run: Callable[[Any], None]) -> Callable[..., list[list[float]]]:
    """In the place of `measure_interleaved`, by which all latencies on a CPU are measured.

    Each executor gets a typical time, spread evenly over orders of magnitude, and its runs lie
    around it as on a busy machine.

    Parameters
    ----------
    run: runs an executor once, as it would be run to be timed, so that its errors are found.
    """
    rng = np.random.default_rng(seed)

    def measure_interleaved(
        executors: Sequence[Any],
        warmup: int,
        repeats: int,
        seed: int = 0,
        primed: bool = False,
    ) -> list[list[float]]:
        for executor in executors:
            run(executor)
        ends = np.log([_FEWEST_US, _MOST_US])
        typical_us = np.exp(rng.uniform(*ends, size=(len(executors), 1)))
        noise = np.exp(np.abs(rng.standard_normal((len(executors), repeats))) * 0.3)
        times: list[list[float]] = (typical_us * noise * 1e-6).tolist()
        return times

    return measure_interleaved


START_US = 5.0
"""What starting a run takes on the device on which prices are given."""


class GivenTimer:
    """A device whose stages take what a function says; otherwise as `CpuStageTimer`."""

    stages_per_job = 32

    def __init__(self, op_us: Callable[[int], float], streams: int) -> None:
        """Operators of a stream take `op_us` one after the other, and streams run at once."""
        self._op_us = op_us
        self.setting = Setting(
            device="given prices", driver="", cores=2, tvm_version="", streams=streams, threads=1
        )

    def why_not(self, op: int) -> str:
        return ""

    def do(self, jobs: Sequence[Job[Result]]) -> Iterator[Result]:
        return (job(self._rounds) for job in jobs)

    def close(self) -> None:
        pass

    def _rounds(self, stages: Sequence[Streams]) -> Measure:
        us = [
            START_US + max((sum(map(self._op_us, ops)) for ops in streams), default=0.0)
            for streams in stages
        ]
        return lambda indices, repeats: [[us[i] * 1e-6] * repeats for i in indices]


def give_prices(patch: pytest.MonkeyPatch) -> None:
    """Let what is compiled for a CPU be priced by the bytes that each operator touches."""

    def stage_timer(self: Any, program: Program, streams: int, threads: int) -> GivenTimer:
        def op_us(op: int) -> float:
            operator = program.operators[op]
            return (
                sum(program.values[v].nbytes for v in (*operator.inputs, *operator.outputs)) / 1e3
            )

        return GivenTimer(op_us, streams)

    patch.setattr(LoweredForCpu, "stage_timer", stage_timer)
