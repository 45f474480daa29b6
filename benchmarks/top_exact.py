"""Compares MADDPG with the exact optimum on a small case.

In this case two models of two blocks each are served, so there are few enough decisions to simulate
all.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.top_cells import SEARCHES
from tvm_interop.latency.contended import ContendedLatency
from tvm_interop.program.graph import OpGraph
from tvm_interop.serving import (
    Combination,
    Programs,
    ServedModel,
    ServingDevice,
    ServingRun,
    periodic,
    simulate_combined,
)
from tvm_interop.serving.decisions import Environment, Floats, Outcome, Score, Space
from tvm_interop.serving.learning.maddpg import MaddpgConfig, MaddpgTraining

LEVELS = 5
CASES = {
    "room for all": ServingDevice(4.0, 1.0, 0.03, 0.0, 5.0),
    "crowded": ServingDevice(3.0, 1.0, 0.1, 0.0, 5.0),
}
"""Two devices. On the first it is best to run all blocks together, as often as possible. On the
second device the best intervals differ between the models, and both longer and shorter intervals
are worse."""
CONFIG = MaddpgConfig(
    steps=3000, random_steps=500, critic=(128, 128, 64), actor=(64, 64), actor_rate=3e-4
)
MENDED = replace(CONFIG, gamma=0.0, shared_reward=True, actor_update="candidates")
"""Our corrected learner. The outcome of a step depends only on the decision of that step, so
rewards are not discounted. All agents share one reward. Critics see decisions instead of actions,
and agents choose among candidate actions."""
Key = tuple[Combination, int, int]


@dataclass(frozen=True)
class SmallCase:
    """Two models on a device, and the space of decisions.

    Attributes
    ----------
    mean_us: mean latency of the models alone, in microseconds.
    """

    programs: Programs
    space: Space
    mean_us: float

    @classmethod
    def on(cls, device: ServingDevice) -> SmallCase:
        """Create the case: its two models, on the device of a data sheet."""
        programs = Programs([_model("a", 1, device.cores), _model("b", 2, device.cores)], device)
        mean_us = float(np.mean([programs.model_us(m) for m in (0, 1)]))
        space = Space((2, 2), levels=LEVELS, shortest_s=0.7e-6 * mean_us, longest_s=8e-6 * mean_us)
        return cls(programs, space, mean_us)

    def environment(self, seed: int) -> Environment:
        """An environment for reinforcement learning in which requests arrive periodically.

        The rate of requests is 1.5 times the throughput of one instance at a time.
        """
        seconds = 150 * self.mean_us / 1e6
        arrivals = periodic([0.75e6 / self.mean_us] * 2, seconds)

        def serve(combination: Combination, intervals: list[float]) -> ServingRun:
            return simulate_combined(
                self.programs, arrivals, combination, seconds, interval_us=intervals
            )

        return Environment(self.programs.models, self.space, serve, seed=seed)

    def every_decision(self) -> dict[Key, Outcome]:
        """Simulate all 375 decisions: 15 partitions of four blocks, and 5 by 5 intervals."""
        environment = self.environment(0)
        found: dict[Key, Outcome] = {}
        for labels in itertools.product(range(4), repeat=4):
            for a, b in itertools.product(range(1, LEVELS + 1), repeat=2):
                action = np.array(
                    [a / LEVELS, b / LEVELS, *[(label + 0.5) / 4 for label in labels]]
                )
                key = self.key(action)
                if key not in found:
                    found[key] = environment.step(action)
        return found

    def key(self, action: Floats) -> Key:
        """The decision of an action: the combination, and the level of each interval."""
        levels = [max(1, int(np.ceil(x * LEVELS - 1e-9))) for x in action[:2]]
        return self.space.combination(self.programs.models, action), levels[0], levels[1]


def _model(name: str, seed: int, cores: float) -> ServedModel:
    """A model with random latencies and two blocks.

    The first block is a diamond. The second has two operators, and a third that joins them.
    """
    rng = np.random.default_rng(seed)
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6)]
    graph = OpGraph.from_edges(7, edges)
    latency = ContendedLatency(
        rng.uniform(20, 60, 7), cores, 1.0, rng.choice([1.0, 2.0, 3.0], 7),
        rng.choice([0.0, 0.3, 0.6], 7),
    )  # fmt: skip
    return ServedModel.priced(name, graph, latency, blocks=[[0, 1, 2, 3], [4, 5, 6]])


def train_and_compare(case: str, config: MaddpgConfig) -> dict[str, Any]:
    """Train agents, and compare the reward of their final decision with the best of all 375.

    The z-scores of the reward come from the random steps of the training itself.

    Parameters
    ----------
    case: a key of `CASES`.
    """
    small = SmallCase.on(CASES[case])
    outcomes = small.every_decision()
    training = MaddpgTraining(small.environment(config.seed), config)
    decisions: list[tuple[int, Key]] = []
    while training.step < config.steps:
        training.run(max(config.random_steps, training.step + 250))
        decisions.append((training.step, small.key(training.decide())))
    assert training.score is not None
    rewards = {key: training.score.team(found.figures) for key, found in outcomes.items()}
    ranked = sorted(rewards.values(), reverse=True)
    decided = decisions[-1][1]
    in_states = [
        rewards[small.key(training.decide(state))] / ranked[0] for state in training.states[-200:]
    ]
    return {
        "case": case,
        "seed": config.seed,
        "steps": config.steps,
        "decisions": len(outcomes),
        "final over best": rewards[decided] / ranked[0],
        "calls": training.environment.calls,
        "least over best in the last 200 states": min(in_states),
        "curve": [(step, rewards[key] / ranked[0]) for step, key in decisions],
        "visited over best": max(training.curve) / ranked[0],
        "next best over best": [r / ranked[0] for r in ranked[1:6]],
        "decided": repr(decided),
        "best": repr(max(rewards, key=lambda key: rewards[key])),
    }


def search_and_compare(case: str, method: str, calls: int, seed: int) -> dict[str, Any]:
    """Run a search over the same actions, and compare its final decision with the best.

    The z-scores of the reward come from as many random actions as a training begins with.

    Parameters
    ----------
    case: a key of `CASES`.
    method: a key of `SEARCHES`.
    calls: number of actions that the search may try.
    """
    small = SmallCase.on(CASES[case])
    outcomes = small.every_decision()
    rng = np.random.default_rng(seed)
    first = rng.random((CONFIG.random_steps, small.space.size))
    reference = [outcomes[small.key(action)].figures for action in first]
    score = Score.of([figures for figures in reference if figures is not None])
    rewards = {key: score.team(found.figures) for key, found in outcomes.items()}
    best = max(rewards.values())
    found: list[float] = []

    def value(action: Floats) -> float:
        found.append(rewards[small.key(action)] / best)
        return found[-1]

    decided = SEARCHES[method](value, small.space.size, calls, rng)
    close = [i + 1 for i, ratio in enumerate(found) if ratio >= 0.98]
    return {
        "case": case, "method": method, "seed": seed, "calls": len(found),
        "final over best": rewards[small.key(decided)] / best,
        "calls until within 2%": close[0] if close else None,
    }  # fmt: skip


def gradient_through_a_known_reward(case: str, starts: int = 200) -> dict[str, Any]:
    """Test the policy gradient (Equation 4) with a critic that is fitted to exact rewards.

    A critic as large as the one in training learns the exact rewards of 40,000 random actions. Then
    gradient ascent on the critic improves `starts` random actions. No actor and no state takes
    part. The rewards of the improved actions are the best that the policy gradient can find.
    """
    import torch
    from torch import nn

    small = SmallCase.on(CASES[case])
    outcomes = small.every_decision()
    rng = np.random.default_rng(0)
    found = [outcomes[small.key(action)].figures for action in rng.random((500, 6))]
    score = Score.of([figures for figures in found if figures is not None])
    rewards = {key: score.team(outcome.figures) for key, outcome in outcomes.items()}
    best = max(rewards.values())
    actions = rng.random((40_000, small.space.size))
    wanted = np.array([rewards[small.key(action)] / best for action in actions])
    torch.manual_seed(0)
    widths = [small.space.size, *CONFIG.critic]
    layers = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    critic = nn.Sequential(*layers, nn.Linear(widths[-1], 1))
    inputs = torch.tensor(actions, dtype=torch.float32)
    outputs = torch.tensor(wanted, dtype=torch.float32)
    adam = torch.optim.Adam(critic.parameters(), CONFIG.learning_rate)
    for _ in range(6000):
        rows = torch.randint(len(inputs), (256,))
        adam.zero_grad()
        ((critic(inputs[rows])[:, 0] - outputs[rows]) ** 2).mean().backward()
        adam.step()
    with torch.no_grad():
        error = float(((critic(inputs)[:, 0] - outputs) ** 2).mean().sqrt())
    logits = torch.logit(torch.rand(starts, small.space.size) * 0.98 + 0.01).requires_grad_(True)
    adam = torch.optim.Adam([logits], 0.02)
    for _ in range(1500):
        adam.zero_grad()
        (-critic(torch.sigmoid(logits)).sum()).backward()
        adam.step()
    ends = torch.sigmoid(logits).detach().numpy().astype(np.float64)
    reached = [rewards[small.key(action)] / best for action in ends]
    return {
        "case": case, "starts": starts, "within 2%": sum(value >= 0.98 for value in reached),
        "median": float(np.median(reached)), "least": min(reached),
        "rms error": error, "deviation of rewards": float(wanted.std()),
    }  # fmt: skip
