"""Training of the whole system TOP: Algorithm 2 (GPG) inside Algorithm 1 (the agents).

TOP is the system of Lin et al., TPDS 36(2), 2025. A training first trains GPG on combined blocks of
the served models. Then it trains the agents. When the agents choose a combined block for the first
time, the trained GPG divides it into stages. There are two configurations: `PAPER` and `OURS`.
`DIFFERENCES` gives the reason for each field in which they differ.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ...latency.contended import ContendedLatency
from ..decisions import PRINTED, RewardRule, Space
from ..process import Load, ServingProcess
from ..programs import Part, Programs, joint_graph
from .gpg import GpgConfig, GpgTraining, Task, save_weights
from .maddpg import MaddpgConfig, MaddpgTraining, save_agents


@dataclass(frozen=True)
class TopConfig:
    """The configuration of a training of the whole system TOP.

    Attributes
    ----------
    gpg, agents: configurations of the two trainings.
    gpg_blocks: number of random combined blocks that GPG is trained on.
    gpg_most: largest number of blocks in such a combined block; None for `most`.
    gpg_options: further options of the scheduler, such as `width` of `gpg-scored`.
    most: pairs (multiprocessors, H). H is the largest number of blocks in a combined block. A
        device uses a pair with at most as many multiprocessors as the device has. If there are
        several, it uses the pair with the most multiprocessors.
    interval: see `Space`.
    reward, rule, barriers: see `ServingProcess`.
    step_s: seconds of serving in a step; None for the time of `step_requests` requests that run one
        after the other.
    episode: see `ServingProcess`.
    threshold: variance of the queue lengths above which the trained agents decide again (T).
    """

    gpg: GpgConfig
    agents: MaddpgConfig
    gpg_blocks: int = 128
    gpg_most: int | None = None
    gpg_options: Mapping[str, Any] = field(default_factory=dict)
    most: tuple[tuple[int, int], ...] = ((1, 2), (6, 3), (108, 4))
    interval: str = "linear"
    reward: str = "paper"
    rule: RewardRule = PRINTED
    barriers: bool = True
    step_s: float | None = 10.0
    step_requests: int = 250
    episode: int = 100
    threshold: float = 2e5

    def most_on(self, cores: float) -> int:
        """Return H, the most blocks that a combined block has on a device of `cores` cores."""
        return max((least, most) for least, most in self.most if least <= max(cores, 1))[1]

    def fields(self) -> dict[str, Any]:
        """Return all fields of the configuration, by name.

        The fields of `gpg` and `agents` are named `gpg.NAME` and `agents.NAME`.
        """
        found: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if name in ("gpg", "agents"):
                found |= {f"{name}.{key}": inner for key, inner in value.items()}
            else:
                found[name] = value
        return found

    def shortened(self, share: float) -> TopConfig:
        """Return the configuration with the training steps of GPG and agents times `share`."""
        agents = self.agents
        steps = max(int(agents.steps * share), agents.batch + 1)
        first = max(int(agents.random_steps * share), agents.batch)
        return replace(
            self,
            gpg=replace(self.gpg, steps=max(int(self.gpg.steps * share), 1)),
            agents=replace(agents, steps=steps, random_steps=first),
        )

    def seeded(self, seed: int) -> TopConfig:
        """Return the configuration with another seed of the agents."""
        return replace(self, agents=replace(self.agents, seed=seed))


PAPER = TopConfig(
    gpg=GpgConfig(variant="gpg", reward="paper", steps=6000, features="layers"),
    agents=MaddpgConfig(),
)
"""The sizes, rewards, discount factors and steps of the paper.

The docstrings of `gpg` and `maddpg` describe our choices where the paper names no value."""

OURS = TopConfig(
    gpg=GpgConfig(variant="gpg-scored", steps=600, features="both"),
    agents=MaddpgConfig(
        steps=2500, random_steps=500, gamma=0.5, actor_rate=3e-4, critic=(256, 128, 64),
        actor=(128, 64), shared_reward=True, actor_update="candidates",
    ),
    gpg_most=3,
    gpg_options={"width": 1},
    most=((1, 8),),
    interval="log",
    reward="mix",
    rule=RewardRule((1.0, 0.0, 0.0), is_exponential=False, refused=-3.0),
    barriers=False,
    step_s=None,
    episode=25,
    threshold=0.0,
)  # fmt: skip
"""The options that our experiments with the parts of TOP suggest. `DIFFERENCES` gives the reasons.

