"""The policy `auto`: it simulates other policies on the observed load and serves by the best one.

When the load changes, `auto` chooses a policy again.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import InputError
from ...plain_data import is_finite
from ..arrivals import Arrivals, periodic
from ..policy import Policy, Setting, make_policy, register_policy
from ..programs import Programs
from ..run import ServingRun
from ..simulation import simulate_serving
from ..tasks import Admit, Start, View, Wait
from .observed import Observed
from .pace import Closed, Pace, Paced

_AS_FAST = 0.997
"""A candidate counts as equally fast as the best one if it reaches this share of the best
throughput.

Two candidates whose throughputs differ by less cannot be told apart, because of chance.
"""
_FIRST, _GROWTH, _MOST = 128, 2, 4096
"""The numbers of arrivals after which `auto` chooses a policy again.

The policy `auto` decides for the first time after `_FIRST` arrivals. It then decides whenever the
total number of arrivals has grown by the factor `_GROWTH`, and later after every `_MOST` arrivals.
Only the `_MOST` latest arrivals are kept.
"""
_FEW = 32
"""The number of arrivals before the first decision if some of them have deadlines."""
_SCREENED, _SIMULATED, _REPEATED = 256, 2048, 4
"""The lengths of simulations, in requests.

Each candidate runs in a short simulation of `_SCREENED` requests. The finalists run in a long
simulation of `_SIMULATED` requests. The observed arrivals are repeated at most `_REPEATED` times.
"""
_FINALISTS = 6
"""The number of candidates per load that pass from the short simulation to the long one."""
_NEARLY = 0.97
"""The share that replaces `_AS_FAST` in short simulations, where chance has more influence."""
_UNCERTAIN = 2.0
"""The true load is assumed to be at most this many standard deviations above the observed load."""
_KEEP = 1.03
"""The current candidate stays if its latency is below this multiple of the best one's latency."""
_CHANGED = 0.15
"""The load counts as changed if the rate of a model changes by more than this share."""
_SHARE, _REST = 0.1, 30.0
"""Limits for the background thread in a server.

`_SHARE` is the share of a core that the thread takes while it decides. From the start of a decision
to the start of the next one, at least `_REST` times the CPU time of the decision must pass. The
limits exist because the thread competes with the server for cores and for Python's global lock,
which changes the load that the policy observes.
"""


