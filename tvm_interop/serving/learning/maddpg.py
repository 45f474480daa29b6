"""MADDPG for TOP: a launcher and one agent a model, each with a critic that sees all (section V-A).

Lin et al., TPDS 36(2), 2025, Algorithm 1 and Equations 3 and 4; sizes, rates and the point from
which it learns are the paper's. Equation 3 is printed with y in place of the error of the critic:
here its squared error is minimised. The paper names no target rate, no exploration and no buffer:
those of the MADDPG paper (Lowe et al., NeurIPS 2017) and Gaussian noise are taken. `agents="one"`
is DDPG, one agent for the whole action.
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
from ..decisions import Agents, Environment, Floats, Score, Space
from . import checkpoint
from .progress import bar


@dataclass(frozen=True)
class MaddpgConfig:
    """How to train.

    Attributes
    ----------
    steps: decisions, each served once.
    random_steps: the first of them are random, nothing is learned, and the z-scores of the reward
        are made of them (the paper's replay_size).
    critic, actor: widths of the hidden layers.
    agents: `each` for the paper's W + 1, `one` for a single one with the whole action.
    shared_reward: all agents have the mean of their rewards, in place of their own.
    noise: the standard deviation added to actions, from the first to the second; with `candidates`
        how likely each of an action's numbers is drawn anew.
    centring: what the mean square of the actors' outputs, before the sigmoid, adds to their loss.
        Without it they can run into the ends of their range, where many blocks share an interval
        and every decision is refused; the paper names nothing against that, so it is 0.
    updates: after each step.
    actor_update: `gradient` for Equation 4; `candidates` for the critics' choice, see `_choose`,
        with critics that see decisions and learn as much from each of these.
    candidates: how many of them there are in each state, three times.
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
"""Of what critics see that see decisions. Else the many numbers of a state, which are samples and
differ between steps of one decision, hide the few that tell decisions apart."""
_STATES = 8
"""States of a batch in which agents choose among candidates."""
_ROUNDS = 3
"""Times that candidates are drawn, each around the best of those before."""
_REDRAWN = 2.0
"""Numbers of an action drawn anew, in the mean, for a candidate near another."""
_AS_GOOD = 0.01
"""Candidates are as good as the best one if they are below it by no more than this share of the
difference between the best and the worst."""


class Stacked(nn.Module):  # type: ignore[misc]
    """Perceptrons of the same shape, one for each agent, in one pass: (agents, rows, width)."""

    def __init__(self, count: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.matrices = nn.ParameterList()
        self.biases = nn.ParameterList()
        for inputs, outputs in itertools.pairwise(widths):
            bound = inputs**-0.5
            self.matrices.append((torch.rand(count, inputs, outputs) * 2 - 1) * bound)
            self.biases.append((torch.rand(count, 1, outputs) * 2 - 1) * bound)

    def forward(self, rows: Any) -> Any:
        """(agents, rows, outputs)."""
        for i, (matrix, bias) in enumerate(zip(self.matrices, self.biases, strict=True)):
            rows = torch.baddbmm(bias, rows.expand(len(matrix), -1, -1), matrix)
            if i + 1 < len(self.matrices):
                rows = torch.relu(rows)
        return rows


class Actors(nn.Module):  # type: ignore[misc]
    """The agents' policies: of the same state each gives its part of the action."""

    def __init__(self, state_size: int, sizes: Sequence[int], hidden: Sequence[int]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        # All have the outputs of the largest; what is beyond an agent's own is not used.
        self.net = Stacked(len(sizes), [state_size, *hidden, max(sizes)])

    def forward(self, states: Any) -> Any:
        """(rows, size of an action)."""
        return torch.sigmoid(self.logits(states))

    def logits(self, states: Any) -> Any:
        """(rows, size of an action): before the sigmoid."""
        outputs = self.net(states[None])
        return torch.cat([outputs[i, :, :n] for i, n in enumerate(self.sizes)], 1)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """As `decisions.Agents` takes them."""
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
    """A training, step by step.

    Attributes
    ----------
    curve: of each step (the team's reward, the best so far), nan before there are z-scores.
    score: the rewards' z-scores; None before `random_steps`.
    """

    def __init__(
        self, environment: Environment, config: MaddpgConfig, score: Score | None = None
    ) -> None:
        """A training.

        Parameters
        ----------
        score: z-scores to use, so that several trainings have the same; None for those of the
            training's own random steps.
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
        # Utilisation, variance, latencies; nan where nothing ran. Rewards follow from them.
        self._figures = np.full((config.steps, 2 + space.num_models), np.nan)
        # The steps of each decision that was tried, for critics that see decisions.
        self._tried: dict[bytes, list[int]] = {}
        self._decisions: list[list[int]] = []

    def run(
        self,
        until: int | None = None,
        checkpoint_path: str | Path | None = None,
        every: int = 1000,
        quiet: bool = True,
    ) -> Agents | None:
        """Train on to a step (the last one, unless told), saving every so often.

        Returns
        -------
        The agents as they then are; None for those of `agents="one"`, see `decide`.
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
        """(size,): what the agents do, without noise; in the latest state, unless told."""
        chosen = self._states[self.step] if state is None else state
        with torch.no_grad():
            rows = torch.as_tensor(np.asarray(chosen, dtype=np.float32))[None]
            return np.asarray(self.actors(rows)[0].numpy(), dtype=np.float64)

    @property
    def states(self) -> npt.NDArray[np.float32]:
        """(steps + 1, state_size): those that were seen so far, the latest last."""
        return self._states[: self.step + 1]

    def save(self, path: str | Path) -> None:
        """Write all that is needed to go on."""
        rng = [self._rng.bit_generator.state, self.environment._rng.bit_generator.state]
        state = [self.step, asdict(self.config), rng, self.environment.calls]
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
        """Go on from what was saved.

        Raises
        ------
        InputError: the file cannot be read, or is of another configuration.
        """
        arrays = checkpoint.load(path)
        step, config, rng, calls = checkpoint.unpack_text(arrays["state"])
        checkpoint.require_configuration(path, config, self.config, step)
        self.step = step
        self._rng.bit_generator.state, self.environment._rng.bit_generator.state = rng
        self.environment.calls = calls
        self.curve = arrays["curve"].tolist()
        self._states[: step + 1] = arrays["states"]
        self._actions[:step] = arrays["actions"]
        self._figures[:step] = arrays["figures"]
        for i in range(step):
            self._remember(i)
        self.environment.state = self._states[step].astype(np.float64)
        if "mean" in arrays:
            self.score = Score(arrays["mean"], arrays["deviation"])
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
        outcome = self.environment.step(action)
        self._actions[step] = action
        self._states[step + 1] = outcome.state
        if outcome.figures is not None:
            self._figures[step] = outcome.figures
        self._remember(step)
        self.step += 1
        if self.step == config.random_steps and self.score is None:
            rows = self._figures[: self.step]
            self.score = Score.of(rows[~np.isnan(rows[:, 0])])
        if self.score is not None:
            self.curve.append(self.score.team(outcome.figures))
            if self.step >= config.random_steps:
                for _ in range(config.updates):
                    self._update()

    def _explored(self, action: Floats) -> Floats:
        """An action with the noise of this step."""
        config = self.config
        first, last = config.noise
        share = (self.step - config.random_steps) / max(1, config.steps - config.random_steps)
        level = first + (last - first) * share
        if self._sees_decisions:
            redrawn = self._rng.random(len(action)) < level
            return np.where(redrawn, self._rng.random(len(action)), action)
        return np.clip(action + level * self._rng.standard_normal(len(action)), 0.0, 1.0)

    def _remember(self, step: int) -> None:
        """Sort a step under its decision."""
        if self._sees_decisions:
            decision = self.environment.space.features(self._actions[step]).tobytes()
            self._tried.setdefault(decision, []).append(step)
            if len(self._tried[decision]) == 1:
                self._decisions.append(self._tried[decision])

    def _drawn(self) -> npt.NDArray[np.int64]:
        """(batch,): steps to learn from; of critics that see decisions as many of each of these."""
        batch = self.config.batch
        if not self._sees_decisions:
            return self._rng.integers(self.step, size=batch)
        drawn = self._rng.random((batch, 2))
        chosen = [self._decisions[int(x * len(self._decisions))] for x in drawn[:, 0]]
        return np.array([d[int(x * len(d))] for d, x in zip(chosen, drawn[:, 1], strict=True)])

    def _rewards(self, rows: npt.NDArray[np.int64]) -> Any:
        """(agents, rows)."""
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
        # Each agent's own mean, all of them at once: they share no parameters.
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
        """(..., inputs): what a critic is shown."""
        if self._sees_decisions:
            decisions = torch.from_numpy(self.environment.space.features(actions.numpy()))
            return torch.cat([_STATE_SCALE * states, _DECISION_SCALE * decisions], -1)
        return torch.cat([states, actions], -1)

    def _choose(self, states: Any) -> None:
        """Draw the agents towards the joint decision that the critics value most, in each state.

        Rewards are the same for all actions that stand for one decision and jump between them, so
        their gradient is 0 or not there, and Equation 4 climbs what a critic makes up between. Here
        critics see decisions, and the agents choose among candidates together, since a better
        decision may need several of them to change: first what they do, which stays where nothing
        is better. What is learned is the middle of what stands for the decision. (As in Greedy
        Actor-Critic, Neumann et al., ICLR 2023, for the best one.) Of candidates that are as good
        as the best the nearest is taken: where now one and now another of two equal decisions is
        valued more, agents would come to the mean of both, which can be a bad one.
        """
        logits = self.actors.logits(states)
        chosen = torch.sigmoid(logits)
        wanted = self._best_of(states, chosen.detach().numpy())
        self._actor_adam.zero_grad()
        loss = ((chosen - torch.from_numpy(wanted)) ** 2).sum(1).mean()
        (self.config.centring * (logits**2).mean() + loss).backward()
        self._actor_adam.step()

    def _best_of(self, states: Any, chosen: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """(rows, size): from `chosen` on, by candidates near the best, tried ones, and any."""
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
        """Equation 4: through an agent's own action; the others' are as they were."""
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
    """For each row the candidate nearest to `chosen` among those about as good as the best.

    `candidates` is (count, rows, size), `values` (count, rows), and the result (rows, size).
    """
    most = values.max(0)
    as_good = values >= most - _AS_GOOD * (most - values.min(0))
    distances = np.where(as_good, ((candidates - chosen) ** 2).sum(-1), np.inf)
    nearest: npt.NDArray[np.float32] = candidates[distances.argmin(0), np.arange(len(chosen))]
    return nearest


def save_agents(path: str | Path, training: MaddpgTraining) -> None:
    """For `decisions.Agents.load`."""
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
