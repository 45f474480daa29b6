"""TOP: experiments that take a minute: backlogs, batches, times of steps and decisions."""

from __future__ import annotations

import cProfile
import functools
import pstats
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tvm_interop.serving import (
    Arrivals,
    Programs,
    ServingDevice,
    ServingRun,
    make_policy,
    periodic,
    simulate_serving,
)
from tvm_interop.serving.decisions import Space
from tvm_interop.serving.devices import SHEETS

from ..serving_cells import BARRIER_US, NETWORKS, Cell, arrivals_of, capacity, served_model
from .record import Chart, Check, Record, Table, above, below, within
from .registry import experiment
from .sources import made, read
from .top import A100, SEARCHED
from .top_learned import cell

_MIX = (1.0, 2.0, 4.0)
_KAPPA = 0.03
_THRESHOLD = 2e5
"""The paper's T: the variance of the queues beyond which TOP decides again."""


def programs(names: Sequence[str], batch: int = 1) -> Programs:
    """Models on the A100, where each request is a whole batch."""
    models = [served_model(name, SHEETS["a100"], (batch,) if batch > 1 else ()) for name in names]
    models = [replace(model, costs={1: model.costs[batch]}) for model in models]
    device = ServingDevice.described(SHEETS["a100"], _KAPPA)
    return Programs(models, replace(device, barrier_us=BARRIER_US))


def _serve(
    on: Programs, arrivals: Arrivals, seconds: float, policy: str, options: dict[str, Any]
) -> ServingRun:
    return simulate_serving(
        on.models, arrivals, make_policy(policy, **options), on.device, seconds, programs=on
    )


@experiment("top", "Figure 17", "backlog of the queues over time", seconds=15)
def figure_17() -> Record:
    """Serves the same arrivals by POS, by trained decisions and by a searched combination."""
    on = programs(list(NETWORKS))
    load = Cell("a100", _KAPPA, 1.4, arrivals="periodic", requests=8000)
    arrivals, seconds = arrivals_of(load, on)
    times_us = np.linspace(0, seconds * 1e6, 21)[1:]
    found = {
        name: _serve(on, arrivals, seconds, policy, options).backlog(times_us).var(axis=1)
        for name, (policy, options) in _backlog_policies(on).items()
    }
    checks: list[Check] = [
        above(f"{name}: variance at the end over that at half of the time",
              float(found[name][-1] / found[name][9]), 1.5)
        for name in ("POS that waits", "POS that skips")
    ]  # fmt: skip
    checks += [
        below(f"{name}: largest variance", float(found[name].max()), _THRESHOLD, _THRESHOLD)
        for name in ("TOP, trained agents", "TOP, searched")
    ]
    return Record(
        "The variance of the lengths of the three queues grows under POS, and stays below 200,000 "
        "under TOP.",
        A100,
        checks,
        why="More requests come than either serves. A fixed decision of TOP serves some models "
        "faster than others too, so its queues grow apart as POS's do.",
        remarks="The paper's TOP decides again when the variance exceeds 200,000. Here each "
        "decision stays: it is the final one of a training, or the one of a search. The weights of "
        f"the agents are not kept. {SEARCHED} {made('serving/top/maddpg-mended-0')}",
        seed="seed 0 of the training",
        tables=[
            Table("Variance of the queues", ["", "half of the time", "end"],
                  [[name, f"{row[9]:,.0f}", f"{row[-1]:,.0f}"] for name, row in found.items()])
        ],
        charts=[
            Chart("TOP, Figure 17", "lines", [f"{us / 1e6:.1f}" for us in times_us],
                  {**{name: row.tolist() for name, row in found.items()},
                   "the paper's T": [_THRESHOLD] * len(times_us)},
                  "variance of the queues, by seconds (simulated)")
        ],
    )  # fmt: skip


def _backlog_policies(on: Programs) -> dict[str, tuple[str, dict[str, Any]]]:
    space = Space(tuple(len(model.blocks) for model in on.models))
    action = np.array(cell("maddpg-mended-0")["action"])
    trained = {
        "combination": space.combination(on.models, action),
        "interval_us": space.intervals_us(action),
    }
    return {
        "POS that waits": ("pos", {"absent": "wait"}),
        "POS that skips": ("pos", {"absent": "skip"}),
        "TOP, trained agents": ("search", trained),
        "TOP, searched": ("search", {"budget": 200, "rates": list(_MIX)}),
        "longest queue first": ("sequential", {"order": "longest"}),
        "4 streams": ("streams", {"streams": 4}),
    }


_BATCHES = (1, 4, 16, 32, 64, 128)
_ALL = "three models"
_BASELINES: dict[str, tuple[str, dict[str, Any]]] = {
    "sequential": ("sequential", {}),
    "IOS": ("sequential", {"schedule": "ios", "barriers": True}),
    "POS that waits": ("pos", {"absent": "wait"}),
    "POS that skips": ("pos", {"absent": "skip"}),
}


