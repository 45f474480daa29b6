"""Training of GPG, the graph network that divides a combined block into stages (TOP, section V-B).

As in IOS, an ending is a set of operators that can form the last stage of the remaining operators.
GPG has two variants, `gpg` and `gpg-scored`. The module `scheduling.gpg` has a scheduler of the
same name for each:

- `gpg` follows the paper. A policy network chooses an ending by one number, and a critic rates the
  number (deterministic policy gradient). The paper mentions no replay buffer, no target networks
  and no exploration. This implementation adds them, because without exploration the policy never
  tries another ending.
- `gpg-scored` scores every ending by two predictions: the latency of the stage, and the makespan of
  the operators that remain. Both are regressions. The networks learn to predict the lowest makespan
  found so far for the remaining operators.

The reward in the paper is the sum of gamma^t exp(-l_t), where l_t is the latency of stage t. This
sum is largest for sequential execution, because every stage adds a reward. `reward="paper"` keeps
this sum for comparison. The default reward is -l_t divided by the sequential latency, with gamma 1.
The sum of the default rewards is minus the makespan, relative to the sequential latency.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...errors import InputError
from ...latency.base import LatencyModel, op_latencies
from ...program.graph import OpGraph
from ...scheduling.endings import Endings, Mask, bits, endings
from ...scheduling.gpg import MAX_GROUP_OPS, MAX_GROUPS, Ending, numbered_by, scored
from ...scheduling.gpg_network import (
    INPUTS,
    WIDTH,
    Block,
    Floats,
    Weights,
    pooled,
)
from . import checkpoint
from .gpg_network import GraphNetwork, Union, floats, perceptron
from .progress import bar

_LEAST_M = 1e-6


@dataclass(frozen=True)
class GpgConfig:
    """The configuration of a training of GPG.

    Attributes
    ----------
    variant: `gpg` or `gpg-scored`.
    reward: reward of the variant `gpg`: `mended` (the default) or `paper`, see the docstring of the
        module.
    steps: number of updates. One block is scheduled before each update.
    pack: number of blocks per update. In an update, the graph network evaluates each of them once.
    states: number of states (sets of remaining operators) per block in an update.
    replay: number of stages kept for each block; older stages are dropped.
    noise: exploration at the beginning and at the end of the training, with linear change between
        them. For `gpg`, it is the standard deviation of the noise added to the number m that
        chooses an ending. For `gpg-scored`, it is the probability to draw one of the eight best
        endings.
    gamma: discount factor of `reward="paper"`. The mended reward always has the discount factor 1.
    features: what the network knows of an operator: `device`, `layers` or `both`, see
        `scheduling.gpg_network.INPUTS`.
    """

    variant: str = "gpg-scored"
    reward: str = "mended"
    steps: int = 4000
    pack: int = 8
    states: int = 8
    replay: int = 512
    learning_rate: float = 1e-3
    target_rate: float = 0.01
    noise: tuple[float, float] = (0.3, 0.02)
    gamma: float = 0.95
    seed: int = 0
    features: str = "device"

    def __post_init__(self) -> None:
        if self.features not in INPUTS:
            raise InputError(
                f"`features` is {self.features!r}; it must be one of {', '.join(INPUTS)}"
            )
        if self.variant not in ("gpg", "gpg-scored") or self.reward not in ("mended", "paper"):
            raise InputError(
                f"there is no variant `{self.variant}` with the reward `{self.reward}`; variants "
                "are gpg and gpg-scored, rewards are mended and paper"
            )


@dataclass(frozen=True)
class Task:
    """A block to train on, and the latency model for its stages."""

    block: Block
    latency: LatencyModel

    @classmethod
    def of(cls, graph: OpGraph, latency: LatencyModel) -> Task:
        """Create a task from a graph. The whole graph counts as one block."""
        op_us = op_latencies(latency, graph.names)
        return cls(Block.of(graph, graph.topological_order(), op_us, latency), latency)

    def price(self, candidates: Sequence[Ending]) -> Floats:
        """Return the latency of each of k endings when it runs as a stage: (k,) microseconds."""
        ops = self.block.ops
        stages = [[[ops[i] for i in bits(group)] for group in ending] for ending in candidates]
        return np.asarray(self.latency.stages(stages), dtype=np.float64)


@dataclass(frozen=True)
class _Step:
    """One chosen stage.

    Attributes
    ----------
    before: the operators that remained before the choice.
    ending: the chosen ending.
    m: a number from 0 to 1. The variant `gpg` uses it to choose one of the numbered endings.
    us: latency of the stage in microseconds.
    """

    before: Mask
    ending: Ending
    m: float
    us: float


class _Replay:
    """The stages that were chosen last for each block, and the lowest known makespans.

    For each block, the most recently chosen stages are kept, up to a maximum number. For each set
    of operators that remained before a choice, the lowest known makespan is kept too.
    """

    def __init__(self, tasks: Sequence[Task], most: int) -> None:
        self.steps: list[list[_Step]] = [[] for _ in tasks]
        self.least_us: list[dict[Mask, float]] = [{0: 0.0} for _ in tasks]
        self._most = most

    def add(self, task: int, steps: Sequence[_Step]) -> None:
        """Add the stages of one schedule of a block, in the order of choice."""
        least = self.least_us[task]
        rest_us = 0.0
        for step in reversed(steps):
            rest_us = step.us + min(rest_us, least[step.before & ~sum(step.ending)])
            least[step.before] = min(least.get(step.before, math.inf), rest_us)
        self.steps[task] = (self.steps[task] + list(steps))[-self._most :]

    def packed(self) -> checkpoint.Arrays:
        rows = [
            [[hex(s.before), [hex(g) for g in s.ending], s.m, s.us] for s in steps]
            for steps in self.steps
        ]
        least = [{hex(mask): us for mask, us in known.items()} for known in self.least_us]
        return {
            "replay/steps": checkpoint.pack_text(rows),
            "replay/least": checkpoint.pack_text(least),
        }

    def unpack(self, arrays: checkpoint.Arrays) -> None:
        self.steps = [
            [_Step(int(b, 16), tuple(int(g, 16) for g in e), m, us) for b, e, m, us in rows]
            for rows in checkpoint.unpack_text(arrays["replay/steps"])
        ]
        self.least_us = [
            {int(mask, 16): us for mask, us in known.items()}
            for known in checkpoint.unpack_text(arrays["replay/least"])
        ]


class GpgTraining:
    """A training of GPG that runs step by step and can be saved and continued."""

    def __init__(self, tasks: Sequence[Task], config: GpgConfig) -> None:
        if not tasks:
            raise InputError("there are no blocks to learn from; give at least one")
        self.tasks = list(tasks)
        self.config = config
        self.step = 0
        self.curve: list[tuple[int, float]] = []
        self._rng = np.random.default_rng(config.seed)
        torch.manual_seed(config.seed)
        self.net = GraphNetwork(config.variant, config.features)
        self._adam = torch.optim.Adam(self.net.parameters(), config.learning_rate)
        self._is_scored = config.variant == "gpg-scored"
        if not self._is_scored:
            self.critic = perceptron(WIDTH + 1, 1024, 512, 300, 1)
            self._critic_adam = torch.optim.Adam(
                [*self.critic.parameters(), *self._graph_parameters()], config.learning_rate
            )
            self._adam = torch.optim.Adam(self.net.mu.parameters(), config.learning_rate * 0.1)
            self._targets = copy.deepcopy(nn.ModuleList([self.net, self.critic]))
        self._replay = _Replay(tasks, config.replay)
        self._ratios: list[float] = []

    def run(
        self,
        until: int | None = None,
        checkpoint_path: str | Path | None = None,
        every: int = 500,
        quiet: bool = True,
    ) -> Weights:
        """Train until a step and return the weights.

        If the file at `checkpoint_path` exists, a new training first continues from it.

        Parameters
        ----------
        until: number of the step to stop at; None for the last one.
        checkpoint_path: file to save the training to; None to save nothing.
        every: number of steps between two checkpoints.
        quiet: whether to show no progress bar.
        """
        last = self.config.steps if until is None else min(until, self.config.steps)
        if checkpoint_path is not None and Path(checkpoint_path).exists() and self.step == 0:
            self.load(checkpoint_path)
        with bar(self.config.variant, self.step, last, quiet) as advance:
            while self.step < last:
                self._one_step()
                advance(f"makespan {np.mean(self._ratios[-200:]):.3f} of sequential")
                if checkpoint_path is not None and (self.step % every == 0 or self.step == last):
                    self.save(checkpoint_path)
        return self.net.weights()

    def save(self, path: str | Path) -> None:
        """Write a checkpoint from which the training can continue."""
        arrays = {
            "state": checkpoint.pack_text(
                [self.step, asdict(self.config), self._rng.bit_generator.state, self.curve,
                 self._ratios[-200:]]
            ),
            **checkpoint.pack_module("net", self.net),
            **checkpoint.pack_adam("adam", self._adam),
            **self._replay.packed(),
        }  # fmt: skip
        if not self._is_scored:
            arrays |= checkpoint.pack_module("critic", self.critic)
            arrays |= checkpoint.pack_module("targets", self._targets)
            arrays |= checkpoint.pack_adam("critic_adam", self._critic_adam)
        checkpoint.save(path, arrays)

    def load(self, path: str | Path) -> None:
        """Load a checkpoint, so that `run` continues from it.

        Raises
        ------
        InputError: the file cannot be read, or is of another configuration.
        """
        arrays = checkpoint.load(path)
        step, config, rng, curve, ratios = checkpoint.unpack_text(arrays["state"])
        checkpoint.require_configuration(path, config, self.config, step)
        self.step, self._ratios = step, ratios
        self.curve = [tuple(point) for point in curve]
        self._rng.bit_generator.state = rng
        checkpoint.unpack_module("net", self.net, arrays)
        checkpoint.unpack_adam("adam", self._adam, arrays)
        self._replay.unpack(arrays)
        if not self._is_scored:
            checkpoint.unpack_module("critic", self.critic, arrays)
            checkpoint.unpack_module("targets", self._targets, arrays)
            checkpoint.unpack_adam("critic_adam", self._critic_adam, arrays)

    def _graph_parameters(self) -> list[Any]:
        return [p for name, p in self.net.named_parameters() if not name.startswith("mu.")]

    def _one_step(self) -> None:
        first, last = self.config.noise
        noise = first + (last - first) * self.step / max(1, self.config.steps)
        weights = self.net.weights()
        number = int(self._rng.integers(len(self.tasks)))
        task = self.tasks[number]
        summands = pooled(weights, task.block)

        def choose(found: Endings, remaining: Mask) -> _Step:
            if self._is_scored:
                return self._scored_step(number, weights, summands, found, remaining, noise)
            return self._numbered_step(number, weights, summands, found, remaining, noise)

        steps = schedule_by(task, choose)
        self._replay.add(number, steps)
        self._ratios.append(sum(s.us for s in steps) / max(task.block.total_us, 1e-12))
        known = [i for i, kept in enumerate(self._replay.steps) if kept]
        pack = self._rng.choice(known, min(self.config.pack, len(known)), replace=False).tolist()
        if self._is_scored:
            self._regress(pack)
        else:
            self._improve(pack)
        self.step += 1
        if self.step % 50 == 0:
            self.curve.append((self.step, float(np.mean(self._ratios[-200:]))))
            self._ratios = self._ratios[-200:]

    def _scored_step(
        self, number: int, weights: Weights, summands: Floats, found: Endings, remaining: Mask,
        noise: float,
    ) -> _Step:  # fmt: skip
        task = self.tasks[number]
        candidates, stage_us, rest_us = scored(weights, task.block, summands, found, remaining)
        order = np.argsort(stage_us + rest_us, kind="stable")[:16]
        exact = task.price([candidates[i] for i in order])
        least = self._replay.least_us[number]
        # Let a makespan be known for the operators that remain after an ending. This makespan plus
        # the latency of the ending is then a makespan of the operators that remain now.
        for i, us in zip(order, exact, strict=True):
            after = remaining & ~sum(candidates[i])
            if after in least:
                least[remaining] = min(least.get(remaining, math.inf), us + least[after])
        place = int(np.argmin(exact + rest_us[order]))
        if self._rng.random() < noise:
            place = int(self._rng.integers(min(8, len(order))))
        return _Step(remaining, candidates[order[place]], 0.0, float(exact[place]))

    def _numbered_step(
        self, number: int, weights: Weights, summands: Floats, found: Endings, remaining: Mask,
        noise: float,
    ) -> _Step:  # fmt: skip
        task = self.tasks[number]
        count = found.count
        m = (numbered_by(weights, task.block, summands, found, remaining) + 0.5) / count
        m = float(np.clip(m + noise * self._rng.standard_normal(), 0.0, 1 - _LEAST_M))
        ending = found.numbered(int(m * 2**53) * count >> 53)
        return _Step(remaining, ending, m, float(task.price([ending])[0]))

    def _sampled(self, pack: Sequence[int]) -> list[tuple[int, list[_Step]]]:
        found = []
        for number in pack:
            kept = self._replay.steps[number]
            picked = self._rng.integers(len(kept), size=min(self.config.states, len(kept)))
            found.append((number, [kept[i] for i in picked]))
        return found

    def _regress(self, pack: Sequence[int]) -> None:
        """Update the networks of `gpg-scored` by regression.

        The targets are the latency of each stage, and the lowest known makespan of the operators
        that remain after the stage.
        """
        sampled = self._sampled(pack)
        union = Union([self.tasks[number].block for number, _ in sampled])
        members, leaves, state, ending = [], [], [], []
        stage_bounds, rest_bounds, stage_us, rest_us = [], [], [], []
        for number, steps in sampled:
            block, least = self.tasks[number].block, self._replay.least_us[number]
            taken = [sum(step.ending) for step in steps]
            after = [step.before & ~mask for step, mask in zip(steps, taken, strict=True)]
            chosen = [step.ending for step in steps]
            rows, left = block.rows(taken), block.rows(after)
            members.append(rows)
            leaves.append(block.leaves(left))
            ending.append(block.ending_scalars(chosen, rows))
            state.append(block.state_scalars(left, leaves[-1]))
            stage_bounds.append(np.stack(block.ending_bounds_us(chosen)))
            rest_bounds.append(np.stack(block.bounds_us(left)))
            stage_us += [step.us for step in steps]
            rest_us += [least[mask] for mask in after]
        summands = self.net.summands(union)
        stage_rows = torch.cat([union.spread(members) @ summands, _rows(ending)], 1)
        z = self.net.h2(union.spread(leaves) @ summands)
        rest_rows = torch.cat([z, _rows(state)], 1)
        loss = _loss(self.net.stage(stage_rows), np.concatenate(stage_bounds, 1), stage_us)
        loss = loss + _loss(self.net.rest(rest_rows), np.concatenate(rest_bounds, 1), rest_us)
        self._adam.zero_grad()
        loss.backward()
        self._adam.step()

    def _improve(self, pack: Sequence[int]) -> None:
        """Update `gpg` by Equations 7 and 8 of the paper.

        The loss of the critic is its squared error, which replaces the loss of Equation 7.
        """
        config = self.config
        sampled = self._sampled(pack)
        union = Union([self.tasks[number].block for number, _ in sampled])
        before, after, rewards, m, goes_on = [], [], [], [], []
        for number, steps in sampled:
            block = self.tasks[number].block
            left = [step.before & ~sum(step.ending) for step in steps]
            before.append(block.leaves(block.rows([step.before for step in steps])))
            after.append(block.leaves(block.rows(left)))
            goes_on += [mask != 0 for mask in left]
            m += [step.m for step in steps]
            if config.reward == "paper":
                rewards += [math.exp(-step.us / 1e3) for step in steps]
            else:
                rewards += [-step.us / max(block.total_us, 1e-12) for step in steps]
        gamma = config.gamma if config.reward == "paper" else 1.0
        target_net, target_critic = self._targets
        with torch.no_grad():
            z_next = target_net.h2(union.spread(after) @ target_net.summands(union))
            m_next = torch.sigmoid(target_net.mu(z_next))
            value = target_critic(torch.cat([z_next, m_next], 1))[:, 0]
            wanted = floats(rewards) + gamma * floats(goes_on) * value
        z = self.net.h2(union.spread(before) @ self.net.summands(union))
        found = self.critic(torch.cat([z, floats(m)[:, None]], 1))[:, 0]
        self._critic_adam.zero_grad()
        ((found - wanted) ** 2).mean().backward()
        self._critic_adam.step()
        z = z.detach()
        actor = -self.critic(torch.cat([z, torch.sigmoid(self.net.mu(z))], 1)).mean()
        self._adam.zero_grad()
        actor.backward()
        self._adam.step()
        with torch.no_grad():
            ours = nn.ModuleList([self.net, self.critic])
            for target, source in zip(self._targets.parameters(), ours.parameters(), strict=True):
                target.lerp_(source, config.target_rate)


def schedule_by(task: Task, choose: Callable[[Endings, Mask], _Step]) -> list[_Step]:
    """Schedule a block by Algorithm 2 of the paper: choose endings until no operator remains."""
    steps = []
    remaining = (1 << len(task.block)) - 1
    while remaining:
        found = endings(task.block.successors, remaining, MAX_GROUP_OPS, MAX_GROUPS)
        steps.append(choose(found, remaining))
        remaining &= ~sum(steps[-1].ending)
    return steps


def save_weights(path: str | Path, weights: Weights) -> None:
    """Write weights to a file for the option `weights` of the schedulers `gpg` and `gpg-scored`."""
    checkpoint.save(path, {key: value.astype(np.float32) for key, value in weights.items()})


def _loss(logits: Any, bounds_us: Floats, us: Sequence[float]) -> Any:
    """Return the mean squared error of predictions, relative to their upper bounds.

    Parameters
    ----------
    logits: (rows, 1) outputs of a network. The sigmoid of a logit, from 0 to 1, says where the
        prediction lies between the lower bound and the upper bound.
    bounds_us: (2, rows) lower and upper bounds in microseconds.
    us: (rows,) true values in microseconds.
    """
    low, high = bounds_us
    is_open = high > 0
    scale = np.where(is_open, high, 1.0)
    share = torch.sigmoid(logits[:, 0])
    guess = floats(low / scale) + floats((high - low) / scale) * share
    return ((guess - floats(np.where(is_open, np.array(us) / scale, 0.0))) ** 2).mean()


def _rows(parts: Sequence[Floats]) -> Any:
    return floats(np.concatenate(parts))
