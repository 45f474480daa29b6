"""Training of TOP's agents with MADDPG (TOP, section V-A).

The agents are a launcher and one agent per model. Each agent has a critic that sees the whole state
and all actions. The algorithm is Algorithm 1 with Equations 3 and 4 of Lin et al., TPDS 36(2),
2025. Layer sizes, learning rates and the step at which learning begins come from the paper.
Equation 3 seems to be misprinted: it has the target y in place of the critic's error. We minimise
the squared error of the critic. The paper specifies no target rate, replay buffer or exploration.
Target rate and replay buffer come from the MADDPG paper (Lowe et al., NeurIPS 2017), and
exploration is Gaussian noise. `agents="one"` gives DDPG: one agent for the whole action.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ...errors import InputError
from ..decisions import Agents, Floats, Process, Score, Space
from . import checkpoint
from .progress import bar


@dataclass(frozen=True)
class MaddpgConfig:
    """The configuration of a training with MADDPG.

    Attributes
    ----------
    steps: number of actions to try. Each is simulated once.
    random_steps: number of initial steps with random actions and without learning (the paper's
        replay_size). The z-scores of the reward are computed from these steps.
    critic, actor: widths of the hidden layers.
    agents: `each` for the W + 1 agents of the paper for W models; `one` for a single agent with the
        whole action.
    shared_reward: whether every agent gets the mean of all rewards instead of its own reward.
    noise: exploration at the first learning step and at the last step, with linear change between
        them. For `gradient`, it is the standard deviation of the noise added to actions. For
        `candidates`, it is the probability to redraw each number of an action.
    centring: weight of a penalty in the loss of the actors. The penalty is the mean square of their
        outputs before the sigmoid. Without a penalty, the actors may come to give only numbers
        close to 0 or 1. Then many blocks share a combined block, and every action is refused. The
        default is 0, because the paper mentions no such penalty.
    updates: number of updates after each step.
    actor_update: `gradient` for Equation 4; `candidates` to let the critics choose among candidate
        actions, see `_choose`. With `candidates`, critics see decisions instead of actions, and all
        decisions are drawn equally often for updates.
    candidates: number of candidate actions per state in each of the three rounds of the choice.
    """

    steps: int = 8000
    random_steps: int = 2000
    batch: int = 100
    gamma: float = 0.95
    learning_rate: float = 1e-3
    actor_rate: float = 1e-4
    target_rate: float = 0.01
    noise: tuple[float, float] = (0.3, 0.05)
    critic: tuple[int, ...] = (1024, 512, 300)
    actor: tuple[int, ...] = (500, 128)
    agents: str = "each"
    shared_reward: bool = False
    centring: float = 0.0
    updates: int = 1
    actor_update: str = "gradient"
    candidates: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if self.agents not in ("each", "one"):
            raise InputError(f"`agents` is {self.agents!r}; it must be `each` or `one`")
        if self.actor_update not in ("gradient", "candidates"):
            raise InputError(
                f"`actor_update` is {self.actor_update!r}; it must be `gradient` or `candidates`"
            )
        if self.random_steps < self.batch:
            raise InputError(
                f"`random_steps` is {self.random_steps}; it must be at least `batch`, {self.batch}"
            )


_STATE_SCALE, _DECISION_SCALE = 0.1, 5.0
"""Factors that multiply the state and the decision in the input of critics that see decisions.

A state has many numbers. They are random samples, so they differ even between steps with the same
decision. Without the factors, the few numbers of the decision would hardly count beside them.
"""
_STATES = 8
"""The number of states per batch for which the agents choose among candidate actions."""
_ROUNDS = 3
"""The number of rounds of candidate actions. Half of a round is near the best action so far."""
_REDRAWN = 2.0
"""The mean number of entries redrawn to make a candidate action near the best action."""
_AS_GOOD = 0.01
"""How close the value of a candidate must be to the best value to count as equally good.

