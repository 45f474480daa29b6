"""Runs the cells of `top` on three models: trainings, searches and policies.

The searches call the simulator as often as the trainings do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving_cells import BARRIER_US, NETWORKS, capacity, served_model
from tvm_interop.serving import (
    Combination,
    Programs,
    ServingDevice,
    ServingRun,
    make_policy,
    periodic,
    simulate_combined,
    simulate_serving,
)
from tvm_interop.serving.decisions import Environment, Floats, Score, Space
from tvm_interop.serving.devices import SHEETS
from tvm_interop.serving.learning.maddpg import MaddpgConfig, MaddpgTraining, save_agents

MIX = (1.0, 2.0, 4.0)
MOST = 4
"""Largest number of blocks in a combined block: the TOP paper's H, with its value for a server."""
_REQUESTS = 250
_LOAD = 1.5
"""Rate of requests, relative to the throughput of one instance at a time. The rate is too high for
combined blocks to serve all requests."""
_REFERENCE = 400
"""Number of random decisions that are simulated before a training or a search. The reward is made
of z-scores, which use the mean and the deviation of the results of these decisions."""


@dataclass(frozen=True)
class Setup:
    """The setup of a cell: a device, models, and a variant of TOP.

    Attributes
    ----------
    interval, reward: see `Space` and `Environment`.
    variant: `top`, or a variant of TOP: `no launcher` dequeues at once; `no combination` runs each
        block alone; `no pipeline` has one request of a model in progress at a time; `printed
        stages` runs one operator after the other, which is best by the paper's reward for stages;
        `no barriers`; `two in flight` runs two combined blocks at a time without barriers, as
        `top+` does.
    models: number of models. They are the first models of the paper, in the order of `NETWORKS`.
    queue: `own` for a queue of each model, with requests at 1:2:4. `shared` for one queue whose
        requests are each for all models (Fig. 23); the first interval then applies to all models.
    """

    interference: float = 0.03
    device: str = "a100"
    interval: str = "log"
    reward: str = "paper"
    variant: str = "top"
    models: int = 3
    queue: str = "own"

    def programs(self) -> Programs:
        """The models of the setup on its device."""
        sheet = SHEETS[self.device]
        served = [served_model(name, sheet) for name in list(NETWORKS)[: self.models]]
        device = ServingDevice.described(sheet, self.interference)
        return Programs(served, replace(device, barrier_us=BARRIER_US))


