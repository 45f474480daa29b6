"""TOP's decisions as numbers: what its agents see, what they answer, and what that stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
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
"""TOP's n: how often a state is sampled during a step."""


@dataclass(frozen=True)
class Space:
    """The decisions there are for some models.

    An action is one vector of numbers from 0 to 1: of each model its dequeue interval, then of each
    model its blocks.

    Attributes
    ----------
    num_blocks: of each model.
    interval: `linear` for TOP's, where the number is the interval in seconds; `log` for 10^(4x-4)
        seconds, which tells intervals of milliseconds apart.
    levels: 0, or how many intervals there are: the number is then rounded up to a multiple of
        1 / levels.
    shortest_s, longest_s: of `log`.
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
        """How many models there are."""
        return len(self.num_blocks)

    @property
    def size(self) -> int:
        """How many numbers an action has."""
        return self.num_models + sum(self.num_blocks)

    @property
    def state_size(self) -> int:
        """How many numbers a state has."""
        return SAMPLES * self.size

    def slices(self) -> list[slice]:
        """What of an action is whose: the launcher's, then each model's."""
        ends = np.cumsum([self.num_models, *self.num_blocks])
        return [slice(int(a), int(b)) for a, b in zip([0, *ends], ends, strict=False)]

    @property
    def num_features(self) -> int:
        """How many numbers `features` gives for an action."""
        blocks = sum(self.num_blocks)
        return self.num_models * max(1, self.levels) + blocks * (blocks - 1) // 2

    def features(self, actions: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
        """(..., num_features): what actions of (..., size) stand for, the same for equal decisions.

        Of each model its interval, where there are levels one number for each of them, 1 for its
        own; of each pair of blocks, whether they are together.
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
        """(..., size): of all actions that stand for the same decision, one and the same.

        An interval is in the middle of its level, where there are levels; blocks that are together
        have the middle of the interval with the number of their first. So it is as far as can be
        from other decisions.
        """
        x = np.clip(actions[..., : self.num_models], 0.0, 1.0)
        if self.levels:
            x = (np.maximum(np.ceil(x * self.levels - 1e-6), 1) - 0.5) / self.levels
        cells = self._cells(actions)
        first = (cells[..., :, None] == cells[..., None, :]).argmax(-1)
        middle = (first + 0.5) / sum(self.num_blocks)
        return np.concatenate([x, middle], axis=-1).astype(actions.dtype)

    def _cells(self, actions: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """(..., blocks): in which of as many equal intervals as there are blocks each is."""
        total = sum(self.num_blocks)
        scaled = (actions[..., self.num_models :] * total).astype(np.int64)
        found: npt.NDArray[np.int64] = np.clip(scaled, 0, total - 1)
        return found

    def intervals_us(self, action: Floats) -> list[float]:
        """The least distance between two dequeues of each model."""
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
        """Blocks whose numbers fall into the same of N equal intervals, N blocks in all, together.

        A number of 1 falls into the last (TOP, section IV-B).
        """
        total = sum(self.num_blocks)
        cells: dict[int, list[Part]] = {}
        parts = [(m, b) for m, count in enumerate(self.num_blocks) for b in range(count)]
        for part, value in zip(parts, action[self.num_models :], strict=True):
            cells.setdefault(min(total - 1, max(0, int(total * value))), []).append(part)
        return combination_of(models, cells.values())

    def sample(self, in_progress: Sequence[Sequence[int]], lengths: Sequence[int]) -> Floats:
        """(size,): how far each queue is from the mean; then of each block whether it runs.

        Parameters
        ----------
        in_progress: of each model the blocks in which its instances are.
        lengths: of the queues. Their distances from the mean are scaled by it, or by 1 where it is
            less, so that inputs stay small; TOP's are not.
        """
        queues = np.asarray(lengths, dtype=np.float64)
        mean = float(queues.mean())
        found = np.zeros(self.size)
        found[: self.num_models] = (queues - mean) / max(1.0, mean)
        for model, part in enumerate(self.slices()[1:]):
            found[part][list(in_progress[model])] = 1.0
        return found

    def state_of(self, run: ServingRun, at_us: Floats) -> Floats:
        """(state_size,): samples of a run at SAMPLES times.

        The simulator of combined blocks does not tell where requests are: the block is told from
        the share of a request's time in flight that has passed.
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
    """TOP's launcher and its agent of each model, trained; all of them as one pass in NumPy."""

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
                f"these weights are not of {count} agents that see {space.state_size} numbers; "
                "train agents for these models"
            )
        # All see the same state: their first layers are one.
        self._first = np.ascontiguousarray(np.concatenate([a[0][0] for a in self._layers], axis=1))
        self._bias = np.concatenate([a[0][1] for a in self._layers])
        ends = np.cumsum([len(a[0][1]) for a in self._layers])
        self._parts = [slice(int(a), int(b)) for a, b in zip([0, *ends], ends, strict=False)]

    @classmethod
    def load(cls, path: str | Path, num_blocks: Sequence[int]) -> Agents:
        """Agents that were saved, for models of so many blocks.

        Raises
        ------
        InputError: the file cannot be read, or holds agents for other models; it is named.
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
                f"the agents `{path}` are for models of {trained} blocks, and these have "
                f"{tuple(num_blocks)}; train agents for these models"
            )
        return cls(Space(trained, interval, int(levels), shortest_s, longest_s), weights)

    def act(self, state: Floats) -> Floats:
        """(size,): the action in a state; two ReLU layers, then a sigmoid."""
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
    """What a decision came to.

    Attributes
    ----------
    state: (state_size,) samples while it was in force.
    figures: utilisation (or what stands for it), the variance of the queues, then the mean latency
        of each model; None where a combined block was too large and nothing ran.
    run: None likewise.
    """

    state: Floats
    figures: Floats | None
    run: ServingRun | None


class Environment:
    """TOP's training environment: a decision in, what serving by it came to out.

    Each step serves the same arrivals from empty queues, so a step's outcome is its decision's.

    Attributes
    ----------
    calls: how many decisions were simulated or refused so far.
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
        """An environment.

        Parameters
        ----------
        serve: serves some arrivals by a combination and intervals in microseconds.
        most: TOP's H, the most blocks in a combined block.
        reward: `paper` rewards utilisation; `throughput` requests served in its place.
        """
        if reward not in ("paper", "throughput"):
            raise InputError(f"`reward` is {reward!r}; it must be `paper` or `throughput`")
        if space.num_blocks != tuple(len(model.blocks) for model in models):
            raise InputError("the space is of other models; give their numbers of blocks")
        self.models = models
        self.space = space
        self.calls = 0
        self._serve = serve
        self._most = most
        self._reward = reward
        self._rng = np.random.default_rng(seed)
        self.state = np.zeros(space.state_size)

    def step(self, action: Floats) -> Outcome:
        """Serve by a decision; a combined block that is too large changes nothing."""
        self.calls += 1
        combination = self.space.combination(self.models, action)
        if max(map(len, combination)) > self._most:
            return Outcome(self.state, None, None)
        run = self._serve(combination, self.space.intervals_us(action))
        at_us = np.sort(self._rng.random(SAMPLES)) * run.end_us
        self.state = self.space.state_of(run, at_us)
        return Outcome(self.state, self._figures(run), run)

    def _figures(self, run: ServingRun) -> Floats:
        means = []
        for model in range(len(self.models)):
            of_model = run.models == model
            # What is still in flight, or waits, has taken until now at least.
            began = np.where(np.isnan(run.dequeued_us), np.inf, run.dequeued_us)[of_model]
            ended = np.where(np.isnan(run.finished_us), run.end_us, run.finished_us)[of_model]
            inside = np.isfinite(began)
            spent = (ended - began)[inside]
            means.append(float(spent.mean()) / 1e3 if len(spent) else run.end_us / 1e3)
        gain = run.utilisation if self._reward == "paper" else run.throughput() / 1e3
        return np.array([gain, run.backlog_variance(samples=50), *means])


