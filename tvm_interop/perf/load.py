"""Sends requests to runners, in a closed or an open loop, and measures latencies.

A runner is a function that runs a model once.

In a closed loop, a runner gets a new request as soon as it has finished a request. In an open loop,
requests arrive at given times, whether or not runners are free. The latency of a request in an open
loop counts from the time at which the request is due. So it includes the time that the request
waits for a runner.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

Arrivals: TypeAlias = Literal["poisson", "uniform"]


class Turn(NamedTuple):
    """The measurements of one turn of requests.

    Attributes
    ----------
    latencies_us: the latency of each request in microseconds, in the order in which requests ended.
    wall_s: the time from the start of the turn to the end of the last request, in seconds.
    cpu_s: the CPU time of all threads of this process during the turn, in seconds, including
        spinning.
    """

    latencies_us: list[float]
    wall_s: float
    cpu_s: float


def closed_loop(runners: Sequence[Callable[[], object]], seconds: float, least: int = 1) -> Turn:
    """Call each runner again and again without a pause, in a thread of its own.

    Parameters
    ----------
    seconds: the time, in seconds, for which the runners are called.
    least: the least number of calls of each runner, even if these calls take longer than `seconds`.
    """
    until = time.perf_counter() + seconds

    def calls(run: Callable[[], object], latencies_us: list[float]) -> None:
        for number in itertools.count():
            began = time.perf_counter()
            if number >= least and began >= until:
                return
            run()
            latencies_us.append((time.perf_counter() - began) * 1e6)

    return _timed(runners, calls)


def open_loop(
    runners: Sequence[Callable[[], object]],
    seconds: float,
    rate: float,
    arrivals: Arrivals = "poisson",
    seed: int = 0,
) -> Turn:
    """Send requests at given arrival times; the first free runner takes the next request.

    Parameters
    ----------
    seconds: requests arrive during this time, in seconds.
    rate: requests per second.
    arrivals: `poisson` for random gaps between requests, `uniform` for equal gaps.
    seed: seed of the random gaps.
    """
    due_s = iter(arrival_times(seconds, rate, arrivals, seed))
    lock = threading.Lock()
    start = time.perf_counter()

    def calls(run: Callable[[], object], latencies_us: list[float]) -> None:
        while True:
            with lock:
                due = next(due_s, None)
            if due is None:
                return
            wait = start + due - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            run()
            latencies_us.append((time.perf_counter() - start - due) * 1e6)

    return _timed(runners, calls)


def arrival_times(seconds: float, rate: float, arrivals: Arrivals, seed: int) -> list[float]:
    """Return the times at which requests are due, in seconds from the beginning. There is at least
    one.
    """
    if arrivals == "uniform":
        return [i / rate for i in range(max(1, round(seconds * rate)))]
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(1, round(2 * seconds * rate) + 20))
    times = np.cumsum(gaps) - gaps[0]
    return [float(t) for t in times if t < seconds] or [0.0]


def _timed(
    runners: Sequence[Callable[[], object]],
    calls: Callable[[Callable[[], object], list[float]], None],
) -> Turn:
    """Call `calls` for each runner, all at the same time, and return the measurements.

    The first runner uses the calling thread. Each other runner gets a new thread.
    """
    latencies_us: list[float] = []
    wrong: list[BaseException] = []

    def work(run: Callable[[], object]) -> None:
        try:
            calls(run, latencies_us)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(run,)) for run in runners[1:]]
    began, computed = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    work(runners[0])
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]
    return Turn(latencies_us, time.perf_counter() - began, time.process_time() - computed)