@functools.cache
def by_batch() -> dict[tuple[str, int], dict[str, tuple[float, float]]]:
    """Images a second and utilisation, by models, batch and policy, with saturated queues."""
    return {
        (label, batch): _saturated(list(names), batch)
        for label, names in ((_ALL, tuple(NETWORKS)), *((name, (name,)) for name in NETWORKS))
        for batch in _BATCHES
    }


def _saturated(names: list[str], batch: int) -> dict[str, tuple[float, float]]:
    on = programs(names, batch)
    mix = _MIX[: len(names)] if len(names) > 1 else (1.0,)
    rate = 6 * capacity(on, mix)
    seconds = 1200 / rate
    arrivals = periodic([rate * share / sum(mix) for share in mix], seconds)
    several = len(names) > 1
    policies = {
        "TOP, searched": ("search", {"budget": 60, "rates": list(mix)}),
        **{name: row for name, row in _BASELINES.items() if name.startswith("POS") == several},
    }
    found = {}
    for name, (policy, options) in policies.items():
        run = _serve(on, arrivals, seconds, policy, options)
        found[name] = run.throughput() * batch, run.utilisation
    return found


def _saturates(label: str) -> int:
    """The smallest batch at which TOP reaches 90% of its highest throughput."""
    served = {batch: by_batch()[label, batch]["TOP, searched"][0] for batch in _BATCHES}
    return next(batch for batch in _BATCHES if served[batch] >= 0.9 * max(served.values()))


def _chart(label: str) -> Chart:
    names = list(by_batch()[label, 1])
    return Chart(
        f"TOP, by batch: {label}", "lines", [str(batch) for batch in _BATCHES],
        {name: [by_batch()[label, batch][name][0] for batch in _BATCHES] for name in names},
        "images a second (simulated)",
    )  # fmt: skip


@experiment("top", "Figure 26", "three models by batch", seconds=20)
def figure_26() -> Record:
    """Serves saturated queues whose requests are whole batches."""
    used = by_batch()[_ALL, 64]["TOP, searched"][1]
    first, last = (by_batch()[_ALL, batch]["TOP, searched"][0] for batch in (1, 64))
    return Record(
        "The throughput rises with the batch and saturates at 64, where about 90% of the GPU is "
        "used.",
        A100,
        [
            above("throughput at batch 64 over batch 1", last / first, 1.0),
            within("batch that reaches 90% of the highest throughput", _saturates(_ALL), 32, 64,
                   64),
            within("utilisation at batch 64", used, 0.8, 1.0, 0.9),
        ],
        why="By our data sheet an operator fills the device at smaller batches.",
        remarks=f"{SEARCHED} The search had 60 simulations.",
        tables=[
            Table("TOP's rule with three models", ["batch", *map(str, _BATCHES)],
                  [["images a second",
                    *(f"{by_batch()[_ALL, b]['TOP, searched'][0]:.0f}" for b in _BATCHES)],
                   ["utilisation",
                    *(f"{by_batch()[_ALL, b]['TOP, searched'][1]:.2f}" for b in _BATCHES)]])
        ],
        charts=[_chart(_ALL)],
    )  # fmt: skip


@experiment("top", "Figure 27", "baselines by batch", seconds=1)
def figure_27() -> Record:
    """Compares TOP with other policies, with one model and with three, at several batch sizes.

    The runs with three models are those of Figure 26. If they are not made yet, this function makes
    them first, and takes as long as Figure 26.
    """
    checks: list[Check] = []
    for label in (_ALL, *NETWORKS):
        for name in by_batch()[label, 1]:
            if name != "TOP, searched":
                ratios = [
                    by_batch()[label, b]["TOP, searched"][0] / by_batch()[label, b][name][0]
                    for b in _BATCHES
                ]
                checks.append(above(f"{label}: TOP over {name}, least of all batches",
                                    min(ratios), 1.0))  # fmt: skip
    checks += [
        within(f"{name}: batch that reaches 90% of the highest throughput", _saturates(name), 64,
               128, 128)
        for name in NETWORKS
    ]  # fmt: skip
    return Record(
        "TOP serves more than every baseline at every batch, with one model and with three. With "
        "one model the throughput saturates at a batch of 128.",
        A100,
        checks,
        why="Once an operator fills the device, nothing is gained side by side, and each barrier "
        "of a combined block costs time. By our data sheet that is so from small batches on.",
        remarks=f"{SEARCHED} The search had 60 simulations. Of the paper's baselines, only IOS and "
        "POS are simulated; plain sequential execution stands for the frameworks.",
        charts=[_chart(label) for label in NETWORKS],
    )  # fmt: skip


_PARTS_OF_GPG = {
    "search for endings": (("endings.py", "endings"), ("endings.py", "count"),
                           ("endings.py", "numbered")),
    "encoding of the graph": (("gpg_network.py", "pooled"),),
    "decision": (("gpg.py", "numbered_by"),),
    "run of the stage": (("gpg.py", "price"),),
    "update": (("gpg.py", "_improve"),),
}  # fmt: skip
_PARTS_OF_MADDPG = {
    "decision": (("maddpg.py", "decide"),),
    "search for stages": (("programs.py", "of_parts"),),
    "serving": (("combination.py", "simulate_combined"),),
    "update": (("maddpg.py", "_update"),),
}


