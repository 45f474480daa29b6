"""Statistics of the requests that a model has served, for the protocol's statistics extension.

The statistics also predict the latency of the next run.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from ...errors import CancelledError, DeadlineError, OverloadedError
from .ticket import Ticket

_RECENT = 16
"""The number of recent runs from which the latency of the next run is predicted."""


class _Duration:
    """How often something happened, and its total duration in nanoseconds."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, us: float, times: int = 1) -> None:
        self.count += times
        self.ns += round(us * 1e3) * times

    def told(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


_PARTS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")


class Statistics:
    """Counts and durations of one model. Any thread may update and read them.

    Attributes
    ----------
    outcomes: number of requests by outcome: `served`, `failed`, `rejected`, `late`, `cancelled`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts = {name: _Duration() for name in _PARTS}
        self._batches: dict[int, dict[str, _Duration]] = {}
        self._inferences = 0
        self._executions = 0
        self._last_ms = 0
        self._alone_us: dict[int, float] = {}
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self.outcomes = dict.fromkeys(("served", "failed", "rejected", "late", "cancelled"), 0)

    def ran(self, tickets: list[Ticket]) -> None:
        """Record a run that has served these tickets. The times of the tickets must be set."""
        first = tickets[0]
        run = (first.input_us, first.infer_us, first.output_us)
        with self._lock:
            self._executions += 1
            self._last_ms = time.time_ns() // 1_000_000
            batch = self._batches.get(first.ran_batch)
            if batch is None:
                batch = self._batches[first.ran_batch] = {n: _Duration() for n in _PARTS[3:]}
            for name, us in zip(_PARTS[3:], run, strict=True):
                batch[name].add(us)
                self._parts[name].add(us, len(tickets))
            for ticket in tickets:
                self._inferences += ticket.rows
                self._parts["success"].add(ticket.finished_us - ticket.arrived_us)
                self._parts["queue"].add(ticket.started_us - ticket.arrived_us)
            self.outcomes["served"] += len(tickets)
            if alone_us := self._alone_us.get(first.ran_batch):
                self._recent.append(sum(run) / alone_us)

    def failed(self, error: Exception, us: float = 0.0) -> None:
        """Record a request that failed `us` microseconds after its arrival."""
        kinds = {OverloadedError: "rejected", DeadlineError: "late", CancelledError: "cancelled"}
        with self._lock:
            self._parts["fail"].add(us)
            self.outcomes[kinds.get(type(error), "failed")] += 1

    def measured(self, size: int, seconds: list[float]) -> None:
        """Record latencies of a batch size, in seconds, measured before the first request."""
        with self._lock:
            self._alone_us[size] = sorted(seconds)[len(seconds) // 2] * 1e6
            self._recent.clear()

    def doubted(self) -> None:
        """Forget the oldest of the recent runs from which latencies are predicted.

        The dispatcher calls this method when a request would miss its deadline even if it had
        started on arrival, judged by recent runs. After a few slow runs, this may be true of all
        requests. Then all requests would be refused, and no new run could correct the prediction.
        """
        with self._lock:
            if self._recent:
                self._recent.popleft()

    def expected_us(self, size: int) -> float:
        """Return the expected latency of a batch size in microseconds; 0 if it was not measured.

        The result is the latency of a run that has the machine to itself, times the slowdown of
        recent runs (the upper quartile). Recent runs of all batch sizes count, because the same
        causes slow down all of them.
        """
        with self._lock:
            recent = sorted(self._recent)
            alone_us = self._alone_us.get(size, 0.0)
        return alone_us * (recent[3 * len(recent) // 4] if recent else 1.0)

    def median_us(self, size: int) -> float:
        """Return the median latency in microseconds of a batch that runs alone.

        The result is 0 if the batch size was not measured.
        """
        with self._lock:
            return self._alone_us.get(size, 0.0)

    def told(self) -> dict[str, Any]:
        """Return the statistics in the format of the protocol, without model name and version."""
        with self._lock:
            return {
                "last_inference": self._last_ms,
                "inference_count": self._inferences,
                "execution_count": self._executions,
                "inference_stats": {
                    **{name: part.told() for name, part in self._parts.items()},
                    "cache_hit": _Duration().told(),
                    "cache_miss": _Duration().told(),
                },
                "batch_stats": [
                    {"batch_size": size, **{name: part.told() for name, part in parts.items()}}
                    for size, parts in sorted(self._batches.items())
                ],
            }
