"""What a model has served, in the figures of the protocol's statistics extension."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from ...errors import CancelledError, DeadlineError, OverloadedError
from .ticket import Ticket

_RECENT = 16
"""Runs by whose upper quartile it is told what the next one is to take."""


class _Duration:
    """How often something happened, and how long it took in all."""

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
    """Counts of one model. Any thread may add and read.

    Attributes
    ----------
    outcomes: requests by how they ended: `served`, `failed`, `rejected`, `late`, `cancelled`.
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
        """One run has served these; they have their times."""
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
        """A request got no answer, after so many microseconds."""
        kinds = {OverloadedError: "rejected", DeadlineError: "late", CancelledError: "cancelled"}
        with self._lock:
            self._parts["fail"].add(us)
            self.outcomes[kinds.get(type(error), "failed")] += 1

    def measured(self, size: int, seconds: list[float]) -> None:
        """What runs of a batch size took before the first request, alone."""
        with self._lock:
            self._alone_us[size] = sorted(seconds)[len(seconds) // 2] * 1e6
            self._recent.clear()

    def doubted(self) -> None:
        """A request is refused by what runs took lately, however early it starts.

        Were it for good, runs that were slow once would never be followed by others, which tell
        otherwise: the oldest of them is forgotten.
        """
        with self._lock:
            if self._recent:
                self._recent.popleft()

    def expected_us(self, size: int) -> float:
        """What a run of a batch size is to take; 0 where none was measured.

        What one took alone, times the upper quartile of how many times as long the latest runs
        took, whatever their sizes: what slows one size down slows down the others.
        """
        with self._lock:
            recent = sorted(self._recent)
            alone_us = self._alone_us.get(size, 0.0)
        return alone_us * (recent[3 * len(recent) // 4] if recent else 1.0)

    def median_us(self, size: int) -> float:
        """What a run of a batch size took alone, in the median; 0 where none was measured."""
        with self._lock:
            return self._alone_us.get(size, 0.0)

    def told(self) -> dict[str, Any]:
        """As the statistics extension has it, but for the model's name and version."""
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