@experiment("top", "Figure 19", "where the time of a training step goes", seconds=30)
def figure_19() -> Record:
    """Profiles some steps of the trainings of GPG and of the agents."""
    gpg, maddpg = _gpg_shares(), _maddpg_shares()
    return Record(
        "In a training step of GPG, the search for endings takes 6 s and all else less than 5 s. "
        "In a step of MADDPG, the search takes 6 s, building the graph less than 3 s, the run of "
        "the tasks 10 s, and all else less than 5 s.",
        "this machine's CPU, measured; devices are simulated",
        [
            within("GPG: share of the search for endings", gpg["search for endings"], 0.5, 0.7,
                   6 / 11),
            within("MADDPG: share of serving, without the search", maddpg["serving"], 0.32, 0.52,
                   10 / 24),
            within("MADDPG: share of the search for stages", maddpg["search for stages"], 0.15,
                   0.35, 6 / 24),
        ],
        timed=True,
        why="The search for endings is native code here, and a simulation stands for 10 s of "
        "serving on a device. Most of the remaining time is the update of the networks.",
        remarks="The stages of MADDPG's combined blocks come from `greedy`, not from GPG. "
        "The networks have the paper's sizes.",
        seed="seed 0",
        tables=[
            Table("Shares of a step", ["", *_PARTS_OF_GPG],
                  [["GPG", *(f"{share:.1%}" for share in gpg.values())]]),
            Table("Shares of a step", ["", *_PARTS_OF_MADDPG],
                  [["MADDPG", *(f"{share:.1%}" for share in maddpg.values())]]),
        ],
    )  # fmt: skip


def _gpg_shares(warm_up: int = 20, steps: int = 40) -> dict[str, float]:
    import torch

    from tvm_interop.serving.learning.gpg import GpgConfig, GpgTraining, Task

    from ..top_blocks import split

    torch.set_num_threads(1)
    training = GpgTraining(
        [Task.of(*graph) for graph in split("a100")[0]],
        GpgConfig(variant="gpg", steps=warm_up + steps),
    )
    training.run(until=warm_up)
    return _shares(training, _PARTS_OF_GPG)


def _maddpg_shares(warm_up: int = 110, steps: int = 30) -> dict[str, float]:
    import torch

    from tvm_interop.serving.learning.maddpg import MaddpgTraining

    from ..top import PAPER as _PAPER
    from ..top_cells import Setup, World

    torch.set_num_threads(1)
    world = World(Setup())
    config = replace(_PAPER, steps=warm_up + steps, random_steps=100)
    training = MaddpgTraining(world.environment(0), config, world.score)
    training.run(until=warm_up)
    shares = _shares(training, _PARTS_OF_MADDPG)
    shares["serving"] -= shares["search for stages"]
    return shares


def _shares(training: Any, parts: dict[str, tuple[tuple[str, str], ...]]) -> dict[str, float]:
    """The share of a training's time that each of its parts takes, by a profiler."""
    profile = cProfile.Profile()
    profile.enable()
    training.run()
    profile.disable()
    spent: dict[tuple[str, str], float] = {}
    for (path, _, function), row in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        key = path.rpartition("/")[2], function
        spent[key] = max(spent.get(key, 0.0), row[3])
    whole = max(spent.get((name, "_one_step"), 0.0) for name in ("gpg.py", "maddpg.py"))
    return {
        part: sum(spent[function] for function in functions) / whole
        for part, functions in parts.items()
    }


@experiment("top", "Overheads", "time of a decision and of a new graph", seconds=1)
def overheads() -> Record:
    """Reads the time of a decision, and times the search for the stages of its combined blocks."""
    decision = cell("inference")
    measured = {row["policy"]: row for row in read("serving/top_measured")["rows"]}
    rebuild_s = max(_rebuild_seconds(seed) for seed in range(3))
    return Record(
        "A decision of MADDPG takes less than 0.05 ms on the server. Parsing it and building the "
        "graph again takes less than 3 s on an edge device.",
        "this machine's CPU, measured",
        [
            below("milliseconds of a decision, median", decision["median_us"] / 1e3, 0.05, 0.05),
            below("seconds to find the stages of a decision's combined blocks", rebuild_s, 3.0,
                  3.0),
            below("seconds to start a server by trained agents, on two cores",
                  measured["top"]["seconds to begin"], 3.0, 3.0),
        ],
        timed=True,
        why="The decision was timed in NumPy on one core of a machine with other work. A "
        "quiet machine may be faster.",
        remarks="Scheduler and models run on one machine here; a link between an edge device and "
        "a cloud is not simulated. "
        + made("serving/top/inference", "serving/top_measured"),
        seed="seeds 0 to 2 of the trainings",
    )  # fmt: skip


def _rebuild_seconds(seed: int) -> float:
    on = programs(list(NETWORKS))
    space = Space(tuple(len(model.blocks) for model in on.models))
    action = np.array(cell(f"maddpg-mended-{seed}")["action"])
    began = time.perf_counter()
    for block in space.combination(on.models, action):
        on.of_parts(block, "gpg")
    return time.perf_counter() - began
