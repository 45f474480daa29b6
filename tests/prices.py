"""Replaces measured latencies: by given latencies for a test, or by random ones to find bad tests.

The choices of a compiler depend on its measurements, and so on other programs on the machine. A
test must hold for each of these choices, or give the latencies that it is about. With `pytest
--random-prices SEED` nothing is timed. Every stage and every schedule runs, and then gets a random
time. A test that fails then would also fail on some machine, on some day.
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
    """A function that takes the place of `measure_interleaved`, which measures all CPU latencies.

    Each executor gets a typical time, spread evenly over orders of magnitude. The times of its runs
    vary as on a busy machine.

    Parameters
    ----------
    run: runs an executor once, as it would run when timed, so that its errors are found.
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
"""The time to start a run on the device with given latencies, in microseconds."""


class GivenTimer:
    """A timer of a device whose stages take given times. Otherwise it is like `CpuStageTimer`."""

    stages_per_job = 32
    waits_of_stage = 2

    def __init__(self, op_us: Callable[[int], float], streams: int) -> None:
        """Make the timer. `op_us` gives the latency of an operator in microseconds.

        Operators on one stream run one after the other, and streams run side by side.
        """
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
    """Give operators latencies by the bytes that they touch, in all compilations for a CPU."""

    def stage_timer(self: Any, program: Program, streams: int, threads: int) -> GivenTimer:
        def op_us(op: int) -> float:
            operator = program.operators[op]
            return (
                sum(program.values[v].nbytes for v in (*operator.inputs, *operator.outputs)) / 1e3
            )

        return GivenTimer(op_us, streams)

    patch.setattr(LoweredForCpu, "stage_timer", stage_timer)
