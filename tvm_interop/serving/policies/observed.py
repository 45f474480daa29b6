"""A record of recent arrivals and of instance latencies, for the decisions of the policy `auto`."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt

from ..arrivals import Arrivals
from ..tasks import Running, View

_RECENT = 192
"""To notice a changed load, this many of the latest arrivals are compared with the arrivals before
them."""
_CHANCE = 5.0
"""A change of a rate by more than this many standard deviations is not due to chance."""
_OTHER_DEADLINES = 1.5
"""The load counts as changed if the median time to the deadline changes by more than this factor.
"""
_OF_A_KIND = 4
"""The minimum number of instances of one kind, or of requests of one model, that are compared."""

_WINDOWS = 4
"""The minimum number of time windows for an estimate of the variance of arrivals per window."""

Counts = npt.NDArray[np.float64]
Row = tuple[float, int, float]
"""An arrival: its time, its model, and the time from arrival to the deadline (inf for none).

Both times are in microseconds.
"""
Kind = tuple[tuple[int, ...], int]
"""The kind of an instance.

It holds the model of each request of the instance, and the number of running instances just after
the instance started, itself included.
"""


class Observed:
    """The latest arrivals, and the latencies of instances since the latest decision.

    Parameters
    ----------
    most: maximum number of arrivals to keep.
    compared: number of arrivals after a decision during which latencies are recorded.
    """

    def __init__(self, num_models: int, most: int, compared: int) -> None:
        self._num_models = num_models
        self._compared = compared
        self._waited: list[Row] = []
        self._came: list[Row] = []
        self._since_us, self._until_us = 0.0, math.inf
        self._last_id = [-1] * num_models
        self._arrivals: deque[Row] = deque(maxlen=most)
        self._running: dict[int, tuple[Running, int]] = {}
        self._took_us: dict[Kind, list[float]] = {}
        self.count = 0
        self.now_us = 0.0

    def look(self, view: View) -> None:
        """Record the arrivals and the ended instances since the last call of `look`."""
        self.now_us = view.now_us
        new: list[Row] = []
        for model, queue in enumerate(view.queues):
            last = self._last_id[model]
            if not queue or (queue[-1].id <= last and queue[0].priority == queue[-1].priority):
                continue
            found = []
            for request in reversed(queue):
                if request.id > last:
                    given_us = request.deadline_us - request.arrived_us
                    found.append((request.arrived_us, model, given_us))
                    self._last_id[model] = max(self._last_id[model], request.id)
                elif queue[0].priority == queue[-1].priority:
                    break  # Older requests in the queue are recorded already.
            new += found
        if new:
            new.sort()
            self._arrivals.extend(new)
            self.count += len(new)
            self._came += new[: self._compared - len(self._came)]
            if len(self._came) == self._compared and self._until_us == math.inf:
                self._until_us = self._came[-1][0]
        if self._running or view.running:
            self._look_at_instances(view)

    def replayed(self, count: int) -> tuple[Arrivals, float]:
        """Return the recorded arrivals, repeated, and the length of their period in seconds.

        All arrivals are repeated equally often, until there are at least `count` of them.
        """
        at_us = np.array([row[0] for row in self._arrivals])
        models = np.array([row[1] for row in self._arrivals], dtype=np.int64)
        given_us = np.array([row[2] for row in self._arrivals])
        period_us = (at_us[-1] - at_us[0]) * len(at_us) / max(1, len(at_us) - 1)
        period_us = max(float(period_us), 1e-3)
        times = max(1, math.ceil(count / len(at_us)))
        again = np.concatenate([at_us - at_us[0] + i * period_us for i in range(times)])
        deadlines_us = None
        if np.isfinite(given_us).any():
            deadlines_us = again + np.tile(given_us, times)
        found = Arrivals(again, np.tile(models, times), deadlines_us=deadlines_us)
        return found, times * period_us / 1e6

    def since_decision(self) -> tuple[Arrivals, float]:
        """Return the load (requests) since the latest decision, and the length of this time (s).

        The load consists of the requests that were waiting when the decision was made, and of the
        requests that have arrived since then. A simulation of this load with the policy in use
        should give the observed latencies of instances, if the assumptions about the device and the
        models are right.
        """
        rows = self._waited + self._came
        arrived_us = np.array([row[0] for row in rows])
        given_us = np.array([row[2] for row in rows])
        deadlines_us = arrived_us + given_us - self._since_us
        found = Arrivals(
            np.maximum(arrived_us - self._since_us, 0.0),
            np.array([row[1] for row in rows], dtype=np.int64),
            deadlines_us=deadlines_us if np.isfinite(given_us).any() else None,
        )
        return found, (min(self.now_us, self._until_us) - self._since_us) / 1e6

    def has_deadlines(self) -> bool:
        """Return whether any recorded arrival has a deadline."""
        return any(given_us < math.inf for _, _, given_us in self._arrivals)

    def excess(self, other: Observed) -> tuple[float, float] | None:
        """Compare the latencies of instances in this record with the latencies in another record.

        Only instances of the same kind are compared: they hold the same models, and they started
        while the same number of other instances ran. For each kind, the logarithm of the ratio of
        this record's latency to the other record's latency is computed. The result is the mean and
        the standard deviation of these logarithms. The result is None if too few instances are in
        both records.
        """
        ratios: list[float] = []
        counts: list[int] = []
        for kind, took_us in self._took_us.items():
            theirs = other._took_us.get(kind, [])
            count = min(len(took_us), len(theirs))
            if count >= _OF_A_KIND:
                ratios.append(math.log(float(np.mean(took_us)) / float(np.mean(theirs))))
                counts.append(count * len(kind[0]))
        if sum(counts) < _RECENT // 2:
            return None
        mean = float(np.average(ratios, weights=counts))
        spread = float(np.average((np.array(ratios) - mean) ** 2, weights=counts)) ** 0.5
        return mean, spread

    def decided(self, view: View) -> None:
        """Start a new record at a decision: drop the latencies from before it.

        The latencies before a decision say nothing about the policy that was chosen by it.
        """
        self._took_us.clear()
        waiting = [request for queue in view.queues for request in queue]
        self._waited = sorted(
            (r.arrived_us, r.model, r.deadline_us - r.arrived_us) for r in waiting
        )
        self._came = []
        self._since_us, self._until_us = view.now_us, math.inf

    def has_changed(self, share: float) -> bool:
        """Return whether the latest arrivals differ in rate or in deadlines from earlier arrivals.

        A rate counts as different if the difference is larger than `share`, and chance does not
        explain it.
        """
        if len(self._arrivals) < 2 * _RECENT:
            return False
        rows = list(self._arrivals)
        before, recent = rows[:-_RECENT], rows[-_RECENT:]
        if any(_have_other_deadlines(before, recent, m) for m in range(self._num_models)):
            return True
        before_us = recent[0][0] - before[0][0]
        recent_us = self.now_us - recent[0][0]
        if before_us <= 0 or recent_us <= 0:
            return False
        was = np.bincount([m for _, m, _ in before], minlength=self._num_models) / before_us
        now = np.bincount([m for _, m, _ in recent], minlength=self._num_models)
        expected = was * recent_us
        # If arrivals come in bursts, their number in a time window varies more than in a Poisson
        # process. So take the variance from earlier arrivals, in windows of the same length.
        variance = _dispersion(rows) * np.maximum(expected, 1.0)
        spread = np.sqrt(np.maximum(variance, self._variance(before, before_us, recent_us)))
        differs = np.abs(now - expected)
        return bool(((differs > share * expected) & (differs > _CHANCE * spread)).any())

    def _variance(self, rows: list[Row], rows_us: float, window_us: float) -> Counts:
        """Return the variance of the number of arrivals per window of `window_us`: (num_models,).

        The result is 0 if there are too few windows to estimate a variance.
        """
        windows = int(min(rows_us / window_us, len(rows)))
        if windows < _WINDOWS:
            return np.zeros(self._num_models)
        place = ((np.array([row[0] for row in rows]) - rows[0][0]) / window_us).astype(int)
        models = np.array([row[1] for row in rows])
        counts = np.bincount(
            (place * self._num_models + models)[place < windows],
            minlength=windows * self._num_models,
        )
        variance: Counts = counts.reshape(windows, -1).var(0, ddof=1)
        return variance

    def snapshot(self) -> Observed:
        """Return a copy of the record since the latest decision.

        Later calls of `look` do not change the copy. The copy counts all arrivals, but holds only
        the arrivals since the decision.
        """
        copy = Observed(self._num_models, self._arrivals.maxlen or 0, self._compared)
        copy._took_us = {kind: list(us) for kind, us in self._took_us.items()}
        copy._waited, copy._came = self._waited, list(self._came)
        copy._since_us, copy._until_us = self._since_us, self._until_us
        copy.count, copy.now_us = self.count, self.now_us
        return copy

    def forget_before_change(self) -> None:
        """Drop all arrivals but the latest ones, because the load has changed."""
        while len(self._arrivals) > _RECENT:
            self._arrivals.popleft()

    def _look_at_instances(self, view: View) -> None:
        running = view.running
        for number, (instance, beside) in list(self._running.items()):
            if running.get(number) is not instance:
                del self._running[number]
                if instance.started_us < self._since_us or view.now_us > self._until_us:
                    continue
                requests = instance.start.requests
                kind = (tuple(r.model for r in requests if r is not None), beside)
                self._took_us.setdefault(kind, []).append(view.now_us - instance.started_us)
        for number, instance in running.items():
            self._running.setdefault(number, (instance, len(running)))


def _have_other_deadlines(before: list[Row], recent: list[Row], model: int) -> bool:
    was, now = ([given for _, m, given in rows if m == model] for rows in (before, recent))
    if min(len(was), len(now)) < _OF_A_KIND:
        return False
    least, most = sorted((sorted(was)[len(was) // 2], sorted(now)[len(now) // 2]))
    return least < math.inf and most > _OTHER_DEADLINES * least


def _dispersion(rows: list[Row]) -> float:
    """Return the variance of arrival counts divided by their mean, at least 1.

    For a Poisson process, the result is 1. For arrivals in bursts, it is larger.
    """
    at_us = np.array([row[0] for row in rows])
    counts, _ = np.histogram(at_us, bins=max(4, len(rows) // 16))
    mean = counts.mean()
    return max(1.0, float(counts.var() / mean)) if mean else 1.0
