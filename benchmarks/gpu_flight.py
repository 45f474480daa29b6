"""Counts the runs per second of several instances that run at the same time on a GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from tvm_interop.execution.cuda import CudaInstance


def runs_per_s(instances: Sequence[CudaInstance], seconds: float) -> float:
    """The number of runs per second of all instances. Each instance runs in a thread of its own.

    All instances run once before the measured time begins.

    Raises
    ------
    TVMInteropError
        An instance cannot run.
    """
    counts = [0] * len(instances)
    failures: list[BaseException] = []
    start = threading.Barrier(len(instances) + 1)
    stop = threading.Event()

    def fly(i: int) -> None:
        try:
            instances[i].run()
        except BaseException as error:
            failures.append(error)
        start.wait()
        try:
            while not stop.is_set() and not failures:
                instances[i].run()
                counts[i] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=fly, args=(i,)) for i in range(len(instances))]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    if failures:
        raise failures[0]
    return sum(counts) / took
