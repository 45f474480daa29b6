"""Defines the report of `gpu.py` on one network, and helpers that measure figures of the report."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tvm_interop.execution.cuda import CudaInstance

WARM_UP = 5
ROUNDS = 50
PROFILES = 9


@dataclass
class Report:
    """The results of one network.

    Attributes
    ----------
    numbers: whether the outputs of sequential execution agree with onnxruntime's: "right", "WRONG"
        or "not run".
    first_wrong: if the numbers are wrong, a sentence that names the first operator that is wrong.
    library_numbers: "right" or "WRONG" for each sequential execution with kernels of libraries, by
        name.
    kernels: for each provider of kernels, the number of operators for which its kernel is the
        fastest.
    bits: "same" or "DIFFERENT" for each execution of ours, by name: its output bits compared with
        those of sequential execution with the same kernels.
    no_graph: if an execution should have a CUDA graph and has none, the reason, by name of the
        execution.
    implementations: for each execution with kernels of libraries, by name, and each operator that a
        library computes, the algorithm that runs, and the algorithms that were refused.
    stages_measured: number of stages that were measured for the schedulers.
    stages_refused: number of stages that were not measured, because the time of `ios` was over.
    search_s: seconds of each scheduler's search, measurements included.
    median_us: median latency of each engine that was timed, in microseconds, by the engine's name.
    launch_us: microseconds that the host takes to launch one run, by name of the execution.
    back_to_back_us: microseconds of one run if ten runs follow each other, by name of the
        execution.
    runs_per_s: runs in a second of 1, 2 and more instances at once, by name of the execution.
    compiled_us: median microseconds of `torch.compile` and of sequential execution.
    peer_errors: largest error in the outputs of each other engine, as a share of the allowed error.
    early_us: by name of the execution, the largest time in microseconds by which an operator seemed
        to start too early: before the end of an operator that it waits for. A small value may come
        from the coarse ticks of the GPU's clock.
    not_run: the engines that were not timed, each with the reason.
    """

    network: str
    operators: int = 0
    numbers: str = "not run"
    first_wrong: str = ""
    library_numbers: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    bits: dict[str, str] = field(default_factory=dict)
    no_graph: dict[str, str] = field(default_factory=dict)
    implementations: dict[str, dict[str, str]] = field(default_factory=dict)
    stages_measured: int = 0
    stages_refused: int = 0
    search_s: dict[str, float] = field(default_factory=dict)
    median_us: dict[str, float] = field(default_factory=dict)
    launch_us: dict[str, float] = field(default_factory=dict)
    back_to_back_us: dict[str, float] = field(default_factory=dict)
    runs_per_s: dict[str, dict[int, float]] = field(default_factory=dict)
    compiled_us: dict[str, float] = field(default_factory=dict)
    peer_errors: dict[str, float] = field(default_factory=dict)
    early_us: dict[str, float] = field(default_factory=dict)
    not_run: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether the outputs were compared and are right, and no output bits differ."""
        numbers = {self.numbers, *self.library_numbers.values()}
        return numbers == {"right"} and set(self.bits.values()) <= {"same"}


def interleaved_us(
    times: Mapping[str, Callable[[], float]], rounds: int = ROUNDS
) -> dict[str, float]:
    """The median time of each contestant, in microseconds.

    Every round times each contestant once, in a new random order.

    Parameters
    ----------
    times: for each contestant, a function that runs it once and returns the GPU's seconds.
    """
    draw = random.Random(1)
    order = list(times)
    found: dict[str, list[float]] = {name: [] for name in times}
    for round_ in range(-WARM_UP, rounds):
        draw.shuffle(order)
        for name in order:
            seconds = times[name]()
            if round_ >= 0:
                found[name].append(seconds)
    return {name: float(np.median(seconds)) * 1e6 for name, seconds in found.items()}


def earliest_us(instance: CudaInstance) -> float:
    """The time by which an operator starts too early by the GPU's clock, in microseconds.

    If operator B must wait for operator A, B starts too early by the time from B's start to A's
    end. The result is the largest such time of all pairs; 0 if no operator starts too early. The
    time of a pair is the median over `PROFILES` profiles. The GPU rounds times to a tick of about
    half a microsecond, so a single profile may be a microsecond off either way. An operator that
    fails to wait is early in most profiles, so the median shows it.
    """
    early: dict[tuple[int, int], list[float]] = {}
    for _ in range(PROFILES):
        rows = instance.profile()
        starts = {row.op: row.start_us for row in rows}
        ends = {row.op: row.end_us for row in rows}
        for op, planned in enumerate(instance.plan.operators):
            for awaited in planned.waits:
                early.setdefault((awaited, op), []).append(ends[awaited] - starts[op])
    return max([0.0, *(float(np.median(times)) for times in early.values())])


def gpu_state() -> dict[str, str]:
    """Clocks, temperature and load of GPU 0, from `nvidia-smi`; empty if `nvidia-smi` fails."""
    asked = "clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,utilization.gpu,pstate"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = done.stdout.strip().split(", ")
    return dict(zip(asked.split(","), values, strict=False))