Each option was chosen in its own experiment. The options were not tuned together.
"""

DIFFERENCES: Mapping[str, str] = {
    "gpg.variant": "the paper's policy chooses an ending by one number, whose meaning changes with "
    "the number of endings; so our network scores every ending",
    "gpg.reward": "the paper's reward is largest for sequential execution, which is slow",
    "gpg.steps": "a step of our variant takes longer, because it learns from the latencies of "
    "several endings",
    "gpg_most": "larger combined blocks take longer to learn from, and their stages are similar to "
    "the stages of smaller combined blocks",
    "gpg.features": "the latencies and the device usage of operators are known, so our network "
    "reads them too, beside types and shapes",
    "gpg_options": "with a beam of several states, one new combined block would take as long to "
    "schedule as a whole training step takes",
    "agents.steps": "a third of the paper's steps, so that trainings with several seeds fit into "
    "an hour",
    "agents.random_steps": "in proportion to the steps",
    "agents.gamma": "a step is much longer than a request, so a decision has little effect on "
    "rewards two steps later",
    "agents.actor_rate": "our smaller networks allow a higher learning rate",
    "agents.critic": "a smaller network takes a tenth of the time, and was no worse in trainings "
    "whose steps begin with empty queues",
    "agents.actor": "a smaller network takes a tenth of the time, and was no worse in trainings "
    "whose steps begin with empty queues",
    "agents.shared_reward": "the agents decide together, so they get the same reward",
    "agents.actor_update": "the reward jumps from one decision to another, so its gradient "
    "misleads; our agents choose among candidate decisions",
    "most": "without barriers, a block does not wait for longer blocks in its combined block, so "
    "our agents may choose larger combined blocks",
    "interval": "useful dequeue intervals are a few milliseconds, a small part of the paper's "
    "range from 0 to 1 s",
    "reward": "if utilisation is rewarded, as in the paper, agents hardly serve the expensive "
    "model; our reward counts sets of requests with the wanted number for each model",
    "rule": "the latency in the paper's reward ignores requests that wait in a queue; our reward "
    "is the throughput alone",
    "barriers": "a barrier after each stage costs more time than the stages save",
    "step_s": "a step takes the time of 250 requests, because longer steps do not change the "
    "throughput; in the paper it takes 10 s",
    "episode": "shorter episodes, so that training starts from empty queues more often",
    "threshold": "clients that wait for answers keep queues short, so the variance never reaches "
    "the paper's threshold of 2e5; our agents decide at each check",
}
"""Why each field of `OURS` differs from `PAPER`. A test compares the keys with the fields."""


class TopTraining:
    """A training of the whole system TOP. After an interruption, it continues where it stopped.

    The files of a training are in one folder: a checkpoint and the weights of GPG, and a checkpoint
    and the networks of the agents. If the process is killed, only the steps since the last
    checkpoint are lost.

    Attributes
    ----------
    most: the largest number of blocks in a combined block on this device (H in the paper).
    step_s: the length of a step on this device, in seconds.
    """

    def __init__(
        self,
        programs: Programs,
        load: Load,
        config: TopConfig,
        folder: str | Path,
        gpg_folder: str | Path | None = None,
    ) -> None:
        """Prepare a training.

        Parameters
        ----------
        programs: the served models and the device.
        load: the requests that arrive while the agents learn.
        folder: where the files of the training are; it is made if it does not exist.
        gpg_folder: where the files of GPG are; None for `folder`. Trainings of several seeds may
            share this folder, because the paper trains GPG once for a device.
        """
        self.config = config
        self.load = load
        self.folder = Path(folder)
        self.gpg_folder = self.folder if gpg_folder is None else Path(gpg_folder)
        for each in (self.folder, self.gpg_folder):
            each.mkdir(parents=True, exist_ok=True)
        self._models, self._device = programs.models, programs.device
        self.most = config.most_on(programs.device.cores)
        rates = load.per_model if load.trace is None else [1.0] * len(programs.models)
        mean_us = sum(
            share * programs.model_us(m) for m, share in enumerate(rates)
        ) / sum(rates)  # fmt: skip
        self.step_s = config.step_s or config.step_requests * mean_us / 1e6
        self.space = Space(tuple(len(model.blocks) for model in self._models), config.interval)

    @property
    def schedule(self) -> str:
        """The scheduler that makes the stages of combined blocks: the trained variant of GPG."""
        return self.config.gpg.variant

    @property
    def weights(self) -> Path:
        """The path of the file with GPG's weights."""
        return self.gpg_folder / "gpg.npz"

    @property
    def agents(self) -> Path:
        """The path of the file with the agents' networks."""
        return self.folder / "agents.npz"

    def programs(self) -> Programs:
        """Return programs whose combined blocks have the stages of the trained GPG."""
        return self._with_weights(self.weights)

    def run(self, every: int = 250, quiet: bool = True) -> dict[str, Any]:
        """Train until the end, from where an earlier training stopped.

        Returns the learning curves of GPG and of the agents, and the CPU seconds that this process
        spent on each.

        Parameters
        ----------
        every: number of steps between two checkpoints.
        quiet: whether to show no progress bars.
        """
        began = time.process_time()
        gpg = GpgTraining(self._tasks(), self.config.gpg)
        weights = gpg.run(None, self.gpg_folder / "gpg.checkpoint.npz", every, quiet)
        save_weights(self.weights, weights)
        middle = time.process_time()
        training = self._agents()
        training.run(None, self.folder / "agents.checkpoint.npz", every, quiet)
        save_agents(self.agents, training)
        return {
            "gpg_seconds": middle - began,
            "agents_seconds": time.process_time() - middle,
            "gpg_curve": gpg.curve,
            "agents_curve": training.curve,
            "calls": training.environment.calls,
        }

    def process(self, schedule: str | None = None) -> ServingProcess:
        """Return the decision process (the training environment) in which the agents learn.

        Parameters
        ----------
        schedule: scheduler of the combined blocks; None for the trained GPG.
        """
        if schedule is not None:
            return self._process(Programs(self._models, self._device), schedule)
        return self._process(self.programs(), self.schedule)

    def estimate_s(self, steps: int = 20) -> float:
        """Estimate the seconds of the whole training from the time of a few steps.

        The timed steps belong to a separate training, which is not kept. The GPG in this training
        has random weights, so combined blocks take as long to schedule as at the beginning of the
        real training.
        """
        config = self.config
        gpg = GpgTraining(self._tasks(), replace(config.gpg, steps=steps))
        began = time.perf_counter()
        save_weights(self.folder / "estimate.npz", gpg.run())
        gpg_s = (time.perf_counter() - began) / steps
        few = replace(
            config.agents, steps=config.agents.batch + steps, random_steps=config.agents.batch
        )
        programs = self._with_weights(self.folder / "estimate.npz")
        training = MaddpgTraining(self._process(programs, self.schedule), few)
        began = time.perf_counter()
        training.run(few.random_steps)
        middle = time.perf_counter()
        training.run()
        step_s = (time.perf_counter() - middle) / steps
        (self.folder / "estimate.npz").unlink()
        random_s = (middle - began) / few.random_steps * config.agents.random_steps
        learning = config.agents.steps - config.agents.random_steps
        return gpg_s * config.gpg.steps + random_s + step_s * learning

    def _with_weights(self, weights: Path) -> Programs:
        options = {"weights": weights, **self.config.gpg_options}
        return Programs(self._models, self._device, {self.schedule: options})

    def _process(self, programs: Programs, schedule: str) -> ServingProcess:
        return ServingProcess(
            programs, self.space, self.load, self.step_s, episode=self.config.episode,
            most=self.most, reward=self.config.reward, rule=self.config.rule, schedule=schedule,
            barriers=self.config.barriers, seed=self.config.agents.seed,
        )  # fmt: skip

    def _agents(self) -> MaddpgTraining:
        return MaddpgTraining(self.process(), self.config.agents)

    def _tasks(self) -> list[Task]:
        """Return random combined blocks to train GPG on, of 1 to `most` blocks."""
        rng = random.Random(self.config.gpg.seed)
        every = [(m, b) for m, model in enumerate(self._models) for b in range(len(model.blocks))]
        most = min(self.config.gpg_most or self.most, len(every))
        found: dict[tuple[Part, ...], Task] = {}
        for _ in range(50 * self.config.gpg_blocks):
            parts = tuple(sorted(rng.sample(every, rng.randint(1, most))))
            if len(found) < self.config.gpg_blocks and parts not in found:
                task = self._task(parts)
                if len(task.block) > 1:
                    found[parts] = task
        return list(found.values())

    def _task(self, parts: tuple[Part, ...]) -> Task:
        graph, costs, _ = joint_graph(self._models, parts)
        latency = ContendedLatency(
            costs.op_us, self._device.cores, self._device.bandwidth, costs.op_cores,
            costs.memory_share,
        )  # fmt: skip
        return Task.of(graph, latency)
