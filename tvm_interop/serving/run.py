"""The result of a simulated serving run: the times of every request, and performance metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Latency:
    """Mean and percentiles of the latency of served requests, in milliseconds.

    If no request was served, all values are nan.
    """

    mean: float
    p50: float
    p99: float

    @classmethod
    def of(cls, us: Column) -> Latency:
        """Return the mean and the percentiles of latencies given in microseconds."""
        if not len(us):
            return cls(np.nan, np.nan, np.nan)
        p50, p99 = np.percentile(us, [50, 99]) / 1e3
        return cls(float(us.mean()) / 1e3, float(p50), float(p99))


@dataclass(frozen=True)
class ServingRun:
    """The times of all requests of a simulated run, except dropped requests, and further results.

    Attributes
    ----------
    end_us: length of the run in microseconds.
    num_models: number of models.
    models: (n,) index of the model of each request.
    arrived_us, dequeued_us, finished_us: (n,) time in microseconds at which each request arrived,
        left its queue, and was served; nan if that did not happen.
    utilisation: mean fraction of the device's cores that running operators keep busy; 0 if the
        number of cores has no limit.
    dropped: (num_models,) number of requests that were dropped because their queue was full.
    instances: number of instances, or of combined blocks, that were started.
    log: decisions that the policy explained, as (time in microseconds, text) pairs.
    deadlines_us: (n,) deadline of each request as a time in microseconds, inf for no deadline. None
        if no request has a deadline.
    """

    end_us: float
    num_models: int
    models: npt.NDArray[np.int64]
    arrived_us: Column
    dequeued_us: Column
    finished_us: Column
    utilisation: float
    dropped: npt.NDArray[np.int64]
    instances: int
    log: tuple[tuple[float, str], ...] = field(default=())
    deadlines_us: Column | None = None

    def throughput(self, since_us: float = 0.0) -> float:
        """Return the number of requests served per second, from `since_us` to the end."""
        return int((self.finished_us >= since_us).sum()) / (self.end_us - since_us) * 1e6

    def goodput(self) -> float:
        """Return the number of requests served by their deadlines, per second.

        If no request has a deadline, the result is the throughput.
        """
        due_us = np.inf if self.deadlines_us is None else self.deadlines_us
        return int((self.finished_us <= due_us).sum()) / self.end_us * 1e6

    def served(self, since_us: float = 0.0) -> npt.NDArray[np.int64]:
        """Return the number of requests of each model served from `since_us` on: (num_models,)."""
        return np.bincount(
            self.models[self.finished_us >= since_us], minlength=self.num_models
        ).astype(np.int64)

    def latency(self, since_us: float = 0.0, model: int | None = None) -> Latency:
        """Return the latency, from arrival to completion, of requests served from `since_us` on.

        With `model`, only the requests of that model count.
        """
        return self._latency(self.arrived_us, since_us, model)

    def latency_from_dequeue(self, since_us: float = 0.0, model: int | None = None) -> Latency:
        """Return the latency from leaving the queue to completion.

        `since_us` and `model` choose the requests that count, as in `latency`.
        """
        return self._latency(self.dequeued_us, since_us, model)

    def backlog(self, at_us: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the lengths of the queues at the given times: (len(at_us), num_models)."""
        at = np.asarray(at_us, dtype=np.float64)
        columns = []
        for model in range(self.num_models):
            of_model = self.models == model
            left = np.sort(self.dequeued_us[of_model])
            left = left[~np.isnan(left)]
            came = np.sort(self.arrived_us[of_model])
            columns.append(
                np.searchsorted(came, at, side="right") - np.searchsorted(left, at, side="right")
            )
        return np.stack(columns, axis=1)

    def backlog_variance(self, since_us: float = 0.0, samples: int = 200) -> float:
        """Return the variance of the queue lengths across models, averaged over time."""
        at_us = np.linspace(since_us, self.end_us, samples + 1)[1:]
        return float(self.backlog(at_us).var(axis=1).mean())

    def _latency(self, begin_us: Column, since_us: float, model: int | None) -> Latency:
        chosen = self.finished_us >= since_us
        if model is not None:
            chosen &= self.models == model
        return Latency.of(self.finished_us[chosen] - begin_us[chosen])
