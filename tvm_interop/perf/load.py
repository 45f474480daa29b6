"""Requests to runners: as fast as they come back, or at given times whether they come back or not.

Latencies of the second kind count from when a request was due, so that one that waits for another
is not left out of the figures.
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
    """What one turn of requests took.

    Attributes
    ----------
    latencies_us: of each request, in the order in which they ended.
    wall_s: from the first request to the end of the last.
    cpu_s: what all threads of this process computed meanwhile, those that only spin included.
    """

    latencies_us: list[float]
    wall_s: float
    cpu_s: float


def closed_loop(runners: Sequence[Callable[[], object]], seconds: float, least: int = 1) -> Turn:
    """Each runner has a thread, which calls it again as soon as it has returned.

    Parameters
    ----------
    least: how often each is called even where the time is over.
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
    """Requests are due at times of their own; the first runner that is free takes the next.

    Parameters
    ----------
    rate: requests a second.
    arrivals: gaps of random length, or all of one.
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
    """When requests are due, in seconds from the beginning; at least one."""
    if arrivals == "uniform":
        return [i / rate for i in range(max(1, round(seconds * rate)))]
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(1, round(2 * seconds * rate) + 20))
    times = np.cumsum(gaps) - gaps[0]
    return [float(t) for t in times if t < seconds] or [0.0]


def _timed(
    runners: Sequence[Callable[[], object]],
    calls: Callable[[Callable[[], object], list[float]], None],
) -> Turn:
    """Let `calls` call each runner, in a thread of its own; the first in this one."""
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
