"""The policy `search`: TOP's rule with a fixed combination of blocks, found by search.

In contrast to the policy `top`, the policy `search` needs no trained agents.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ...errors import InputError
from ..arrivals import closed_loop, periodic
from ..combination import (
    BUFFER,
    Combination,
    combination_of,
    each_alone,
    equal_depth,
    simulate_combined,
)
from ..policy import Policy, Setting, register_policy, require_counts
from ..programs import Part, Programs
from ..run import ServingRun
from ..simulation import simulate_serving
from ..tasks import Admit, Request, Start, View, Wait
from .slots import free_slot

_REQUESTS = 250
"""A simulation lasts as long as this many requests take if they run one after another."""
_LOADS = (0.6, 0.8, 1.0, 1.2, 1.5, 1.9)
_HIGHER_LOADS = (*_LOADS, 2.4, 3.0)
"""The rates at which requests leave the queues in simulations. A search tries each of these rates.

The rates are relative to the throughput of one instance at a time. `_HIGHER_LOADS` is used if
several combined blocks run at the same time.
"""
_SAMPLES, _ELITE, _SMOOTHING = 24, 6, 0.7
"""Parameters of the cross-entropy method.

`_SAMPLES` is the number of combinations drawn per round. `_ELITE` is the number of best
combinations from which the distribution is updated. `_SMOOTHING` is the weight of the update.
"""


@register_policy("search")
class Search(Policy):
    """A policy that runs combined blocks by TOP's rule (see `combination.simulate_combined`).

    Before the first request, the policy searches for the combination with the highest throughput.

    Parameters
    ----------
    method: `climb` moves one block at a time and keeps a move unless the result is worse. `cem` is
        the cross-entropy method: it draws combinations from a distribution, and then changes the
        distribution so that combinations like the best ones become likelier.
    budget: number of combinations that are simulated.
    most: maximum number of blocks in one combined block (TOP's H).
    combination: combination from `combination.combination_of`; None to search for one.
    rates: expected requests per second of each model; None for equal rates. Only the proportions
        of the rates count.
    interval_us: (num_models,) minimum time in microseconds between two requests of each model that
        leave the queue. With None, a search takes the intervals with the highest throughput, in
        the proportions of `rates`. With None and a given combination, the intervals are 0.
    buffer: maximum number of requests that wait for a block.
    schedule: name of the scheduler for the combined blocks.
    barriers: whether the host waits after each stage, see `Start.barriers`.
    seed: seed of the search.
    in_flight: maximum number of combined blocks that run at the same time; 1 in TOP. With more than
        1, each simulation takes about ten times as long.
    inside: maximum number of requests of a model that have left the queue and are not yet served.
        Each of these requests needs tensors of its own. With None, only `buffer` limits their
        number. A limit makes simulations slower.
    clients: number of clients of each model. A client sends its next request when it has the answer
        to its last request. The search simulates these clients. With None, it simulates queues that
        are never empty. If clients wait for answers, the predicted throughput is then too high,
        because in truth blocks sometimes have no input.
    """

    def __init__(
        self,
        method: str = "climb",
        budget: int = 200,
        most: int = 4,
        combination: Combination | None = None,
        rates: Sequence[float] | None = None,
        interval_us: Sequence[float] | None = None,
        buffer: int = BUFFER,
        schedule: str = "greedy",
        barriers: bool = True,
        seed: int = 0,
        in_flight: int = 1,
        inside: int | None = None,
        clients: Sequence[int] | None = None,
    ) -> None:
        if method not in _METHODS:
            raise InputError(f"`method` is {method!r}; it must be one of {', '.join(_METHODS)}")
        require_counts(budget=budget, most=most, buffer=buffer, in_flight=in_flight)
        if inside is not None:
            require_counts(inside=inside)
        self._method = method
        self._budget = budget
        self._most = most
        self.combination = combination
        self._rates = rates
        self._interval_us = interval_us
        self._buffer = buffer
        self._schedule = schedule
        self._barriers = barriers
        self._seed = seed
        self._in_flight = in_flight
        self._inside = inside
        self._clients = clients

    def prepare(self, setting: Setting) -> None:
        """Search for a combination, unless one was given."""
        super().prepare(setting)
        programs = setting.programs
        if self.combination is None:
            score = self._score()
            self.combination = _METHODS[self._method](
                programs, score, self._budget, self._most, random.Random(self._seed)
            )
            if self._interval_us is None:
                self._interval_us = score.interval_us(self.combination)
        self.combination = combination_of(programs.models, self.combination)
        self._left_us = [-math.inf] * len(programs.models)
        self._intervals = list(self._interval_us or [0.0] * len(self._left_us))
        if len(self._intervals) != len(self._left_us):
            raise InputError(
                f"there are {len(self._intervals)} intervals for {len(self._left_us)} models; "
                "give one for each"
            )

    def adopt(self, combination: Combination, interval_us: Sequence[float]) -> None:
        """Serve by another combination from now on. Running combined blocks end normally.

        The new dequeue interval of each queue counts from the latest request that left the queue.
        """
        self.combination = combination_of(self.setting.programs.models, combination)
        self._intervals = list(interval_us)

    def decide(self, view: View) -> Start | Admit | Wait:
        """Admit a request whose model's dequeue interval has passed, or start a combined block.

        A combined block starts only while fewer than `in_flight` combined blocks run. The policy
        chooses the combined block in which the largest share of the blocks has input.
        """
        due_us = math.inf
        for model, queue in enumerate(view.queues):
            if queue and self._has_room(view, model):
                model_due_us = self._left_us[model] + self._intervals[model]
                if model_due_us <= view.now_us:
                    self._left_us[model] = view.now_us
                    return Admit(queue[0])
                due_us = min(due_us, model_due_us)
        if len(view.running) >= self._in_flight:
            return Wait(due_us)
        running = {part for r in view.running.values() for part in r.start.parts or ()}
        best: tuple[float, float, int] | None = None
        assert self.combination is not None
        for index, cell in enumerate(self.combination):
            if running and not running.isdisjoint(cell):
                continue  # A block runs in at most one instance at a time.
            inputs = [self._input(view, part) for part in cell]
            since = [request.ready_us for request in inputs if request is not None]
            if since:
                key = (-len(since) / len(cell), min(since), index)
                best = key if best is None or key < best else best
        if best is None:
            return Wait(due_us)
        cell = self.combination[best[2]]
        taken = tuple(self._input(view, part) for part in cell)
        return Start(
            taken, self._schedule, cell, self._barriers, free_slot(view), self._in_flight == 1
        )

    def _score(self) -> _Score:
        return _Score(
            self.setting.programs, self._rates, self._buffer, self._schedule, self._barriers,
            self._in_flight, self._inside, self._clients,
        )  # fmt: skip

    def _has_room(self, view: View, model: int) -> bool:
        """Return whether one more request of a model may leave its queue."""
        between = view.between[model]
        if len(between[0]) >= self._buffer:
            return False
        if self._inside is None:
            return True
        run = sum(
            request is not None and request.model == model
            for running in view.running.values()
            for request in running.start.requests
        )
        return run + sum(map(len, between)) < self._inside

    def _input(self, view: View, part: Part) -> Request | None:
        """Return the next request of a block.

        The result is None if no request waits for the block, or if the buffer of the next block is
        full.
        """
        model, block = part
        buffers = view.between[model]
        if not buffers[block]:
            return None
        if block + 1 < len(buffers) and len(buffers[block + 1]) >= self._buffer:
            return None
        return buffers[block][0]


class _Score:
    """The score of a combination: its throughput of mixed requests when the device is saturated.

    If `clients` is given, these clients send the requests. Otherwise requests arrive three times as
    fast as the device can serve them with one instance at a time.
    """

    def __init__(
        self,
        programs: Programs,
        rates: Sequence[float] | None,
        buffer: int,
        schedule: str,
        barriers: bool,
        in_flight: int,
        inside: int | None = None,
        clients: Sequence[int] | None = None,
    ) -> None:
        models = range(len(programs.models))
        shares = np.ones(len(models)) if rates is None else np.asarray(rates, dtype=np.float64)
        if len(shares) != len(models) or shares.sum() <= 0:
            raise InputError(
                f"`rates` has {len(shares)} rates for {len(models)} models; give one for each"
            )
        self._shares = shares / shares.sum()
        alone_us = np.array([programs.model_us(m) for m in models])
        self._mean_us = float((self._shares * alone_us).sum())
        self._seconds = _REQUESTS * self._mean_us / 1e6
        self._arrivals = periodic((3e6 / self._mean_us * self._shares).tolist(), self._seconds)
        if clients is not None:
            if len(clients) != len(models):
                raise InputError(
                    f"`clients` has {len(clients)} numbers for {len(models)} models; give one "
                    "for each"
                )
            self._arrivals = closed_loop(clients)
        self._programs = programs
        self._buffer = buffer
        self._schedule = schedule
        self._barriers = barriers
        self._in_flight = in_flight
        self._inside = inside
        self._known: dict[Combination, tuple[float, float]] = {}

    @property
    def calls(self) -> int:
        """The number of combinations that were simulated."""
        return len(self._known)

    def __call__(self, combination: Combination) -> float:
        """Return the throughput of a combination with the best dequeue intervals found for it."""
        return self._best(combination)[0]

    def interval_us(self, combination: Combination) -> list[float]:
        """Return the dequeue intervals, in microseconds, that give the highest throughput."""
        return self._intervals(self._best(combination)[1])

    def _best(self, combination: Combination) -> tuple[float, float]:
        if combination not in self._known:
            loads = _LOADS if self._in_flight == 1 else _HIGHER_LOADS
            self._known[combination] = max((self._served(combination, x), x) for x in loads)
        return self._known[combination]

    def _served(self, combination: Combination, load: float) -> float:
        return self.served(combination, self._intervals(load))

    def served(self, combination: Combination, interval_us: list[float]) -> float:
        """Return the throughput of a combination with the given dequeue intervals."""
        if self._in_flight > 1 or self._inside is not None:
            policy = Search(
                combination=combination, interval_us=interval_us, buffer=self._buffer,
                schedule=self._schedule, barriers=self._barriers, in_flight=self._in_flight,
                inside=self._inside,
            )  # fmt: skip
            return self.served_by(policy)
        run = simulate_combined(
            self._programs, self._arrivals, combination, self._seconds,
            interval_us=interval_us, schedule=self._schedule, barriers=self._barriers,
            buffer=self._buffer,
        )  # fmt: skip
        return self._in_mix(run)

    def served_by(self, policy: Policy) -> float:
        """Return the simulated throughput of a policy, counted as for a combination."""
        programs = self._programs
        run = simulate_serving(
            programs.models, self._arrivals, policy, programs.device, self._seconds,
            programs=programs,
        )  # fmt: skip
        return self._in_mix(run)

    def _in_mix(self, run: ServingRun) -> float:
        wanted = self._shares > 0
        # The model that is furthest behind its share of requests determines the throughput. In
        # addition, each served request counts as a thousandth of a request. This only breaks ties.
        in_mix = float((run.served()[wanted] / self._shares[wanted]).min())
        return (in_mix + 1e-3 * float(run.served().sum())) / run.end_us * 1e6

    def _intervals(self, load: float) -> list[float]:
        rates = load / self._mean_us * self._shares
        return [1 / rate if rate > 0 else 0.0 for rate in rates]


def _climb(
    programs: Programs, score: _Score, budget: int, most: int, rng: random.Random
) -> Combination:
    models = programs.models
    best = max(each_alone(models), equal_depth(models, min(most, len(models))), key=score)
    parts = [part for cell in best for part in cell]
    tries = 0
    while score.calls < budget and tries < 20 * budget:
        tries += 1
        part = rng.choice(parts)
        cells = [[p for p in cell if p != part] for cell in best] + [[]]
        cell = rng.choice([cell for cell in cells if len(cell) < most])
        cell.append(part)
        moved = combination_of(models, cells)
        if score(moved) >= score(best):
            best = moved
    return best


def _cem(
    programs: Programs, score: _Score, budget: int, most: int, rng: random.Random
) -> Combination:
    models = programs.models
    parts = [part for cell in each_alone(models) for part in cell]
    count = len(parts)
    draw = np.random.default_rng(rng.randrange(2**32))
    likely = np.full((count, count), 1.0 / count)
    best = max(each_alone(models), equal_depth(models, min(most, len(models))), key=score)
    while score.calls < budget:
        scored: list[tuple[float, list[int]]] = []
        before = score.calls
        for _ in range(min(_SAMPLES, budget - score.calls)):
            labels = _labels(likely, most, draw)
            cells: dict[int, list[Part]] = {}
            for part, label in zip(parts, labels, strict=True):
                cells.setdefault(label, []).append(part)
            drawn = combination_of(models, cells.values())
            scored.append((score(drawn), labels))
            best = max(best, drawn, key=score)
        if score.calls == before:
            break  # All combinations of this round were drawn before, so the search has converged.
        scored.sort(key=lambda row: -row[0])
        counts = np.zeros_like(likely)
        for _, labels in scored[:_ELITE]:
            counts[range(count), labels] += 1 / min(_ELITE, len(scored))
        likely = _SMOOTHING * counts + (1 - _SMOOTHING) * likely
    return best


def _labels(likely: npt.NDArray[np.float64], most: int, draw: np.random.Generator) -> list[int]:
    """Draw, for each block, the index of the combined block that it joins.

    At most `most` blocks join the same combined block.
    """
    left = np.full(len(likely), most)
    labels = []
    for row in likely:
        open_ = row * (left > 0)
        total = open_.sum()
        shares = open_ / total if total > 0 else (left > 0) / (left > 0).sum()
        label = int(draw.choice(len(likely), p=shares))
        left[label] -= 1
        labels.append(label)
    return labels


_METHODS: dict[str, Callable[[Programs, _Score, int, int, random.Random], Combination]] = {
    "climb": _climb,
    "cem": _cem,
}