A candidate counts as equally good if its value is below the best value by at most this share of the
difference between the best and the worst value.
"""


class Stacked(nn.Module):  # type: ignore[misc]
    """Perceptrons of the same shape, one per agent, evaluated together: (agents, rows, width)."""

    def __init__(self, count: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.matrices = nn.ParameterList()
        self.biases = nn.ParameterList()
        for inputs, outputs in itertools.pairwise(widths):
            bound = inputs**-0.5
            self.matrices.append((torch.rand(count, inputs, outputs) * 2 - 1) * bound)
            self.biases.append((torch.rand(count, 1, outputs) * 2 - 1) * bound)

    def forward(self, rows: Any) -> Any:
        """Return the outputs of all perceptrons: (agents, rows, outputs)."""
        for i, (matrix, bias) in enumerate(zip(self.matrices, self.biases, strict=True)):
            rows = torch.baddbmm(bias, rows.expand(len(matrix), -1, -1), matrix)
            if i + 1 < len(self.matrices):
                rows = torch.relu(rows)
        return rows


class Actors(nn.Module):  # type: ignore[misc]
    """The policy networks of the agents: each sees the state and gives its part of the action."""

    def __init__(self, state_size: int, sizes: Sequence[int], hidden: Sequence[int]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        # All networks have as many outputs as the largest one. `logits` drops surplus outputs.
        self.net = Stacked(len(sizes), [state_size, *hidden, max(sizes)])

    def forward(self, states: Any) -> Any:
        """Return the actions, shape (rows, size of an action), for states (rows, state_size)."""
        return torch.sigmoid(self.logits(states))

    def logits(self, states: Any) -> Any:
        """Return the outputs of the networks before the sigmoid: (rows, size of an action)."""
        outputs = self.net(states[None])
        return torch.cat([outputs[i, :, :n] for i, n in enumerate(self.sizes)], 1)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the weights in the format of `decisions.Agents`."""
        found = {}
        last = len(self.net.matrices) - 1
        for i, size in enumerate(self.sizes):
            for layer, (matrix, bias) in enumerate(
                zip(self.net.matrices, self.net.biases, strict=True)
            ):
                kept = size if layer == last else matrix.shape[2]
                found[f"actor{i}.{layer}.w"] = matrix[i, :, :kept].detach().numpy().copy()
                found[f"actor{i}.{layer}.b"] = bias[i, 0, :kept].detach().numpy().copy()
        return found


