"""Replaces measured latencies. A test can give latencies, and random latencies find bad tests.

The choices of a compiler depend on its measurements, and so on other programs on the machine. A
test must pass with each of these choices, or set the latencies that it needs. With `pytest
--random-prices SEED` nothing is timed. Every stage and every schedule runs, and then gets a random
time. A test that fails with random times could also fail with measured times.
"""

from __future__ import annotations

import zlib
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

    Each executor gets a typical time, drawn evenly over several orders of magnitude. The times of
    its runs vary as on a busy machine.

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
"""Microseconds to start a run on the device that `GivenTimer` stands for."""


class GivenTimer:
    """A timer for a device on which stages take the times that a test gives.

    In all other respects it is like `CpuStageTimer`.
    """

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

    def implementation(self, op: int) -> str:
        return ""

    def why_not(self, op: int) -> str:
        return ""

    def do(self, jobs: Sequence[Job[Result]]) -> Iterator[Result]:
        return (job(self._rounds) for job in jobs)

    def close(self) -> None:
        pass

    def _rounds(self, stages: Sequence[Streams]) -> Measure:
        def us(streams: Streams) -> float:
            return START_US + max((sum(map(self._op_us, ops)) for ops in streams), default=0.0)

        return lambda indices, repeats: [[us(stages[i]) * 1e-6] * repeats for i in indices]


OpUs = Callable[[Program, int], float]
"""The latency of an operator of a program, by its id, in microseconds."""


def by_bytes(program: Program, op: int) -> float:
    """A latency by the bytes that an operator touches: 1 us for each 1,000."""
    operator = program.operators[op]
    return sum(program.values[v].nbytes for v in (*operator.inputs, *operator.outputs)) / 1e3


def usual(seed: int) -> OpUs:
    """Latencies by bytes, with usual ratios between the kernels of one operator.

    A library's kernel takes half the time of TVM's kernel, and less on blocked tensors. For one
    operator in eight, TVM's kernel is the fastest. `seed` decides for which operators.
    """

    def op_us(program: Program, op: int) -> float:
        operator = program.operators[op]
        likes_tvm = zlib.crc32(f"{seed} {operator.name}".encode()) % 8 == 0
        share = 1.0 if operator.library is None else 0.5
        if operator.description is not None and set(operator.description.layouts) != {"plain"}:
            share = 0.35
        if likes_tvm and operator.library is None:
            share = 0.2
        return share * by_bytes(program, op)

    return op_us


def give_prices(patch: pytest.MonkeyPatch, op_us: OpUs = by_bytes) -> None:
    """Give operators these latencies in all compilations for a CPU.

    Nothing is measured, so only kernels that are chosen by the given latencies are compiled.
    """

    def stage_timer(self: Any, program: Program, streams: int, threads: int) -> GivenTimer:
        return GivenTimer(lambda op: op_us(program, op), streams)

    patch.setattr(LoweredForCpu, "stage_timer", stage_timer)
