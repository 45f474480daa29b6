"""Trains the whole of TOP, and compares it with policies and a search.

    python -m benchmarks.top_whole [--seconds S] [--only NAME ...] [--folder DIR] [--estimate]

The programme is a list of cells (trainings, searches and runs of policies), as in `benchmarks.top`.
Each cell writes a file into the folder when it is done, and a later run skips this cell. Trainings
keep checkpoints in the same folder, so a run that was killed can be continued. `--estimate` prints
how long each training will take, and runs nothing.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.serving_cells import BARRIER_US, NETWORKS, capacity, served_model
from benchmarks.top import Cell, chosen, run
from benchmarks.top_cells import SEARCHES, _means
from tvm_interop.serving import (
    Programs,
    ServingDevice,
    ServingRun,
    closed_loop,
    make_policy,
    on_off,
    poisson,
    simulate_serving,
)
from tvm_interop.serving.decisions import Floats
from tvm_interop.serving.devices import SHEETS
from tvm_interop.serving.learning.top import OURS, PAPER, TopConfig, TopTraining
from tvm_interop.serving.process import Load, mix_rate

RESULTS = Path(__file__).parent / "results" / "serving" / "top_whole"
INTERFERENCE = 0.03
CONFIGS = {"paper": PAPER, "ours": OURS}
LATE = 10.0
"""A request counts for the goodput if it took at most this many times the latency that its model
has when it runs alone."""
REQUESTS = 3000
"""Mean number of requests in a comparison."""


@dataclass(frozen=True)
class Mix:
    """Models that are served together.

    Attributes
    ----------
    networks: number of blocks of each network.
    shares: number of requests of each model in one mix, such as 1, 2 and 4.
    """

    networks: dict[str, int]
    shares: tuple[int, ...]

    @property
    def clients(self) -> tuple[int, ...]:
        """Number of clients of each model. They are enough to keep the device saturated."""
        return tuple(4 * share for share in self.shares)


MIXES = {
    "CNNs": Mix(NETWORKS, (1, 2, 4)),
    "CNN, transformer, recommender": Mix(
        {"resnet50": 5, "bert_base": 6, "wide_deep": 1}, (1, 1, 4)
    ),
}


@dataclass(frozen=True)
class Place:
    """A device and a mix."""

    device: str = "a100"
    mix: str = "CNNs"

    @property
    def name(self) -> str:
        """A name for the device and the mix, which the names of result files contain."""
        return f"{self.device}, {self.mix}"

    def programs(self) -> Programs:
        """The models on the device."""
        return _programs(self)

    def load(self) -> Load:
        """The load under which agents are trained and searches run: a closed loop of clients."""
        return Load("closed", MIXES[self.mix].clients)


@functools.cache
def _programs(place: Place) -> Programs:
    sheet = SHEETS[place.device]
    models = [
        replace(served_model(name, sheet, (2, 4, 8)).divided(count), name=name)
        for name, count in MIXES[place.mix].networks.items()
    ]
    device = ServingDevice.described(sheet, INTERFERENCE)
    return Programs(models, replace(device, barrier_us=BARRIER_US))


def training(place: Place, config: str, seed: int, share: float, folder: Path) -> TopTraining:
    """A training of agents, in a folder of its own. The agents of all seeds share one trained GPG.

    Parameters
    ----------
    config: a key of `CONFIGS`.
    share: share of the steps of that configuration.
    """
    made: TopConfig = CONFIGS[config].shortened(share).seeded(seed)
    where = folder / f"{config} {share}, {place.name}"
    return TopTraining(place.programs(), place.load(), made, where / str(seed), where / "gpg")


def training_cell(
    place: Place, config: str, seed: int, share: float, folder: Path
) -> dict[str, Any]:
    """Train, then serve by the trained agents with each pattern of arrivals."""
    learned = training(place, config, seed, share, folder).run(quiet=False)
    return {
        **serving_cell(place, config, seed, share, folder, seed),
        **{key: learned[key] for key in ("gpg_seconds", "agents_seconds", "calls", "gpg_curve")},
        "curve": _means(learned["agents_curve"]),
    }  # fmt: skip


def serving_cell(
    place: Place, config: str, seed: int, share: float, folder: Path, arrivals: int
) -> dict[str, Any]:
    """Serve by agents that were trained, once with their GPG and once with `greedy` instead.

    Parameters
    ----------
    arrivals: seed of the arrivals.
    """
    made = training(place, config, seed, share, folder)
    options: dict[str, Any] = {
        "agents": made.agents, "threshold": made.config.threshold, "most": made.most,
        "check_us": made.step_s * 1e5, "barriers": made.config.barriers,
    }  # fmt: skip
    served = {
        name: compared(place, ("top", {**options, "schedule": schedule}), made.programs(), arrivals)
        for name, schedule in (("all of it", made.schedule), ("greedy stages", "greedy"))
    }
    return {
        "config": config, "device": place.device, "mix": place.mix, "seed": seed, "share": share,
        "steps": made.config.agents.steps, "gpg_steps": made.config.gpg.steps, "served": served,
    }  # fmt: skip


def search_cell(place: Place, method: str, calls: int, seed: int, folder: Path) -> dict[str, Any]:
    """Search for a decision with the simulator on which our agents are trained.

    The search calls the simulator `calls` times. In contrast to a training, each call begins with
    empty queues. The value of a decision is the number of requests served per second, counting only
    requests that make up whole mixes. `greedy` makes the stages.
    """
    made = TopTraining(place.programs(), place.load(), replace(OURS, episode=1), folder)
    process = made.process("greedy")

    def value(action: Floats) -> float:
        figures = process.step(action).figures
        return -1.0 if figures is None else float(figures[0])

    rng = np.random.default_rng(seed)
    action = SEARCHES[method](value, made.space.size, calls, rng)
    programs = place.programs()
    options = {
        "combination": made.space.combination(programs.models, action),
        "interval_us": made.space.intervals_us(action), "barriers": False,
    }  # fmt: skip
    served = {method: compared(place, ("search", options), programs, seed)}
    return {
        "device": place.device, "mix": place.mix, "seed": seed, "calls": process.calls,
        "served": served,
    }  # fmt: skip


def policies_cell(place: Place, seed: int) -> dict[str, Any]:
    """Serve by the policies that need no training."""
    shares = list(MIXES[place.mix].shares)
    contestants: dict[str, tuple[str, dict[str, Any]]] = {
        "sequential": ("sequential", {}),
        **{f"{k} streams": ("streams", {"streams": k}) for k in (2, 4, 8, 12)},
        "POS, waits": ("pos", {"absent": "wait"}),
        "POS, skips": ("pos", {"absent": "skip"}),
        "batches of 8": ("batching", {"batch": 8}),
        "top+, 60 calls": ("top+", {"budget": 60, "rates": shares}),
        "auto": ("auto", {}),
    }
    served = {
        name: compared(place, contestant, place.programs(), seed)
        for name, contestant in contestants.items()
    }
    return {"device": place.device, "mix": place.mix, "seed": seed, "served": served}


def compared(
    place: Place, contestant: tuple[str, dict[str, Any]], programs: Programs, seed: int
) -> dict[str, Any]:
    """Results of a policy with clients, with Poisson arrivals and with bursts.

    Poisson arrivals come at 1.5 times the throughput of one instance at a time, and bursts at 0.8
    times.
    """
    shares = np.array(MIXES[place.mix].shares, dtype=np.float64)
    rate = capacity(programs, shares)
    name, options = contestant
    found = {}
    for told, load in (("clients", 1.0), ("poisson", 1.5), ("bursts", 0.8)):
        seconds = REQUESTS / (load * rate)
        rates = (load * rate * shares / shares.sum()).tolist()
        if told == "clients":
            arrivals = closed_loop(MIXES[place.mix].clients)
        elif told == "poisson":
            arrivals = poisson(rates, seconds, seed)
        else:
            arrivals = on_off(rates, seconds, seed, 50 / rate, 50 / rate)
        served = simulate_serving(
            programs.models, arrivals, make_policy(name, **options), programs.device, seconds,
            programs=programs,
        )  # fmt: skip
        found[told] = figures(served, programs, shares)
    return found


def figures(served: ServingRun, programs: Programs, shares: Any) -> dict[str, float]:
    """Throughput, rate of the mix, 99th percentile in milliseconds, and goodput of a run."""
    alone_us = np.array([programs.model_us(m) for m in range(len(programs.models))])
    took_us = served.finished_us - served.arrived_us
    in_time = int((took_us <= LATE * alone_us[served.models]).sum())
    return {
        "throughput": served.throughput(),
        "mix": mix_rate(served.served(), shares) / served.end_us * 1e6,
        "p99_ms": served.latency().p99,
        "goodput": in_time / served.end_us * 1e6,
        "decisions": len(served.log),
    }


PLACES = (Place(), Place("xavier-nx"), Place("tx2"), Place("nano"))
MIXED = Place(mix="CNN, transformer, recommender")
"""A mix on which no agents are trained: the recommender is one block, and `gpg-scored` cannot build
all of its endings (possible last stages) in a step."""
CALLS = 1000
"""How many times each search calls the simulator. The longest of our trainings that have been run
has the same number of steps.
"""


def trainings() -> Iterator[tuple[Place, str, int, float]]:
    """Yield the device and mix, configuration, seed and share of the steps of each training.

    The trainings with all steps come last, because they take most time.
    """
    yield Place(), "ours", 0, 0.4
    for seed in range(5):
        yield Place(), "paper", seed, 0.1
        yield Place(), "ours", seed + 5, 0.1
    for place in PLACES[1:]:
        for config, seed in itertools.product(CONFIGS, range(2)):
            yield place, config, seed, 0.1
    for config, seed in itertools.product(CONFIGS, range(10, 15)):
        yield Place(), config, seed, 1.0


def cells(folder: Path) -> Iterator[Cell]:
    """Yield the cells of the programme in order."""
    for place, config, seed, share in trainings():
        yield (
            f"train {config}, {place.name}-{seed}",
            lambda p=place, c=config, s=seed, h=share: training_cell(p, c, s, h, folder),
        )
    for place, config, seed, share in itertools.islice(trainings(), 2):
        for arrivals in (seed + 1, seed + 2):
            yield (
                f"serve {config}, {place.name}-{seed}-{arrivals}",
                lambda p=place, c=config, s=seed, h=share, a=arrivals: serving_cell(
                    p, c, s, h, folder, a
                ),
            )
    for place in (*PLACES, MIXED):
        for seed in range(5 if place == Place() else 2):
            yield (
                f"policies, {place.name}-{seed}",
                lambda p=place, s=seed: policies_cell(p, s),
            )
            yield (
                f"hill climbing, {place.name}-{seed}",
                lambda p=place, s=seed: search_cell(p, "hill climbing", CALLS, s, folder),
            )


def estimates(folder: Path) -> None:
    """Print the minutes that each training will take, from the time of a few of its steps."""
    total_s = 0.0
    for place, config, seed, share in trainings():
        took_s = training(place, config, seed, share, folder).estimate_s()
        total_s += took_s
        print(f"{config}, {place.name}-{seed}: {took_s / 60:.1f} min", flush=True)
    print(f"all: {total_s / 3600:.1f} h")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where the cells' files are")
    parser.add_argument("--seconds", type=float, help="begin no cell after so many seconds")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="NAME", help="cells whose names begin so"
    )
    parser.add_argument("--estimate", action="store_true", help="print how long trainings take")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.estimate:
        estimates(options.folder)
    else:
        run(chosen(cells(options.folder), options.only), options.folder, options.seconds)


if __name__ == "__main__":
    main()