@dataclass(frozen=True)
class Candidate:
    """The name of a policy and its options."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    def make(self) -> Policy:
        """Create a new object of this policy with these options."""
        return make_policy(self.name, **dict(self.options))

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in self.options)
        return f"{self.name}({options})"


def candidates_for(programs: Programs) -> list[Candidate]:
    """Return the default candidates of `auto`.

    The default candidates are the policies that need neither training nor search, each with several
    sets of options.
    """
    batches = sorted({size for model in programs.models for size in model.costs} - {1})
    mean_us = float(np.mean([programs.model_us(m) for m in range(len(programs.models))]))
    found = [Candidate("sequential", (("order", order),)) for order in _ORDERS]
    for streams in (2, 3, 4, 5, 6, 8, 12, 16, 24):
        for order in _ORDERS:
            found.append(Candidate("streams", (("streams", streams), ("order", order))))
    for batch in batches:
        for streams in (1, 2, 4, 8):
            for delay_us in (0.0, mean_us) if streams == 1 else (0.0,):
                options = (("batch", batch), ("delay_us", delay_us), ("streams", streams))
                found.append(Candidate("batching", options))
    if len(programs.models) > 1:
        for barriers in (True, False):
            found.append(Candidate("pos", (("absent", "skip"), ("barriers", barriers))))
        best = (("absent", "skip"), ("schedule", "best"), ("barriers", False))
        found.append(Candidate("pos", best))
    return found


_ORDERS = ("fifo", "longest")


def _distinct(candidates: Sequence[Candidate], programs: Programs) -> list[Candidate]:
    """Return the candidates, without repetitions of the same policy.

    A batch never runs if it is larger than all batch sizes for which a model has costs. So larger
    batch sizes are replaced by the largest batch size with costs. If candidates become equal in
    this way, only one of them is kept.
    """
    sizes = {1}.union(*(model.costs for model in programs.models))

    def fitted(candidate: Candidate) -> Candidate:
        options = dict(candidate.options)
        if "batch" in options:
            options["batch"] = max(size for size in sizes if size <= options["batch"])
        return Candidate(candidate.name, tuple(options.items()))

    return list(dict.fromkeys(map(fitted, candidates)))


@register_policy("auto")
class Auto(Policy):
    """A policy that chooses the best of several other policies by simulation.

    The best policy serves the most requests by their deadlines. Among policies within 0.3% of that
    number, the best one has the lowest 99th percentile of latency. Both numbers come from
    simulations at the observed load, and at the highest load that is plausible given the number of
    arrivals. These simulations refuse requests that would be late, as servers do.

    At first, `auto` serves by the policy that is best for a saturated device and requests without
    deadlines. It chooses again after 128 arrivals, or after 32 arrivals if some requests have
    deadlines. It then chooses each time the number of arrivals has doubled, and later after every
    4,096 arrivals. It also chooses again when the load changes. The load changes if the rate of a
    model changes by more than 15% and chance does not explain this, or if the time from arrival to
    deadline changes. Before each new choice, `auto` compares observed latencies of instances with
    simulated ones. From the differences, it corrects the interference and the speed of operators
    for its simulations. `explanation` returns the choices and the reasons.

    Parameters
    ----------
    rates: expected requests per second of each model; None if they are unknown.
    candidates: policies to choose from; None for the policies that `candidates_for` returns.
    background: whether to decide again in a background thread while serving goes on; meant for
        servers. The thread takes a tenth of a core while it decides, and a thirtieth of a core on
        average. Simulations are then not deterministic.
    """

    def __init__(
        self,
        rates: Sequence[float] | None = None,
        candidates: Sequence[Candidate] | None = None,
        background: bool = False,
    ) -> None:
        for rate in rates or ():
            if not is_finite(rate) or rate < 0:
                raise InputError(f"a rate is {rate!r}; give requests a second, 0 or more")
        if candidates is not None and not candidates:
            raise InputError("`candidates` is empty; give at least one policy to choose from")
        self._rates = rates
        self._given = candidates
        self._background = background
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._pace: Pace | None = None
        self._error: Exception | None = None
        self._rests_until_s = 0.0
        self._before: Candidate | None = None
        self._log: list[tuple[float, str]] = []

    def prepare(self, setting: Setting) -> None:
        """Choose the policy to serve by until the load is known."""
        super().prepare(setting)
        self._programs = setting.programs
        num_models = len(setting.programs.models)
        if self._rates is not None and len(self._rates) != num_models:
            raise InputError(
                f"there are {len(self._rates)} rates for {num_models} models; give one for each"
            )
        candidates = self._given or candidates_for(setting.programs)
        self._candidates = _distinct(candidates, setting.programs)
        self._observed = Observed(num_models, _MOST, _COMPARED)
        self._decide_at = _FIRST
        self._drains = False
        self._check_at = _FIRST
        mean_us = sum(setting.programs.model_us(m) for m in range(num_models)) / num_models
        rates = self._rates or [3e6 / mean_us / num_models] * num_models
        seconds = _SCREENED / max(sum(rates), 1e-9)
        expected = periodic(rates, seconds)
        self._current = self._candidates[0]
        self._choose(self._observed, expected, seconds, "to begin with")
        self._inner = self._made(self._current)

    def close(self) -> None:
        """End the background thread, if there is one."""
        self._is_closed = True
        if self._pace is not None:
            self._pace.close()
        if self._thread is not None:
            self._thread.join()

    def explanation(self) -> list[tuple[float, str]]:
        """Return the choices so far, as (time in microseconds, text) pairs."""
        return self._log

    def decide(self, view: View) -> Start | Admit | Wait:
        """Return the decision of the chosen policy.

        The method first records new arrivals and ended instances. If it is time for a new choice,
        it also chooses a policy again.
        """
        self._observed.look(view)
        if self._thread is not None:
            if not self._thread.is_alive():
                self._thread = None
                self._adopt(view)
        elif not self._is_closed and time.monotonic() >= self._rests_until_s and self._is_due(view):
            self._reconsider(view)
        if self._drains:
            # The new policy may need the whole device, so let running instances end first.
            if view.running:
                return Wait(full=True)
            self._drains = False
            self._observed.decided(view)
        return self._inner.decide(view)

    def _is_due(self, view: View) -> bool:
        count = self._observed.count
        if self._decide_at == _FIRST and count >= _FEW and self._observed.has_deadlines():
            # The first policy was chosen for requests without deadlines, but some requests have
            # deadlines. So choose again early.
            self._decide_at = count
        if count >= self._decide_at:
            return True
        if count < self._check_at:
            return False
        self._check_at = count + _FIRST // 2
        return self._observed.has_changed(_CHANGED)

    def _reconsider(self, view: View) -> None:
        observed = self._observed
        reason = "the load is known better"
        if observed.count < self._decide_at:
            reason = "the load has changed"
            observed.forget_before_change()
            self._decide_at = observed.count + _FIRST
        self._decide_at = max(self._decide_at * _GROWTH, observed.count + _FIRST)
        if self._decide_at > _MOST * _GROWTH:
            self._decide_at = observed.count + _MOST
        self._check_at = observed.count + _FIRST // 2
        # If there are few observed arrivals, a simulation repeats them a few times. More
        # repetitions would add no information.
        arrivals, seconds = observed.replayed(min(_SIMULATED, _REPEATED * observed.count))
        self._before = self._current
        if self._background:
            # The thread is not a daemon thread. At exit, Python would stop a daemon thread inside
            # native code, and the process would abort.
            self._thread = threading.Thread(
                target=self._simulate,
                args=(observed.snapshot(), arrivals, seconds, reason),
                name="tvm-interop-auto",
                daemon=False,
            )
            self._thread.start()
            return
        self._correct(observed)
        self._choose(observed, arrivals, seconds, reason)
        self._adopt(view)

    def _simulate(
        self, observed: Observed, arrivals: Arrivals, seconds: float, reason: str
    ) -> None:
        """Correct the assumptions about the device, and choose a policy, in the background."""
        began_s = time.monotonic()
        self._pace = Pace(_SHARE)
        if self._is_closed:
            return
        try:
            self._correct(observed)
            self._choose(observed, arrivals, seconds, reason)
        except Closed:
            pass
        except Exception as error:
            self._error = error
        took_s = time.thread_time()  # The thread did nothing else, so its whole CPU time counts.
        self._rests_until_s = began_s + _REST * took_s
        self._log.append(
            (
                observed.now_us,
                f"the choice of a policy took {took_s:.2f} s of CPU time within "
                f"{time.monotonic() - began_s:.1f} s",
            )
        )

    def _adopt(self, view: View) -> None:
        """Serve by the policy that `_choose` has chosen."""
        if self._error is not None:
            raise self._error
        self._observed.decided(view)
        if self._current != self._before:
            self._inner = self._made(self._current)
            self._drains = True

    def _made(self, candidate: Candidate) -> Policy:
        policy = candidate.make()
        policy.prepare(Setting(self._programs))
        return policy

    def _correct(self, seen: Observed) -> None:
        """Correct the assumed interference and speed by the observed latencies of instances.

        If the assumed speed is wrong, the latencies of all instances are wrong by the same factor.
        If the assumed interference is wrong, the error grows with the number of concurrent
        instances. The method takes the value of `_INTERFERENCES` with which simulated latencies are
        closest to the observed ones. It then corrects the speed by the mean deviation that remains.
        Small corrections are not applied (`_AS_BELIEVED`, `_CORRECTED`).
        """
        models, device = self._programs.models, self._programs.device
        arrivals, seconds = seen.since_decision()
        if seconds <= 0:
            return  # No time has passed since the last decision, so there is nothing to compare.

        def excess(interference: float) -> tuple[float, float] | None:
            programs = Programs(models, device.with_interference(interference))
            watched = _Watched(self._paced(self._current))
            simulate_serving(
                models, arrivals, watched, programs.device, seconds,
                refuse_late=True, programs=programs,
            )  # fmt: skip
            return seen.excess(watched.observed)

        def error(found: tuple[float, float]) -> float:
            mean, spread = found
            return math.hypot(mean * _SPREAD_OF_SPEED, spread)

        as_believed = excess(device.interference)
        if as_believed is None or max(map(abs, as_believed)) < _AS_BELIEVED:
            return
        tried = {i: found for i in _INTERFERENCES if (found := excess(i)) is not None}
        if not tried:
            return
        best = min(tried, key=lambda interference: error(tried[interference]))
        if error(tried[best]) > error(as_believed) * _CORRECTED:
            return
        slower = math.exp(tried[best][0])
        self._log.append(
            (
                seen.now_us,
                f"interference is {best}, not {device.interference}, and operators take "
                f"{slower:.2f} times as long as assumed",
            )
        )
        self._programs = Programs(
            [model.slower(slower) for model in models], device.with_interference(best)
        )

    def _choose(self, observed: Observed, arrivals: Arrivals, seconds: float, reason: str) -> None:
        """Choose the best candidate for the observed load and the highest plausible load."""
        seen = min(observed.count, _MOST)
        loads = (1.0, 1 + _UNCERTAIN / math.sqrt(seen)) if seen else (1.0,)
        finalists: dict[Candidate, None] = {}
        for load in loads:
            screened, screened_s = _faster(*_first(arrivals, seconds, _SCREENED), load)
            runs = [(c, self._simulated(c, screened, screened_s)) for c in self._candidates]
            most = max(run.goodput() for _, run in runs)
            runs.sort(key=lambda row: _rank([row[1]], [most], _NEARLY))
            finalists |= dict.fromkeys(c for c, _ in runs[:_FINALISTS])
        if self._current in self._candidates:
            finalists[self._current] = None
        rows = [
            (c, [self._simulated(c, *_faster(arrivals, seconds, load)) for load in loads])
            for c in finalists
        ]
        most_each = [max(runs[i].goodput() for _, runs in rows) for i in range(len(loads))]
        ranked = sorted((_rank(runs, most_each, _AS_FAST), i) for i, (_, runs) in enumerate(rows))
        best = rows[ranked[0][1]]
        for rank, i in ranked:
            # The current candidate stays unless another one is better by more than chance.
            is_current = rows[i][0] == self._current
            if is_current and rank[0] == ranked[0][0][0] == 0 and rank[1] < _KEEP * ranked[0][0][1]:
                best = rows[i]
        self._current = best[0]
        rates = np.bincount(arrivals.models, minlength=len(self._programs.models)) / seconds
        others = [rows[i] for _, i in ranked if rows[i] is not best][:2]
        self._log.append(
            (
                observed.now_us,
                f"{reason}: at {', '.join(f'{rate:.0f}' for rate in rates)} requests a second "
                f"{_told(best)}; then {'; '.join(map(_told, others)) or 'nothing else'}",
            )
        )

    def _simulated(self, candidate: Candidate, arrivals: Arrivals, seconds: float) -> ServingRun:
        programs = self._programs
        return simulate_serving(
            programs.models, arrivals, self._paced(candidate), programs.device, seconds,
            refuse_late=True, programs=programs,
        )  # fmt: skip

    def _paced(self, candidate: Candidate) -> Policy:
        policy = candidate.make()
        return policy if self._pace is None else Paced(policy, self._pace)


class _Watched(Policy):
    """A wrapper of a policy that records the latencies of its instances."""

    def __init__(self, inner: Policy) -> None:
        self._inner = inner

    def prepare(self, setting: Setting) -> None:
        self._inner.prepare(setting)
        self.observed = Observed(len(setting.programs.models), 0, sys.maxsize)

    def decide(self, view: View) -> Start | Admit | Wait:
        self.observed.look(view)
        return self._inner.decide(view)


_COMPARED = 1024
"""After a decision, latencies are compared with a simulation until this many requests have
arrived."""
_AS_BELIEVED = 0.02
"""Deviations of simulated latencies below this limit, about 2%, are ignored.

