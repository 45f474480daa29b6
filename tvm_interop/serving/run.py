"""What serving came to: every request's times, and the figures made of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Latency:
    """Milliseconds of the requests that were served; nan where there were none."""

    mean: float
    p50: float
    p99: float

    @classmethod
    def of(cls, us: Column) -> Latency:
        """The figures of some latencies in microseconds."""
        if not len(us):
            return cls(np.nan, np.nan, np.nan)
        p50, p99 = np.percentile(us, [50, 99]) / 1e3
        return cls(float(us.mean()) / 1e3, float(p50), float(p99))


@dataclass(frozen=True)
class ServingRun:
    """What happened to all requests that arrived.

    Attributes
    ----------
    end_us: how long the run was.
    num_models: how many models were served.
    models: (n,) the model of each request.
    arrived_us, dequeued_us, finished_us: (n,) when; nan for what did not happen.
    utilisation: the mean share of the device's cores that was asked for; 0 where it has no limit.
    dropped: (num_models,) how many requests found their queue full.
    instances: how many instances, or combined blocks, were started.
    log: what the policy said of its decisions, by time in microseconds.
    deadlines_us: (n,) of each request, as a time, inf for none; None where no request has one.
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
        """Requests served a second, from `since_us` to the end."""
        return int((self.finished_us >= since_us).sum()) / (self.end_us - since_us) * 1e6

    def goodput(self) -> float:
        """Requests served a second by their deadlines; the throughput where they have none."""
        due_us = np.inf if self.deadlines_us is None else self.deadlines_us
        return int((self.finished_us <= due_us).sum()) / self.end_us * 1e6

    def served(self, since_us: float = 0.0) -> npt.NDArray[np.int64]:
        """(num_models,) how many requests of each model were served from then on."""
        return np.bincount(
            self.models[self.finished_us >= since_us], minlength=self.num_models
        ).astype(np.int64)

    def latency(self, since_us: float = 0.0, model: int | None = None) -> Latency:
        """From arrival to the end, of what was served from `since_us` on; of one model, or all."""
        return self._latency(self.arrived_us, since_us, model)

    def latency_from_dequeue(self, since_us: float = 0.0, model: int | None = None) -> Latency:
        """From leaving the queue to the end."""
        return self._latency(self.dequeued_us, since_us, model)

    def backlog(self, at_us: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """(len(at_us), num_models) how many requests wait in each queue at these times."""
        at = np.asarray(at_us, dtype=np.float64)
        columns = []
        for model in range(self.num_models):
            of_model = self.models == model
            left = np.sort(self.dequeued_us[of_model])  # nan last
            left = left[~np.isnan(left)]
            came = np.sort(self.arrived_us[of_model])
            columns.append(
                np.searchsorted(came, at, side="right") - np.searchsorted(left, at, side="right")
            )
        return np.stack(columns, axis=1)

    def backlog_variance(self, since_us: float = 0.0, samples: int = 200) -> float:
        """The variance of the queues' lengths over the models, averaged over time."""
        at_us = np.linspace(since_us, self.end_us, samples + 1)[1:]
        return float(self.backlog(at_us).var(axis=1).mean())

    def _latency(self, begin_us: Column, since_us: float, model: int | None) -> Latency:
        chosen = self.finished_us >= since_us
        if model is not None:
            chosen &= self.models == model
        return Latency.of(self.finished_us[chosen] - begin_us[chosen])