class World:
    """The arrivals and the reward of a setup. All contestants share them.

    The z-scores of the reward come from random decisions with a fixed seed.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.programs = setup.programs()
        models = self.programs.models
        self.mix = MIX[: len(models)] if setup.queue == "own" else (1.0,) * len(models)
        rate = _LOAD * capacity(self.programs, self.mix)
        self.seconds = _REQUESTS / rate
        rates = [rate * share / sum(self.mix) for share in self.mix]
        self.arrivals = periodic(rates, self.seconds)
        self.space = Space(tuple(len(model.blocks) for model in models), setup.interval)
        rng = np.random.default_rng(12345)
        reference = self.environment(12345)
        found = [reference.step(rng.random(self.space.size)).figures for _ in range(_REFERENCE)]
        self.score = Score.of([figures for figures in found if figures is not None])

    def environment(self, seed: int) -> Environment:
        """A new environment for reinforcement learning."""
        return Environment(
            self.programs.models, self.space, self.serve, MOST, self.setup.reward, seed
        )

    def serve(self, combination: Combination, interval_us: list[float]) -> ServingRun:
        """Simulate serving the arrivals with a decision, in the variant of the setup.

        Parameters
        ----------
        interval_us: minimum microseconds between two dequeues of each model.
        """
        variant = self.setup.variant
        if self.setup.queue == "shared":
            interval_us = interval_us[:1] * len(interval_us)
        if variant == "no launcher":
            interval_us = [0.0] * len(interval_us)
        if variant == "no combination":
            combination = tuple((part,) for cell in combination for part in cell)
            combination = tuple(sorted(combination))
        as_policy: dict[str, dict[str, Any]] = {
            "two in flight": {"barriers": False, "in_flight": 2}, "no pipeline": {"inside": 1},
        }  # fmt: skip
        if variant in as_policy:
            policy = make_policy(
                "search", combination=combination, interval_us=interval_us, **as_policy[variant]
            )
            return simulate_serving(
                self.programs.models, self.arrivals, policy, self.programs.device, self.seconds,
                programs=self.programs,
            )  # fmt: skip
        return simulate_combined(
            self.programs, self.arrivals, combination, self.seconds, interval_us=interval_us,
            schedule="sequential" if variant == "printed stages" else "greedy",
            barriers=variant != "no barriers",
        )  # fmt: skip

    def told(self, action: Floats) -> dict[str, Any]:
        """The reward that all agents share for an action, and the results of its simulation."""
        outcome = self.environment(0).step(action)
        found: dict[str, Any] = {"reward": self.score.team(outcome.figures)}
        if outcome.run is not None:
            found |= figures_of(outcome.run, self.mix)
            cells = self.space.combination(self.programs.models, action)
            found["combined blocks"] = len(cells)
            found["largest"] = max(map(len, cells))
        return found


def figures_of(run: ServingRun, mix: tuple[float, ...]) -> dict[str, Any]:
    """Results of a run: throughput, throughput of the mix, latency, variance and utilisation.

    The throughput of the mix counts only requests that make up whole mixes. The variance is the
    variance of the queue lengths.
    """
    shares = np.array(mix) / sum(mix)
    return {
        "throughput": run.throughput(),
        "in mix": float((run.served() / shares).min()) / run.end_us * 1e6,
        "latency_ms": run.latency_from_dequeue().mean,
        "variance": run.backlog_variance(),
        "utilisation": run.utilisation,
    }


Search = Callable[[Callable[[Floats], float], int, int, np.random.Generator], Floats]


def random_search(
    value: Callable[[Floats], float], size: int, calls: int, rng: np.random.Generator
) -> Floats:
    """The best of `calls` random actions.

    Parameters
    ----------
    value: function that returns the reward of an action.
    size: length of an action.
    """
    return max((rng.random(size) for _ in range(calls)), key=value)


def hill_climbing(
    value: Callable[[Floats], float], size: int, calls: int, rng: np.random.Generator
) -> Floats:
    """Hill climbing: redraw one or two numbers of the action, and keep the better action.

    If both actions have the same reward, the new one is kept. The parameters are as in
    `random_search`.
    """
    best = rng.random(size)
    best_value = value(best)
    for _ in range(calls - 1):
        moved = best.copy()
        places = rng.integers(size, size=rng.integers(1, 3))
        moved[places] = rng.random(len(places))
        found = value(moved)
        if found >= best_value:
            best, best_value = moved, found
    return best


def cross_entropy(
    value: Callable[[Floats], float], size: int, calls: int, rng: np.random.Generator
) -> Floats:
    """Cross-entropy method: a Gaussian for each number of the action.

    Each round draws 64 actions and moves the Gaussians towards the best eighth of them. The
    parameters are as in `random_search`.
    """
    mean, deviation = np.full(size, 0.5), np.full(size, 0.4)
    best, best_value = mean, -np.inf
    while calls > 0:
        count = min(64, calls)
        calls -= count
        drawn = np.clip(mean + deviation * rng.standard_normal((count, size)), 0, 1)
        values = np.array([value(action) for action in drawn])
        order = np.argsort(-values)[: max(1, count // 8)]
        if values[order[0]] > best_value:
            best, best_value = drawn[order[0]], float(values[order[0]])
        mean = 0.3 * mean + 0.7 * drawn[order].mean(0)
        deviation = 0.3 * deviation + 0.7 * drawn[order].std(0) + 0.01
    return best


SEARCHES: dict[str, Search] = {
    "random search": random_search,
    "hill climbing": hill_climbing,
    "cross-entropy": cross_entropy,
}


def search_cell(setup: Setup, method: str, calls: int, seed: int) -> dict[str, Any]:
    """Run one search, over the same actions and with the same reward as the trainings.

    The entry `curve` has the best reward so far.

    Parameters
    ----------
    method: a key of `SEARCHES`.
    """
    world = World(setup)
    environment = world.environment(seed)
    curve: list[float] = []

    def value(action: Floats) -> float:
        found = world.score.team(environment.step(action).figures)
        curve.append(max(found, curve[-1]) if curve else found)
        return found

    began = time.process_time()
    rng = np.random.default_rng(seed)
    action = SEARCHES[method](value, world.space.size, calls, rng)
    return {
        "method": method, "calls": environment.calls, "seconds": time.process_time() - began,
        "final": world.told(action), "action": action.tolist(), "curve": _thinned(curve),
    }  # fmt: skip


def learning_cell(
    setup: Setup, config: MaddpgConfig, folder: Path, name: str, quiet: bool = True
) -> dict[str, Any]:
    """Run one training, and save its agents and checkpoints in the folder.

    In the results, `curve` has the best reward so far after each number of steps. `curve with
    noise` has the rewards of the decisions with exploration noise.
    """
    world = World(setup)
    training = MaddpgTraining(world.environment(config.seed), config, world.score)
    began = time.process_time()
    training.run(checkpoint_path=folder / f"{name}.checkpoint.npz", every=500, quiet=quiet)
    seconds = time.process_time() - began
    action = training.decide()
    if config.agents == "each":
        save_agents(folder / f"{name}.agents.npz", training)
    best_so_far = np.maximum.accumulate(training.curve)
    return {
        "method": "MADDPG" if config.agents == "each" else "DDPG, one agent",
        "calls": training.environment.calls, "seconds": seconds, "final": world.told(action),
        "action": action.tolist(), "curve": _thinned(best_so_far.tolist()),
        "curve with noise": _means(training.curve),
    }  # fmt: skip


def policies_cell(setup: Setup) -> dict[str, Any]:
    """Run policies without learning, and `top+` with its search.

    Each policy runs twice: with the arrivals of requests that trainings have, and with saturated
    queues.
    """
    world = World(setup)
    programs = world.programs
    contestants: dict[str, tuple[str, dict[str, Any]]] = {
        "sequential": ("sequential", {}),
        "ios stages": ("sequential", {"schedule": "ios", "barriers": True}),
        **{f"{k} streams": ("streams", {"streams": k}) for k in (2, 4, 6, 8, 12)},
        "batches of 8": ("batching", {"batch": 8}),
        "pos, wait": ("pos", {"absent": "wait"}),
        "pos, skip": ("pos", {"absent": "skip"}),
        "search, 200 calls": ("search", {"budget": 200, "rates": list(world.mix)}),
        "top+, 60 calls": ("top+", {"budget": 60, "rates": list(world.mix)}),
    }
    found = {}
    served = [
        served_model(model.name, SHEETS[setup.device], (2, 4, 8)) for model in programs.models
    ]
    programs = Programs(served, programs.device)
    # Saturated queues: requests arrive at six times the throughput of one instance at a time.
    rate = 6 * capacity(programs, world.mix)
    seconds = 1500 / rate
    rates = [rate * share / sum(world.mix) for share in world.mix]
    for name, (policy, options) in contestants.items():
        runs = [
            simulate_serving(
                programs.models, arrivals, make_policy(policy, **options), programs.device, length,
                programs=programs,
            )
            for arrivals, length in (
                (world.arrivals, world.seconds), (periodic(rates, seconds), seconds)
            )
        ]  # fmt: skip
        found[name] = figures_of(runs[0], world.mix)
        found[name]["saturated"] = figures_of(runs[1], world.mix)
    return found


def _thinned(curve: list[float], points: int = 100) -> list[tuple[int, float]]:
    step = max(1, len(curve) // points)
    return [(i + 1, round(curve[i], 4)) for i in range(step - 1, len(curve), step)]


def _means(curve: list[float], points: int = 100) -> list[tuple[int, float]]:
    step = max(1, len(curve) // points)
    return [
        (i + step, round(float(np.mean(curve[i : i + step])), 4))
        for i in range(0, len(curve) - step + 1, step)
    ]