A deviation is the logarithm of the ratio of an observed latency to a simulated latency.
"""
_SPREAD_OF_SPEED = 0.2
"""The weight of the mean deviation in a simulation's error. The spread of deviations has weight 1.

The spread is the standard deviation of the deviations of different kinds of instances. A wrong
speed of the models changes only the mean. A large spread shows that the interference is wrong.
"""
_CORRECTED = 0.7
"""A correction is applied if it lowers the simulation's error at least to this share of it."""
_INTERFERENCES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3)
"""The values of the interference that a correction tries."""


def _told(row: tuple[Candidate, list[ServingRun]]) -> str:
    candidate, runs = row
    return f"{candidate}: {runs[0].goodput():.0f}/s, p99 {runs[0].latency().p99:.2f} ms"


def _rank(runs: Sequence[ServingRun], most: Sequence[float], share: float) -> tuple[float, float]:
    """Return a sort key for a candidate that was run once at each load.

    First come the candidates whose throughput at every load is at least `share` times the best
    throughput at that load, sorted by their 99th percentile of latency. All other candidates
    follow, sorted by throughput.
    """
    speeds = [run.goodput() / m if m else 0.0 for run, m in zip(runs, most, strict=True)]
    if min(speeds) < share or not min(speeds):
        return (1.0, -min(speeds))
    return (0.0, math.prod(run.latency().p99 for run in runs) ** (1 / len(runs)))


def _faster(arrivals: Arrivals, seconds: float, load: float) -> tuple[Arrivals, float]:
    """Return the arrivals with rates multiplied by `load`, and their new period in seconds."""
    at_us, due_us = arrivals.at_us / load, arrivals.deadlines_us
    if due_us is not None:
        due_us = due_us - arrivals.at_us + at_us
    return Arrivals(at_us, arrivals.models, deadlines_us=due_us), seconds / load


def _first(arrivals: Arrivals, seconds: float, count: int) -> tuple[Arrivals, float]:
    """Return the first `count` arrivals, and the length of their period in seconds."""
    if len(arrivals.at_us) <= count:
        return arrivals, seconds
    until_us = float(arrivals.at_us[count])
    if until_us <= 0:
        return arrivals, seconds
    kept = arrivals.at_us < until_us
    due_us = arrivals.deadlines_us
    return Arrivals(
        arrivals.at_us[kept], arrivals.models[kept],
        deadlines_us=None if due_us is None else due_us[kept],
    ), until_us / 1e6  # fmt: skip
