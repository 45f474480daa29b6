"""The policies `top` and `top+`.

In `top`, trained agents choose combined blocks and dequeue intervals. In `top+`, a search finds the
combined blocks, and they run without barriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...plain_data import is_finite
from ..combination import BUFFER, Combination, each_alone
from ..decisions import SAMPLES, Agents, Floats
from ..models import ServedModel
from ..policy import Policy, Setting, register_policy, require_counts
from ..tasks import Admit, Start, View, Wait
from .search import Search
from .sequential import Sequential


@register_policy("top")
class Top(Policy):
    """Runs combined blocks by the rule of `search`. Trained agents choose blocks and intervals.

    The policy follows Lin et al., TPDS 36(2), 2025, Algorithm 1, from line 25 on. The policy
    begins with the decision of the agents for the state in which all queues are empty. The agents
    decide again whenever the variance of the queue lengths is above `threshold`. The new combined
    blocks run once the running combined block has ended. With one model the variance is always 0,
    so only the first decision is made.

    Parameters
    ----------
    agents: trained agents, or a file that `serving.learning.maddpg.save_agents` wrote. The agents
        must be for models with the same numbers of blocks.
    threshold: variance of the queue lengths above which the agents decide again (the paper's T).
    check_us: microseconds between two checks of the variance.
    most: maximum number of blocks in one combined block (the paper's H). A decision with a larger
        combined block is rejected, as in training.
    buffer, schedule, barriers, inside: as for `search`. The schedule `gpg-scored` gives the stages
        of the paper.
    """

    def __init__(
        self,
        agents: str | Path | Agents | None = None,
        threshold: float = 2e5,
        check_us: float = 1e5,
        most: int = 4,
        buffer: int = BUFFER,
        schedule: str = "gpg-scored",
        barriers: bool = True,
        inside: int | None = None,
    ) -> None:
        if agents is None:
            raise InputError(
                "policy `top` needs agents trained for these models; give `agents`, a file that "
                "`tvm_interop.serving.learning.maddpg.save_agents` wrote"
            )
        for name, value in (("threshold", threshold), ("check_us", check_us)):
            if not is_finite(value) or value < 0:
                raise InputError(f"`{name}` is {value!r}; it must be a number, 0 or more")
        require_counts(most=most, buffer=buffer)
        self._given = agents
        self._threshold = threshold
        self._check_us = max(check_us, 1.0)
        self._most = most
        self._buffer = buffer
        self._schedule = schedule
        self._barriers = barriers
        self._inside = inside
        self._log: list[tuple[float, str]] = []

    def prepare(self, setting: Setting) -> None:
        """Load the agents and apply their first decision."""
        super().prepare(setting)
        models = setting.programs.models
        self._agents = agents_for(self._given, models)
        empty = self._agents.space.sample([[] for _ in models], [0] * len(models))
        self._samples: list[Floats] = [empty] * SAMPLES
        self._check_at_us = self._check_us
        self._inner = self._made(each_alone(models), [0.0] * len(models))
        self._decide_again(0.0)

    def decide(self, view: View) -> Start | Admit | Wait:
        """Decide by TOP's rule with the current combined blocks and dequeue intervals."""
        if view.now_us >= self._check_at_us:
            self._check_at_us = view.now_us + self._check_us
            self._look(view)
        found = self._inner.decide(view)
        if isinstance(found, Wait) and (view.running or any(view.queues)):
            return Wait(min(found.until_us, self._check_at_us))
        return found

    def explanation(self) -> list[tuple[float, str]]:
        """Return the decisions of the agents, as (time in microseconds, text) pairs."""
        return self._log

    def _look(self, view: View) -> None:
        lengths = [len(queue) for queue in view.queues]
        blocks: list[list[int]] = [
            [b for b, waiting in enumerate(between) if waiting] for between in view.between
        ]
        for running in view.running.values():
            for request, part in zip(
                running.start.requests, running.start.parts or (), strict=False
            ):
                if request is not None:
                    blocks[part[0]].append(part[1])
        self._samples = [*self._samples[1:], self._agents.space.sample(blocks, lengths)]
        if float(np.var(lengths)) > self._threshold:
            self._decide_again(view.now_us)

    def _decide_again(self, now_us: float) -> None:
        action = self._agents.act(np.concatenate(self._samples))
        space = self._agents.space
        combination = space.combination(self.setting.programs.models, action)
        largest = max(map(len, combination))
        if largest > self._most:
            self._log.append(
                (
                    now_us,
                    f"not taken: a combined block of {largest} blocks, and `most` is {self._most}",
                )
            )
            return
        intervals = space.intervals_us(action)
        self._inner.adopt(combination, intervals)
        told = ", ".join(f"{interval:.0f}" for interval in intervals)
        self._log.append((now_us, f"{len(combination)} combined blocks, every {told} us"))

    def _made(self, combination: Combination, intervals: Sequence[float]) -> Search:
        inner = Search(
            combination=combination, interval_us=intervals, buffer=self._buffer,
            schedule=self._schedule, barriers=self._barriers, inside=self._inside,
        )  # fmt: skip
        inner.prepare(self.setting)
        return inner


@register_policy("top+")
class TopPlus(Search):
    """Runs TOP's combined blocks without barriers, by default two at a time. A search finds them.

    Without barriers, an operator waits only for its inputs, and not for the whole previous stage.
    While one combined block runs, a second one starts beside it. The policy chooses the combined
    block in which the largest share of the blocks has input. The policy also simulates
    `sequential`, which runs one instance at a time, and serves by `sequential` if its simulated
    throughput is higher.

    Parameters
    ----------
    agents: as for `top`. If agents are given, their decision for empty queues is one more
        candidate.
    in_flight: maximum number of combined blocks that run at the same time.
    budget, most, rates, buffer, schedule, method, seed, inside: as for `search`.
    """

    def __init__(
        self,
        agents: str | Path | Agents | None = None,
        method: str = "climb",
        budget: int = 60,
        most: int = 4,
        rates: Sequence[float] | None = None,
        buffer: int = BUFFER,
        schedule: str = "greedy",
        in_flight: int = 2,
        seed: int = 0,
        inside: int | None = None,
    ) -> None:
        super().__init__(
            method, budget, most, None, rates, None, buffer, schedule, False, seed, in_flight,
            inside,
        )  # fmt: skip
        self._agents = agents

    def prepare(self, setting: Setting) -> None:
        """Search, then choose the candidate with the highest simulated throughput.

        The candidates are the result of the search, the decision of the agents, and `sequential`.
        """
        super().prepare(setting)
        assert self.combination is not None
        score = self._score()
        models = setting.programs.models
        found = [(self.combination, list(self._intervals))]
        if self._agents is not None:
            found.append(decision_when_empty(self._agents, models))
        served = [score.served(*candidate) for candidate in found]
        best = int(np.argmax(served))
        self.adopt(*found[best])
        sequential = Sequential()
        self._instead = sequential if score.served_by(sequential) > served[best] else None
        if self._instead is not None:
            self._instead.prepare(setting)

    def decide(self, view: View) -> Start | Admit | Wait:
        """Decide as `search` does, or as `sequential` does if its throughput is higher."""
        return super().decide(view) if self._instead is None else self._instead.decide(view)


def decision_when_empty(
    agents: str | Path | Agents, models: Sequence[ServedModel]
) -> tuple[Combination, list[float]]:
    """Return the combination and the dequeue intervals that agents choose for empty queues.

    The dequeue intervals are in microseconds.

    Raises
    ------
    InputError: the agents were trained for other models, or their file cannot be read.
    """
    loaded = agents_for(agents, models)
    empty = loaded.space.sample([[] for _ in models], [0] * len(models))
    action = loaded.act(np.concatenate([empty] * SAMPLES))
    return loaded.space.combination(models, action), loaded.space.intervals_us(action)


def agents_for(agents: str | Path | Agents, models: Sequence[ServedModel]) -> Agents:
    """Return agents; load them if a file is given. Check that they fit the models' block counts.

    Raises
    ------
    InputError: the agents were trained for other models, or their file cannot be read.
    """
    num_blocks = tuple(len(model.blocks) for model in models)
    if not isinstance(agents, Agents):
        return Agents.load(agents, num_blocks)
    if agents.space.num_blocks != num_blocks:
        raise InputError(
            f"the agents are for models of {agents.space.num_blocks} blocks, but these models have "
            f"{num_blocks} blocks; train agents for these models"
        )
    return agents
