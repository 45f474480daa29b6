"""The states, actions and rewards of TOP's reinforcement learning, as vectors of numbers.

TOP is the system of Lin et al., TPDS 36(2), 2025.
This module turns a serving run into a state, and an action into a combination of blocks and into
dequeue intervals. It also runs trained agents, in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .combination import Combination, combination_of
from .models import ServedModel
from .programs import Part
from .run import ServingRun

Floats = npt.NDArray[np.float64]
SAMPLES = 10
"""The number of samples that make up a state (TOP's n). All are taken during one step."""


@dataclass(frozen=True)
class Space:
    """The action space and the state space for some models.

    An action is a vector of numbers from 0 to 1. It starts with one number for each model, which
    stands for the model's dequeue interval. One number for each block follows, model by model. An
    action stands for a decision: dequeue intervals and a combination of blocks. Several actions can
    stand for the same decision.

    Attributes
    ----------
    num_blocks: number of blocks of each model.
    interval: how a model's number x in an action gives its dequeue interval. With `linear`, as in
        TOP, the interval is x seconds. With `log`, it grows exponentially with x, from `shortest_s`
        to `longest_s`: by default it is 10^(4x-4) seconds. An agent can then choose between short
        intervals as finely as between long ones.
    levels: number of distinct intervals. Each x is rounded up to a multiple of 1 / levels. With 0,
        nothing is rounded.
    shortest_s, longest_s: bounds of a `log` interval in seconds.
    """

    num_blocks: tuple[int, ...]
    interval: str = "log"
    levels: int = 0
    shortest_s: float = 1e-4
    longest_s: float = 1.0

    def __post_init__(self) -> None:
        if self.interval not in ("linear", "log"):
            raise InputError(f"`interval` is {self.interval!r}; it must be `linear` or `log`")

    @property
    def num_models(self) -> int:
        """The number of served models, each of which has an agent."""
        return len(self.num_blocks)

    @property
    def size(self) -> int:
        """The number of entries in an action: one for each model and one for each block."""
        return self.num_models + sum(self.num_blocks)

    @property
    def state_size(self) -> int:
        """The number of entries in a state, which consists of `SAMPLES` samples."""
        return SAMPLES * self.size

    def slices(self) -> list[slice]:
        """Return the slice of an action for each agent: first the launcher, then each model."""
        ends = np.cumsum([self.num_models, *self.num_blocks])
        return [slice(int(a), int(b)) for a, b in zip([0, *ends], ends, strict=False)]

    @property
    def num_features(self) -> int:
        """The number of features that `features` returns for an action."""
        blocks = sum(self.num_blocks)
        return self.num_models * max(1, self.levels) + blocks * (blocks - 1) // 2

    def features(self, actions: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
        """Return the features of actions: (..., num_features) from actions (..., size).

        Actions that stand for the same decision have the same features. The first features are the
        interval of each model, one-hot encoded if `levels` is above 0. The other features say for
        each pair of blocks whether both are in one combined block.
        """
        x = np.clip(actions[..., : self.num_models], 0.0, 1.0)
        if self.levels:
            level = np.maximum(np.ceil(x * self.levels - 1e-6), 1)
            own = level[..., None] == np.arange(1, self.levels + 1)
            x = own.reshape(*own.shape[:-2], -1)
        total = sum(self.num_blocks)
        cells = self._cells(actions)
        first, second = np.triu_indices(total, 1)
        together = cells[..., first] == cells[..., second]
        return np.concatenate([x, together], axis=-1).astype(np.float32)

    def canonical(self, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the canonical actions of actions; both arrays have the shape (..., size).

        All actions that stand for the same decision have the same canonical action. If `levels` is
        above 0, the number of a dequeue interval becomes the middle of all numbers that stand for
        this interval. All blocks of a combined block get the same number. It is the middle of a
        cell (see `_cells`); the cell's index is the index of the first block of the combined block.
        So a canonical action is as far as possible from actions that stand for other decisions.
        """
        x = np.clip(actions[..., : self.num_models], 0.0, 1.0)
        if self.levels:
            x = (np.maximum(np.ceil(x * self.levels - 1e-6), 1) - 0.5) / self.levels
        cells = self._cells(actions)
        first = (cells[..., :, None] == cells[..., None, :]).argmax(-1)
        middle = (first + 0.5) / sum(self.num_blocks)
        return np.concatenate([x, middle], axis=-1).astype(actions.dtype)

    def _cells(self, actions: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """For each block, return the index of the cell that contains the block's number.

        The result has the shape (..., number of blocks).

        The range from 0 to 1 is divided into as many equal cells as there are blocks.
        """
        total = sum(self.num_blocks)
        scaled = (actions[..., self.num_models :] * total).astype(np.int64)
        found: npt.NDArray[np.int64] = np.clip(scaled, 0, total - 1)
        return found

    def intervals_us(self, action: Floats) -> list[float]:
        """Return the minimum time in microseconds between two dequeues of each model."""
        x = np.clip(np.asarray(action[: self.num_models], dtype=np.float64), 0.0, 1.0)
        if self.levels:
            x = np.maximum(np.ceil(x * self.levels - 1e-9), 1) / self.levels
        if self.interval == "linear":
            return [float(max(value, 1e-6)) * 1e6 for value in x]
        return [
            float(1e6 * self.shortest_s * (self.longest_s / self.shortest_s) ** value)
            for value in x
        ]

    def combination(self, models: Sequence[ServedModel], action: Floats) -> Combination:
        """Return the combination that an action stands for (TOP, section IV-B).

        The range from 0 to 1 is divided into N equal cells for N blocks. Blocks whose numbers are
        in the same cell form a combined block. The number 1 is in the last cell.
        """
        total = sum(self.num_blocks)
        cells: dict[int, list[Part]] = {}
        parts = [(m, b) for m, count in enumerate(self.num_blocks) for b in range(count)]
        for part, value in zip(parts, action[self.num_models :], strict=True):
            cells.setdefault(min(total - 1, max(0, int(total * value))), []).append(part)
        return combination_of(models, cells.values())

    def sample(self, in_progress: Sequence[Sequence[int]], lengths: Sequence[int]) -> Floats:
        """Return one sample of a state: (size,).

        The sample starts with the scaled difference of each queue length from the mean length. One
        number per block follows: 1 if a request is in the block, otherwise 0.

        Parameters
        ----------
        in_progress: for each model, the indices of the blocks in which its requests are.
        lengths: queue length of each model. Its difference from the mean length is divided by the
            mean, or by 1 if the mean is below 1, so that the sample's numbers stay small. TOP
            itself does not divide.
        """
        queues = np.asarray(lengths, dtype=np.float64)
        mean = float(queues.mean())
        found = np.zeros(self.size)
        found[: self.num_models] = (queues - mean) / max(1.0, mean)
        for model, part in enumerate(self.slices()[1:]):
            found[part][list(in_progress[model])] = 1.0
        return found

    def state_of(self, run: ServingRun, at_us: Floats) -> Floats:
        """Return the state of a run, sampled at SAMPLES times: (state_size,).

        The simulator of combined blocks does not report which block a request is in. This method
        estimates the block: it takes the share of the request's time in flight that has passed.
        """
        backlog = run.backlog(at_us)
        found = []
        for i, time_us in enumerate(at_us):
            inside = (run.dequeued_us <= time_us) & ~(run.finished_us <= time_us)
            passed = time_us - run.dequeued_us[inside]
            ends = np.where(np.isnan(run.finished_us[inside]), run.end_us, run.finished_us[inside])
            share = passed / np.maximum(ends - run.dequeued_us[inside], 1e-9)
            blocks: list[list[int]] = [[] for _ in self.num_blocks]
            for model, part in zip(run.models[inside].tolist(), share.tolist(), strict=True):
                count = self.num_blocks[model]
                blocks[model].append(min(count - 1, int(part * count)))
            found.append(self.sample(blocks, backlog[i].tolist()))
        return np.concatenate(found)


class Agents:
    """The trained agents of TOP: the launcher and one agent per model.

    NumPy evaluates the networks of all agents together.
    """

    def __init__(self, space: Space, weights: Mapping[str, npt.NDArray[np.floating]]) -> None:
        self.space = space
        count = len(space.slices())
        self._layers: list[list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]] = []
        for agent in range(count):
            layers: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]] = []
            while f"actor{agent}.{len(layers)}.w" in weights:
                name = f"actor{agent}.{len(layers)}"
                layers.append(
                    (
                        np.ascontiguousarray(weights[f"{name}.w"], dtype=np.float32),
                        np.asarray(weights[f"{name}.b"], dtype=np.float32),
                    )
                )
            self._layers.append(layers)
        if not all(self._layers) or self._layers[0][0][0].shape[0] != space.state_size:
            raise InputError(
                f"these weights do not belong to {count} agents that see {space.state_size} "
                "numbers; "
                "train agents for these models"
            )
        # All agents read the same state, so one matrix product evaluates all their first layers.
        self._first = np.ascontiguousarray(np.concatenate([a[0][0] for a in self._layers], axis=1))
        self._bias = np.concatenate([a[0][1] for a in self._layers])
        ends = np.cumsum([len(a[0][1]) for a in self._layers])
        self._parts = [slice(int(a), int(b)) for a, b in zip([0, *ends], ends, strict=False)]

    @classmethod
    def load(cls, path: str | Path, num_blocks: Sequence[int]) -> Agents:
        """Load agents from a file.

        Parameters
        ----------
        num_blocks: number of blocks of each model. The agents must be trained for these numbers.

        Raises
        ------
        InputError: the file cannot be read, or its agents were trained for models with other
            numbers of blocks. The message names the file.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                weights = {key: arrays[key] for key in arrays.files}
            interval = str(weights.pop("interval"))
            levels, shortest_s, longest_s = weights.pop("scale").tolist()
            trained = tuple(int(n) for n in weights.pop("num_blocks"))
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise InputError(f"the agents `{path}` cannot be read: {error}") from None
        if trained != tuple(num_blocks):
            raise InputError(
                f"the agents in `{path}` are for models of {trained} blocks, but these models have "
                f"{tuple(num_blocks)} blocks; train agents for these models"
            )
        return cls(Space(trained, interval, int(levels), shortest_s, longest_s), weights)

    def act(self, state: Floats) -> Floats:
        """Return the agents' action, shape (size,), for a state of shape (state_size,).

        Each agent's network has ReLU hidden layers and a sigmoid output.
        """
        first = np.maximum(state.astype(np.float32) @ self._first + self._bias, 0.0)
        found = []
        for part, layers in zip(self._parts, self._layers, strict=True):
            rows = first[part]
            for i, (matrix, bias) in enumerate(layers[1:], start=2):
                rows = rows @ matrix + bias
                if i < len(layers):
                    rows = np.maximum(rows, 0.0)
            found.append(0.5 * (1.0 + np.tanh(0.5 * rows)))
        return np.concatenate(found).astype(np.float64)


@dataclass(frozen=True)
class Outcome:
    """The result of one step of the environment.

    Attributes
    ----------
    state: (state_size,) state sampled during the step.
    figures: (2 + num_models,) the utilisation, the variance of the queue lengths, then the mean
        latency of each model in milliseconds. With the reward `throughput`, the throughput in
        requests per millisecond replaces the utilisation. None if a combined block was too large,
        so that nothing ran.
    run: times of all requests; None if nothing ran.
    """

    state: Floats
    figures: Floats | None
    run: ServingRun | None


class Process(Protocol):
    """The interface of an environment, as a training uses it."""

    space: Space
    rule: RewardRule
    calls: int
    state: Floats

    def step(self, action: Floats) -> Outcome:
        """Serve for one step by the decision that `action` stands for. Return the outcome."""
        ...

    def saved(self) -> Any:
        """Return the data that `restore` needs, in a form that JSON can hold."""
        ...

    def restore(self, saved: Any, actions: Floats) -> None:
        """Return to the state in which `saved` was called.

        Parameters
        ----------
        saved: the result of `saved`.
        actions: the actions of all steps before `saved` was called.
        """
        ...


class Environment:
    """A training environment in which each step begins with empty queues.

    A step applies an action, simulates serving, and returns the outcome. Each step serves the same
    arrivals. The outcome of a step therefore depends only on its action. In
    `process.ServingProcess`, queues are kept from step to step.

    Attributes
    ----------
    calls: number of actions that were simulated or refused so far.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        space: Space,
        serve: Callable[[Combination, list[float]], ServingRun],
        most: int = 4,
        reward: str = "paper",
        seed: int = 0,
    ) -> None:
        """Create an environment.

        Parameters
        ----------
        serve: function that serves the arrivals by a combination and by dequeue intervals in
            microseconds.
        most: maximum number of blocks in a combined block (TOP's H).
        reward: `paper` to reward utilisation as TOP does; `throughput` to reward throughput
            instead.
        seed: seed for the times at which states are sampled.
        """
        if reward not in ("paper", "throughput"):
            raise InputError(f"`reward` is {reward!r}; it must be `paper` or `throughput`")
        if space.num_blocks != tuple(len(model.blocks) for model in models):
            raise InputError(
                "`space` was made for models with other numbers of blocks; make a `Space` "
                "for these models"
            )
        self.models = models
        self.space = space
        self.calls = 0
        self.rule = PRINTED
        self._serve = serve
        self._most = most
        self._reward = reward
        self._rng = np.random.default_rng(seed)
        self.state = np.zeros(space.state_size)

    def step(self, action: Floats) -> Outcome:
        """Simulate serving with an action and return the outcome.

        If the action has a combined block of more than `most` blocks, it is refused, and the state
        stays as it is.
        """
        self.calls += 1
        combination = self.space.combination(self.models, action)
        if max(map(len, combination)) > self._most:
            return Outcome(self.state, None, None)
        run = self._serve(combination, self.space.intervals_us(action))
        at_us = np.sort(self._rng.random(SAMPLES)) * run.end_us
        self.state = self.space.state_of(run, at_us)
        return Outcome(self.state, self._figures(run), run)

    def saved(self) -> Any:
        """Return the data that `restore` needs, in a form that JSON can hold."""
        return [self.calls, self._rng.bit_generator.state]

    def restore(self, saved: Any, actions: Floats) -> None:
        """Restore the state that this object had when `saved` returned this data."""
        self.calls, self._rng.bit_generator.state = saved

    def _figures(self, run: ServingRun) -> Floats:
        gain = run.utilisation if self._reward == "paper" else run.throughput() / 1e3
        return figures_of(run, gain, run.backlog_variance(samples=50))


def figures_of(run: ServingRun, gain: float, variance: float) -> Floats:
    """Return `Outcome.figures` of a run.

    The latency of a request in flight is counted up to the end of the run.
    """
    means = []
    for model in range(run.num_models):
        of_model = run.models == model
        began = np.where(np.isnan(run.dequeued_us), np.inf, run.dequeued_us)[of_model]
        ended = np.where(np.isnan(run.finished_us), run.end_us, run.finished_us)[of_model]
        inside = np.isfinite(began)
        spent = (ended - began)[inside]
        means.append(float(spent.mean()) / 1e3 if len(spent) else run.end_us / 1e3)
    return np.array([gain, variance, *means])


@dataclass(frozen=True)
class RewardRule:
    """The formula that turns the figures of an outcome (as z-scores) into a reward.

    Attributes
    ----------
    weights: the factors a, b and c of TOP's Equation 2. They belong to the utilisation (or the
        throughput that replaces it), the latency, and the variance of the queue lengths.
    is_exponential: whether the reward is the exponential of the weighted sum, as in Equation 2. If
        not, it is the sum itself.
    refused: reward of an action that was refused.
    """

    weights: tuple[float, float, float] = (0.4, 0.4, 0.2)
    is_exponential: bool = True
    refused: float = 0.0


PRINTED = RewardRule()
"""The `RewardRule` with the weights and the exponential of TOP's Equation 2."""


@dataclass(frozen=True)
class Score:
    """The rewards of TOP's Equation 2, with fixed means and standard deviations.

    The launcher's reward is r^0 = exp(0.4 U - 0.4 mean L - 0.2 V). The reward of model i is
    r^i = exp(0.4 U - 0.4 L_i - 0.2 V). U, L and V are z-scores of utilisation, latency and queue
    variance. The paper does not say from which outcomes their means and deviations are computed.
    Here they are computed from the outcomes passed to `Score.of`.

    Attributes
    ----------
    mean, deviation: (2 + num_models,) mean and standard deviation of each entry of
        `Outcome.figures`.
    rule: the weights of the z-scores in the reward, and whether the reward is an exponential.
    """

    mean: Floats
    deviation: Floats
    rule: RewardRule = PRINTED

    @classmethod
    def of(cls, figures: Sequence[Floats], rule: RewardRule = PRINTED) -> Score:
        """Create a score from the figures of some outcomes.

        Raises
        ------
        InputError: there are no figures, because every action was refused.
        """
        if not len(figures):
            raise InputError(
                "every action had a combined block of more than `most` blocks; raise `most`"
            )
        rows = np.stack(list(figures))
        return cls(rows.mean(0), np.maximum(rows.std(0), 1e-9), rule)

    def rewards(self, figures: Floats | None) -> Floats:
        """Return the rewards of the launcher, then of each model: (num_models + 1,).

        If the action was refused, so that nothing ran, all rewards are `rule.refused`.
        """
        if figures is None:
            return np.full(len(self.mean) - 1, self.rule.refused)
        z = (figures - self.mean) / self.deviation
        latency = np.concatenate([[z[2:].mean()], z[2:]])
        a, b, c = self.rule.weights
        # The weighted sum is limited to the range from -10 to 10, so that no reward becomes huge.
        found: Floats = np.clip(a * z[0] - b * latency - c * z[1], -10.0, 10.0)
        return np.exp(found) if self.rule.is_exponential else found

    def team(self, figures: Floats | None) -> float:
        """Return the mean reward of all agents: one number to compare actions by."""
        return float(self.rewards(figures).mean())