class MaddpgTraining:
    """A training with MADDPG that runs step by step and can be saved and continued.

    Attributes
    ----------
    curve: mean reward of all agents in each step since `score` was set.
    score: z-scores for the rewards; None until `random_steps` steps are done, unless it was given.
    """

    def __init__(
        self, environment: Process, config: MaddpgConfig, score: Score | None = None
    ) -> None:
        """Create a training.

        Parameters
        ----------
        score: z-scores for the rewards. Several trainings can use the same z-scores. With None,
            they are computed from the random steps of this training.
        """
        self.environment = environment
        self.config = config
        self.score = score
        self.step = 0
        self.curve: list[float] = []
        space = environment.space
        self._own = space.slices() if config.agents == "each" else [slice(0, space.size)]
        torch.manual_seed(config.seed)
        self._rng = np.random.default_rng(config.seed)
        sizes = [part.stop - part.start for part in self._own]
        self.actors = Actors(space.state_size, sizes, config.actor)
        self._sees_decisions = config.actor_update == "candidates"
        inputs = space.state_size + (space.num_features if self._sees_decisions else space.size)
        self.critics = Stacked(len(sizes), [inputs, *config.critic, 1])
        self._nets = nn.ModuleList([self.actors, self.critics])
        self._targets = copy.deepcopy(self._nets)
        self._actor_adam = torch.optim.Adam(self.actors.parameters(), config.actor_rate)
        self._critic_adam = torch.optim.Adam(self.critics.parameters(), config.learning_rate)
        self._states = np.zeros((config.steps + 1, space.state_size), dtype=np.float32)
        self._actions = np.zeros((config.steps, space.size), dtype=np.float32)
        # `Outcome.figures` of each step so far, to compute rewards from; nan if nothing ran.
        self._figures = np.full((config.steps, 2 + space.num_models), np.nan)
        # The steps in which each decision was tried. Only critics that see decisions need them.
        self._tried: dict[bytes, list[int]] = {}
        self._decisions: list[list[int]] = []

    def run(
        self,
        until: int | None = None,
        checkpoint_path: str | Path | None = None,
        every: int = 1000,
        quiet: bool = True,
    ) -> Agents | None:
        """Train until a step (by default the last one), and save a checkpoint after `every` steps.

        If the file at `checkpoint_path` exists, a new training first continues from it.

        Returns
        -------
        The trained agents; None with `agents="one"`, for which only `decide` gives actions.
        """
        last = self.config.steps if until is None else min(until, self.config.steps)
        if checkpoint_path is not None and Path(checkpoint_path).exists() and self.step == 0:
            self.load(checkpoint_path)
        with bar("maddpg", self.step, last, quiet) as advance:
            while self.step < last:
                self._one_step()
                recent = self.curve[-200:]
                advance(f"reward {np.mean(recent):.3f}" if recent else "")
                if checkpoint_path is not None and (self.step % every == 0 or self.step == last):
                    self.save(checkpoint_path)
        if self.config.agents == "one":
            return None
        return Agents(self.environment.space, self.actors.arrays())

    def decide(self, state: Floats | None = None) -> Floats:
        """Return the action in a state (by default the latest one), without noise: (size,)."""
        chosen = self._states[self.step] if state is None else state
        with torch.no_grad():
            rows = torch.as_tensor(np.asarray(chosen, dtype=np.float32))[None]
            return np.asarray(self.actors(rows)[0].numpy(), dtype=np.float64)

    @property
    def states(self) -> npt.NDArray[np.float32]:
        """The states seen so far, the latest last: (steps done + 1, state_size)."""
        return self._states[: self.step + 1]

    def save(self, path: str | Path) -> None:
        """Write a checkpoint from which the training can continue."""
        rng = self._rng.bit_generator.state
        state = [self.step, asdict(self.config), rng, self.environment.saved()]
        arrays: checkpoint.Arrays = {
            "state": checkpoint.pack_text(state),
            "curve": np.array(self.curve),
            "states": self._states[: self.step + 1],
            "actions": self._actions[: self.step],
            "figures": self._figures[: self.step],
            **checkpoint.pack_module("nets", self._nets),
            **checkpoint.pack_module("targets", self._targets),
            **checkpoint.pack_adam("actor_adam", self._actor_adam),
            **checkpoint.pack_adam("critic_adam", self._critic_adam),
        }
        if self.score is not None:
            arrays |= {"mean": self.score.mean, "deviation": self.score.deviation}
        checkpoint.save(path, arrays)

    def load(self, path: str | Path) -> None:
        """Load a checkpoint, so that `run` continues from it.

        Raises
        ------
        InputError: the file cannot be read, or is of another configuration.
        """
        arrays = checkpoint.load(path)
        step, config, rng, environment = checkpoint.unpack_text(arrays["state"])
        checkpoint.require_configuration(path, config, self.config, step)
        self.step = step
        self._rng.bit_generator.state = rng
        self.curve = arrays["curve"].tolist()
        self._states[: step + 1] = arrays["states"]
        self._actions[:step] = arrays["actions"]
        self._figures[:step] = arrays["figures"]
        for i in range(step):
            self._remember(i)
        self.environment.restore(environment, arrays["actions"])
        self.environment.state = self._states[step].astype(np.float64)
        if "mean" in arrays:
            self.score = Score(arrays["mean"], arrays["deviation"], self.environment.rule)
        checkpoint.unpack_module("nets", self._nets, arrays)
        checkpoint.unpack_module("targets", self._targets, arrays)
        checkpoint.unpack_adam("actor_adam", self._actor_adam, arrays)
        checkpoint.unpack_adam("critic_adam", self._critic_adam, arrays)

    def _one_step(self) -> None:
        config, step = self.config, self.step
        space = self.environment.space
        if step < config.random_steps:
            action = self._rng.random(space.size)
        else:
            action = self._explored(self.decide())
        self._actions[step] = action
        outcome = self.environment.step(self._actions[step].astype(np.float64))
        self._states[step + 1] = outcome.state
        if outcome.figures is not None:
            self._figures[step] = outcome.figures
        self._remember(step)
        self.step += 1
        if self.step == config.random_steps and self.score is None:
            rows = self._figures[: self.step]
            self.score = Score.of(rows[~np.isnan(rows[:, 0])], self.environment.rule)
        if self.score is not None:
            self.curve.append(self.score.team(outcome.figures))
            if self.step >= config.random_steps:
                for _ in range(config.updates):
                    self._update()

    def _explored(self, action: Floats) -> Floats:
        """Return `action` with exploration noise; the noise level depends on the current step."""
        config = self.config
        first, last = config.noise
        share = (self.step - config.random_steps) / max(1, config.steps - config.random_steps)
        level = first + (last - first) * share
        if self._sees_decisions:
            redrawn = self._rng.random(len(action)) < level
            return np.where(redrawn, self._rng.random(len(action)), action)
        return np.clip(action + level * self._rng.standard_normal(len(action)), 0.0, 1.0)

    def _remember(self, step: int) -> None:
        """Add `step` to the list of steps in which the same decision was tried."""
        if self._sees_decisions:
            decision = self.environment.space.features(self._actions[step]).tobytes()
            self._tried.setdefault(decision, []).append(step)
            if len(self._tried[decision]) == 1:
                self._decisions.append(self._tried[decision])

    def _drawn(self) -> npt.NDArray[np.int64]:
        """Return the indices of the recorded steps in a random batch: (batch,).

        If critics see decisions, first a decision is drawn, and then one of the steps that tried
        this decision. So all decisions are equally likely.
        """
        batch = self.config.batch
        if not self._sees_decisions:
            return self._rng.integers(self.step, size=batch)
        drawn = self._rng.random((batch, 2))
        chosen = [self._decisions[int(x * len(self._decisions))] for x in drawn[:, 0]]
        return np.array([d[int(x * len(d))] for d, x in zip(chosen, drawn[:, 1], strict=True)])

    def _rewards(self, rows: npt.NDArray[np.int64]) -> Any:
        """Return each agent's rewards in the steps with the indices `rows`: (agents, rows)."""
        assert self.score is not None
        found = np.stack(
            [
                self.score.rewards(None if np.isnan(figures[0]) else figures)
                for figures in self._figures[rows]
            ],
            axis=1,
        )
        if self.config.shared_reward or self.config.agents == "one":
            found = np.broadcast_to(found.mean(0), (len(self._own), len(rows)))
        return torch.from_numpy(found.astype(np.float32))

    def _update(self) -> None:
        config = self.config
        rows = self._drawn()
        states = torch.from_numpy(self._states[rows])
        after = torch.from_numpy(self._states[rows + 1])
        actions = torch.from_numpy(self._actions[rows])
        target_actors, target_critics = self._targets
        with torch.no_grad():
            future = self._seen(after, target_actors(after))[None]
            wanted = self._rewards(rows) + config.gamma * target_critics(future)[..., 0]
        found = self.critics(self._seen(states, actions)[None])[..., 0]
        self._critic_adam.zero_grad()
        # Critics share no parameters, so the sum of all losses trains each critic by its own loss.
        ((found - wanted) ** 2).mean(1).sum().backward()
        self._critic_adam.step()
        if self._sees_decisions:
            self._choose(states[:_STATES])
        else:
            self._climb(states, actions)
        with torch.no_grad():
            for target, source in zip(
                self._targets.parameters(), self._nets.parameters(), strict=True
            ):
                target.lerp_(source, config.target_rate)

    def _seen(self, states: Any, actions: Any) -> Any:
        """Return the input of a critic: (..., inputs)."""
        if self._sees_decisions:
            decisions = torch.from_numpy(self.environment.space.features(actions.numpy()))
            return torch.cat([_STATE_SCALE * states, _DECISION_SCALE * decisions], -1)
        return torch.cat([states, actions], -1)

    def _choose(self, states: Any) -> None:
        """Move the actors towards the joint decision that the critics rate highest in each state.

        All actions that stand for one decision have the same reward, and rewards jump between
        decisions. The gradient of the reward is therefore 0 or undefined, and Equation 4 cannot use
        it. So here critics rate decisions, and the agents choose among candidates.

        The agents choose among candidates jointly, because a better decision may need several
        agents to change. The current decision is one of the candidates, and stays if no other one
        is better. The actors learn the canonical action of the chosen decision. In the same way,
        the actors of Greedy Actor-Critic (Neumann et al., ICLR 2023) learn the best candidates.

        Among candidates about as good as the best one, the nearest to the current action is chosen.
        Otherwise noise in the critics could favour first one and then the other of two equally good
        decisions. The actors would then converge to the mean of both, which can be a bad decision.
        """
        logits = self.actors.logits(states)
        chosen = torch.sigmoid(logits)
        wanted = self._best_of(states, chosen.detach().numpy())
        self._actor_adam.zero_grad()
        loss = ((chosen - torch.from_numpy(wanted)) ** 2).sum(1).mean()
        (self.config.centring * (logits**2).mean() + loss).backward()
        self._actor_adam.step()

    def _best_of(self, states: Any, chosen: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the canonical action of the best decision found for each state: (rows, size).

        The search starts from `chosen`. In each round, half of the candidates are near the best
        action so far, a quarter are actions of earlier steps, and a quarter are random.
        """
        space = self.environment.space
        count, (rows, size) = self.config.candidates, chosen.shape
        best = space.canonical(chosen)
        candidates, found = [], []
        kind = np.arange(count)[:, None, None] % 4
        for _ in range(_ROUNDS):
            shape = (count, rows, size)
            anywhere = self._rng.random(shape)
            redrawn = self._rng.random(shape) < _REDRAWN / size
            tried = self._actions[self._rng.integers(self.step, size=(count, rows))]
            drawn = np.where(redrawn, anywhere, best)
            drawn = np.where(kind == 1, tried, np.where(kind == 3, anywhere, drawn))
            drawn = space.canonical(drawn.astype(np.float32))
            drawn[0] = best
            with torch.no_grad():
                seen = self._seen(states.expand(count, -1, -1), torch.from_numpy(drawn))
                values = self.critics(seen.reshape(1, count * rows, -1))[..., 0].mean(0)
            candidates.append(drawn)
            found.append(values.reshape(count, rows).numpy())
            best = drawn[found[-1].argmax(0), np.arange(rows)]
        return _nearest_of_the_best(np.concatenate(candidates), np.concatenate(found), chosen)

    def _climb(self, states: Any, actions: Any) -> None:
        """Update the actors by Equation 4.

        For each agent's gradient, the agent's own numbers of the action come from its actor. The
        numbers of the other agents come from the recorded step.
        """
        logits = self.actors.logits(states)
        chosen = torch.sigmoid(logits)
        mixed = []
        for part in self._own:
            own = torch.zeros_like(actions)
            own[:, part] = 1.0
            mixed.append(torch.cat([states, torch.where(own > 0, chosen, actions)], 1))
        self.critics.requires_grad_(False)
        value = self.critics(torch.stack(mixed))[..., 0]
        self._actor_adam.zero_grad()
        (self.config.centring * (logits**2).mean() - value.mean(1).sum()).backward()
        self._actor_adam.step()
        self.critics.requires_grad_(True)


def _nearest_of_the_best(
    candidates: npt.NDArray[np.float32],
    values: npt.NDArray[np.float32],
    chosen: npt.NDArray[np.float32],
) -> npt.NDArray[np.float32]:
    """Return, for each row, one of the candidates that are about as good as the best candidate.

    `_AS_GOOD` says how much worse a candidate may be. Among the candidates that are good enough,
    the function returns the candidate nearest to `chosen`.

    `candidates` has the shape (count, rows, size), `values` has the shape (count, rows), and the
    result has the shape (rows, size).
    """
    most = values.max(0)
    as_good = values >= most - _AS_GOOD * (most - values.min(0))
    distances = np.where(as_good, ((candidates - chosen) ** 2).sum(-1), np.inf)
    nearest: npt.NDArray[np.float32] = candidates[distances.argmin(0), np.arange(len(chosen))]
    return nearest


def save_agents(path: str | Path, training: MaddpgTraining) -> None:
    """Write the agents of a training to a file that `decisions.Agents.load` reads."""
    space: Space = training.environment.space
    checkpoint.save(
        path,
        {
            **training.actors.arrays(),
            "interval": np.array(space.interval),
            "scale": np.array([space.levels, space.shortest_s, space.longest_s]),
            "num_blocks": np.array(space.num_blocks),
        },
    )
