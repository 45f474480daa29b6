"""What `auto` has seen of the load, and of what instances take."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt

from ..arrivals import Arrivals
from ..tasks import Running, View

_RECENT = 192
"""Arrivals that are held against those before them."""
_CHANCE = 5.0
"""Standard deviations beyond which a difference is not by chance."""
_OTHER_DEADLINES = 1.5
"""Requests that may take so many times as long as others are another load."""
_OF_A_KIND = 4
"""The fewest instances of a kind that tell anything."""

_WINDOWS = 4
"""The fewest windows whose counts tell how much they differ."""

Counts = npt.NDArray[np.float64]
Row = tuple[float, int, float]
"""An arrival: when, of which model, and how long it may take; inf for no matter how long."""
Kind = tuple[tuple[int, ...], int]
"""The model of each request of an instance, and how many instances ran when it had started."""


class Observed:
    """The latest arrivals, and how long instances ran since the latest decision.

    Parameters
    ----------
    most: arrivals that are kept.
    compared: arrivals after a decision up to which instances count.
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
        """Take down what is new."""
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
                    break  # The queue is in order of arrival.
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
        """What has arrived, again and again until there are `count`; and for how many seconds."""
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
        """What waited when the latest decision was taken, and came since; and for how many seconds.

        Simulated with the policy that served them, instances should take as long as they did, if
        the device and the models are as believed.
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
        """Whether any of the arrivals has a deadline."""
        return any(given_us < math.inf for _, _, given_us in self._arrivals)

    def excess(self, other: Observed) -> tuple[float, float] | None:
        """By what instances took longer here than there, as logarithms: the mean, and the spread.

        Instances of one kind are held against each other: the same models in a batch or a joint
        graph, started beside as many others. The spread is that of the kinds. None where too few
        were seen in both.
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
        """Instances from before a decision tell nothing of those after it."""
        self._took_us.clear()
        waiting = [request for queue in view.queues for request in queue]
        self._waited = sorted(
            (r.arrived_us, r.model, r.deadline_us - r.arrived_us) for r in waiting
        )
        self._came = []
        self._since_us, self._until_us = view.now_us, math.inf

    def has_changed(self, share: float) -> bool:
        """Whether the latest arrivals come at other rates, or may take longer or less long."""
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
        # Bursts differ by more than Poisson's chance does: so did those before, in as long a time.
        variance = _dispersion(rows) * np.maximum(expected, 1.0)
        spread = np.sqrt(np.maximum(variance, self._variance(before, before_us, recent_us)))
        differs = np.abs(now - expected)
        return bool(((differs > share * expected) & (differs > _CHANCE * spread)).any())

    def _variance(self, rows: list[Row], rows_us: float, window_us: float) -> Counts:
        """(num_models,) of the arrivals in windows of that length; 0 where there are too few."""
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
        """A copy that `look` does not change, of `count` and of what `decided` begins anew."""
        copy = Observed(self._num_models, self._arrivals.maxlen or 0, self._compared)
        copy._took_us = {kind: list(us) for kind, us in self._took_us.items()}
        copy._waited, copy._came = self._waited, list(self._came)
        copy._since_us, copy._until_us = self._since_us, self._until_us
        copy.count, copy.now_us = self.count, self.now_us
        return copy

    def forget_before_change(self) -> None:
        """Keep the latest arrivals alone."""
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
    """The variance of counts over their mean, 1 or more: 1 for Poisson, more for bursts."""
    at_us = np.array([row[0] for row in rows])
    counts, _ = np.histogram(at_us, bins=max(4, len(rows) // 16))
    mean = counts.mean()
    return max(1.0, float(counts.var() / mean)) if mean else 1.0
