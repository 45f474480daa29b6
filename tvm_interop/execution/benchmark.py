"""Repeats a measurement by a timer, and returns the times as TVM's `BenchmarkResult`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def benchmark_result(
    timer: Callable[[int], float], repeat: int, number: int, min_repeat_ms: int | None
) -> Any:
    """Return the times of `repeat` measurements as a `tvm.runtime.module.BenchmarkResult`.

    Parameters
    ----------
    timer: runs the model a number of times, and returns the total seconds.
    number: the number of runs in each measurement.
    min_repeat_ms: the shortest time of a measurement, in milliseconds. `number` is raised until a
        measurement takes that long.
    """
    from tvm.runtime.module import BenchmarkResult

    timer(1)
    if min_repeat_ms:
        while (took := timer(number)) * 1e3 < min_repeat_ms:
            number = max(number + 1, int(number * min(10, 1.1 * min_repeat_ms / (took * 1e3))))
    return BenchmarkResult([timer(number) / number for _ in range(repeat)])
