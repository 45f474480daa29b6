"""TOP's training environment as a decision process, in which queues are kept from step to step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .arrivals import Arrivals, closed_loop, on_off, periodic, poisson
from .combination import BUFFER, CombinedServing, Window
from .decisions import PRINTED, SAMPLES, Floats, Outcome, RewardRule, Space, figures_of
from .programs import Programs

LOADS = ("closed", "periodic", "poisson", "on_off", "trace")
_EVEN = 50
"""The number of evenly spaced times at which queue lengths are observed, for their variance."""


@dataclass(frozen=True)
class Load:
    """The requests that arrive during a training or a search.

    Attributes
    ----------
    kind: `closed` for clients that send a request, wait for the answer and send the next one.
        `periodic`, `poisson` and `on_off` name functions of `serving.arrivals` that make the
        requests. `trace` repeats given arrivals.
    per_model: number of clients of each model for `closed`; otherwise requests a second of each
        model. Not used with `trace`.
    burst_s: mean length of a burst, and of the pause after it, for `on_off`.
    trace: the arrivals to repeat.
    period_s: length of the trace in seconds.
    """

    kind: str = "closed"
    per_model: tuple[float, ...] = ()
    burst_s: float = 0.05
    trace: Arrivals | None = None
    period_s: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in LOADS:
            raise InputError(f"`kind` is {self.kind!r}; it must be one of {', '.join(LOADS)}")
        if (self.kind == "trace") != (self.trace is not None):
            raise InputError("give `trace` together with the kind `trace`, or give neither of them")

    def arrivals(self, seconds: float, seed: int) -> Arrivals:
        """Return the requests that arrive within `seconds`, drawn with `seed`."""
        if self.trace is not None:
            times = math.ceil(seconds / self.period_s)
            at_us = [self.trace.at_us + i * self.period_s * 1e6 for i in range(times)]
            models = np.tile(self.trace.models, times)
            return Arrivals(np.concatenate(at_us), models, self.trace.followers)
        if self.kind == "closed":
            return closed_loop([int(count) for count in self.per_model])
        if self.kind == "periodic":
            return periodic(self.per_model, seconds)
        if self.kind == "poisson":
            return poisson(self.per_model, seconds, seed)
        return on_off(self.per_model, seconds, seed, self.burst_s, self.burst_s)


class ServingProcess:
    """An environment like `decisions.Environment`, but a step begins where the previous one ended.

    In each step, requests are served for a fixed time by the step's decision. Queues, requests
    between blocks and the running combined block are kept from the previous step. The state is
    observed during the step: it holds the queue lengths, and the blocks in which requests were.
    After some steps, a new episode begins with empty queues. Otherwise queues would grow for ever
    under overload.

    Attributes
    ----------
    calls: number of actions that were simulated or refused so far.
    """

    def __init__(
        self,
        programs: Programs,
        space: Space,
        load: Load,
        seconds: float,
        *,
        episode: int = 25,
        most: int = 4,
        reward: str = "paper",
        rule: RewardRule = PRINTED,
        schedule: str = "greedy",
        barriers: bool = True,
        buffer: int = BUFFER,
        seed: int = 0,
    ) -> None:
        """Create a process.

        Parameters
        ----------
        seconds: length of a step.
        episode: number of steps that are served before the queues are emptied.
        most: maximum number of blocks in a combined block (TOP's H).
        reward: the first entry of `Outcome.figures`: `paper` for the utilisation, `throughput` for
            requests per millisecond, or `mix` for requests in complete mixes per millisecond (see
            `mix_rate`). A mix has requests of the models in proportion to `load.per_model`.
        rule: the rule by which figures become a reward.
        schedule, barriers, buffer: as for `simulate_combined`.
        seed: seed of the arrivals, and of the times at which states are sampled.
        """
        if reward not in ("paper", "throughput", "mix"):
            raise InputError(f"`reward` is {reward!r}; it must be `paper`, `throughput` or `mix`")
        if space.num_blocks != tuple(len(model.blocks) for model in programs.models):
            raise InputError(
                f"`space` is for models of {space.num_blocks} blocks, but `programs` has models of "
                f"{tuple(len(model.blocks) for model in programs.models)} blocks; make a "
                "`Space` for these models"
            )
        self.models = programs.models
        self.space = space
        self.rule = rule
        self.calls = 0
        self.state = np.zeros(space.state_size)
        self._programs = programs
        self._load = load
        self._seconds = seconds
        self._episode = episode
        self._most = most
        self._reward = reward
        self._as_served: dict[str, Any] = {
            "schedule": schedule, "barriers": barriers, "buffer": buffer
        }  # fmt: skip
        self._seed = seed
        self._served = 0
        self._began = 0
        self._serving: CombinedServing | None = None

    def step(self, action: Floats) -> Outcome:
        """Serve for one step by the decision that `action` stands for, and return the outcome.

        If the action has a combined block of more than `most` blocks, it is refused: no time
        passes, and the state stays as it is.
        """
        number = self.calls
        self.calls += 1
        combination = self.space.combination(self.models, action)
        if max(map(len, combination)) > self._most:
            return Outcome(self.state, None, None)
        if self._serving is None or self._served == self._episode:
            self._begin(number)
        assert self._serving is not None
        self._served += 1
        length_us = self._seconds * 1e6
        drawn = np.random.default_rng([self._seed, number]).random(SAMPLES) * length_us
        even = np.linspace(0.0, length_us, _EVEN + 1)[1:]
        times = np.concatenate([np.sort(drawn), even])
        order = np.argsort(times, kind="stable")
        window = self._serving.run(
            combination, self.space.intervals_us(action), self._seconds, observe_us=times[order]
        )
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self.state = self._state_of(window, place[:SAMPLES].tolist())
        variance = float(window.lengths[place[SAMPLES:]].var(axis=1).mean())
        return Outcome(self.state, figures_of(window.run, self._gain(window), variance), window.run)

    def saved(self) -> Any:
        """Return the data that `restore` needs, in a form that JSON can hold."""
        return [self.calls, self._began, self._served]

    def restore(self, saved: Any, actions: Floats) -> None:
        """Restore the state in which `saved` was called, by serving the last episode again.

        Parameters
        ----------
        actions: the actions of all steps before `saved` was called.
        """
        calls, began, served = saved
        self._serving = None
        self._served = 0
        self.calls = began
        for action in actions[began:calls]:
            self.step(action)
        if self._served != served:
            raise InputError(
                "`actions` did not lead to the saved state; give the actions taken before `saved`"
            )

    def _begin(self, number: int) -> None:
        self._began = number
        self._served = 0
        seed = self._seed * 1_000_003 + number
        first = self._load.arrivals(self._episode * self._seconds, seed)
        self._serving = CombinedServing(self._programs, first, **self._as_served)

    def _state_of(self, window: Window, rows: Sequence[int]) -> Floats:
        samples = []
        for row in rows:
            blocks = [np.flatnonzero(counts[row]).tolist() for counts in window.in_blocks]
            samples.append(self.space.sample(blocks, window.lengths[row].tolist()))
        return np.concatenate(samples)

    def _gain(self, window: Window) -> float:
        run = window.run
        if self._reward == "paper":
            return run.utilisation
        if self._reward == "throughput":
            return run.throughput() / 1e3
        return mix_rate(run.served(), self._load.per_model) / run.end_us * 1e3


def mix_rate(served: npt.ArrayLike, mix: npt.ArrayLike) -> float:
    """Return how many served requests belong to complete mixes of requests.

    A complete mix has requests of all models in the proportions of `mix`. If more requests of a
    model were served than the mixes need, the surplus does not count.
    """
    shares = np.asarray(mix, dtype=np.float64)
    shares = shares / shares.sum()
    wanted = shares > 0
    return float((np.asarray(served)[wanted] / shares[wanted]).min())