@dataclass(frozen=True)
class Score:
    """TOP's Equation 2 with fixed means and deviations.

    r^0 = exp(0.4 U - 0.4 mean L - 0.2 V), r^i = exp(0.4 U - 0.4 L_i - 0.2 V); U, L and V are
    z-scores. The paper does not say over what; here over the figures that it was made of.

    Attributes
    ----------
    mean, deviation: of `Outcome.figures`.
    """

    mean: Floats
    deviation: Floats

    @classmethod
    def of(cls, figures: Sequence[Floats]) -> Score:
        """The z-scores of some outcomes.

        Raises
        ------
        InputError: there are none: every decision was refused.
        """
        if not len(figures):
            raise InputError("every decision had a combined block above `most`; allow larger ones")
        rows = np.stack(list(figures))
        return cls(rows.mean(0), np.maximum(rows.std(0), 1e-9))

    def rewards(self, figures: Floats | None) -> Floats:
        """(agents,): the launcher's, then each model's; 0 where nothing ran."""
        if figures is None:
            return np.zeros(len(self.mean) - 1)
        z = (figures - self.mean) / self.deviation
        latency = np.concatenate([[z[2:].mean()], z[2:]])
        # Beyond ten deviations it is as good or bad as it gets.
        found: Floats = np.exp(np.clip(0.4 * z[0] - 0.4 * latency - 0.2 * z[1], -10.0, 10.0))
        return found

    def team(self, figures: Floats | None) -> float:
        """The mean of all agents' rewards: one number to compare decisions by."""
        return float(self.rewards(figures).mean())
