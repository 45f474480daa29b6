"""TOP: the results of its trained agents and scheduler of stages, from stored trainings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tvm_interop.scheduling import schedule
from tvm_interop.serving.devices import SHEETS

from ..serving_cells import NETWORKS, served_model
from ..top_blocks import combinations, joined
from .record import Chart, Check, Record, Table, above, below, within
from .registry import experiment
from .sources import made, read
from .top import A100, SEARCHED

_LEARNERS = {
    "MADDPG": ("maddpg-small", 5),
    "MADDPG as printed": ("maddpg-printed", 1),
    "MADDPG, ours": ("maddpg-mended", 3),
}
"""The trainings by their names on the page: the beginning of the files, and the number of seeds.
All have smaller networks than the paper's. `MADDPG` does not discount, and keeps actions away from
the ends of their range. `MADDPG as printed` has the paper's discount, and does not keep actions
away from the ends."""
_SEARCHES = {
    "random search": ("search-random search", 3), "hill climbing": ("search-hill climbing", 3),
    "cross-entropy": ("search-cross-entropy", 3),
}  # fmt: skip
_NOT_TRAINED = (
    "All trainings here have smaller networks than the paper's. Its networks are not trained yet."
)


def cell(name: str) -> Any:
    """A result file of the benchmark `top`."""
    return read(f"serving/top/{name}")


def seeds(prefix: str, count: int) -> list[Any]:
    """The results of the runs of one contestant, one run for each seed."""
    return [cell(f"{prefix}-{seed}") for seed in range(count)]


def mean(runs: Sequence[Any], key: str) -> float:
    """The mean of the result `key` over the runs.

    A run whose last decision serves nothing counts as 0.
    """
    return float(np.mean([run["final"].get(key, 0.0) for run in runs]))


@experiment("top", "Figure 13", "GPG against dynamic programming", seconds=1)
def figure_13() -> Record:
    """Reads makespans and times of trained GPG, on blocks that no training has seen."""
    small, large = cell("gpg-exact-a100"), cell("gpg-large-a100")
    found = large["held-out combinations"]
    over, took = found["over ios"], found["seconds a block"]
    names = ("greedy", "beam of 8", "ios", "gpg", "gpg-scored")
    return Record(
        "On large combined blocks GPG takes a tenth of the time of IOS's dynamic programming, and "
        "its stages are only slightly slower.",
        A100,
        [
            Check("gpg: seconds over those of ios, blocks of 20 to 60 operators", 0.1,
                  took["gpg"] / took["ios"], most=0.1),
            Check("gpg: makespan over that of ios, the same blocks", None,
                  over["gpg"]["geometric mean"], most=1.1),
            Check("gpg: makespan over the optimum, mean, blocks of up to 11 operators", None,
                  small["gpg"]["mean"], most=1.1),
        ],
        why="`gpg` is the paper's network. It outputs one number, which selects an ending by its "
        "position in the list of endings. The position of a good ending changes with the "
        "number of endings, and the network must learn this. Our `gpg-scored` "
        "scores each ending: it comes close to the optimum, in about the time of `ios`. `ios` "
        "uses beams on large blocks and is fast.",
        remarks=f"Up to a tenth slower is taken as slightly. "
        f"{made('serving/top/gpg-exact-a100', 'serving/top/gpg-large-a100')}",
        seed="one training of each network",
        tables=[
            Table(f"{found['blocks']} combined blocks of 20 to 60 operators",
                  ["", "makespan over ios", "worst", "seconds a block"],
                  [[name, f"{over[name]['geometric mean']:.3f}", f"{over[name]['most']:.2f}",
                    f"{took[name]:.4f}"] for name in names]),
            Table(f"{small['blocks']} blocks of up to 11 operators: makespan over the optimum",
                  ["", "mean", "worst"],
                  [[name, f"{small[name]['mean']:.3f}", f"{small[name]['most']:.2f}"]
                   for name in ("greedy", "gpg", "gpg-scored")]),
        ],
        charts=[
            Chart("TOP, Figure 13", "bars", list(names),
                  {"simulated": [over[name]["geometric mean"] for name in names]},
                  "makespan over ios's")
        ],
    )  # fmt: skip


@experiment("top", "Figure 15", "throughput of three models", seconds=1)
def figure_15() -> Record:
    """Reads throughputs of all requests, as in the paper, and of requests that make whole mixes."""
    policies = cell("policies-0.03")
    rows = {
        name: (mean(seeds(*which), "throughput"), mean(seeds(*which), "in mix"))
        for name, which in {**_LEARNERS, **_SEARCHES}.items()
    }
    for name in ("pos, wait", "pos, skip", "sequential", "4 streams", "batches of 8"):
        rows[name] = policies[name]["throughput"], policies[name]["in mix"]
    saturated = {name: row["saturated"]["throughput"] for name, row in policies.items()}
    checks = [
        within(f"{name} over POS that {absent}s, all requests",
               rows[name][0] / rows[f"pos, {absent}"][0], 1.63 * 0.8, 1.63 * 1.2, 1.63)
        for name in _LEARNERS for absent in ("wait", "skip")
    ]  # fmt: skip
    return Record(
        "With three models, TOP serves 63% more than POS.",
        A100,
        checks,
        why="POS that waits for absent models serves few requests, and trained agents serve as "
        "much more as the paper says. POS that skips absent models serves more, and the gain is "
        "smaller. The agents as printed end at a decision with a combined block that is too "
        "large, which serves nothing.",
        remarks="The paper's measure counts all requests. By our own measure, which counts only "
        "whole mixes of 1:2:4, trained agents serve less than POS: they serve many requests of the "
        "cheap model and few of the expensive one. Plain streams serve more by both measures. "
        "With saturated queues a combination found by search serves "
        f"{saturated['search, 200 calls'] / saturated['pos, skip']:.2f} times as many requests as "
        f"POS with skips. {_NOT_TRAINED} "
        f"{made('serving/top/maddpg-small-0', 'serving/top/policies-0.03')}",
        seed="seeds 0 to 4 for MADDPG, 0 as printed, 0 to 2 for ours and the searches",
        tables=[
            Table("Requests a second, at 1.5 times the load of one instance at a time",
                  ["", "all requests", "whole mixes"],
                  [[name, f"{every:.0f}", f"{mix:.0f}"] for name, (every, mix) in rows.items()])
        ],
        charts=[
            Chart("TOP, Figure 15", "bars", list(rows),
                  {"all requests": [row[0] for row in rows.values()],
                   "whole mixes": [row[1] for row in rows.values()]},
                  "requests a second (simulated)"),
            Chart("TOP, Figure 15: all requests, TOP over POS", "bars", list(_LEARNERS),
                  {**{f"POS that {absent}s": [rows[name][0] / rows[f"pos, {absent}"][0]
                                             for name in _LEARNERS]
                      for absent in ("wait", "skip")},
                   "paper": [1.63] * len(_LEARNERS)}, "throughput over POS"),
        ],
    )  # fmt: skip


@experiment("top", "Figure 16", "how much of the GPU is used", seconds=1)
def figure_16() -> Record:
    """Compares TOP's use of the GPU with the use by IOS (one model) and by POS (three models)."""
    single, multi = cell("single-policies"), cell("policies-0.03")
    agents_1 = mean(seeds("single-mended", 2), "utilisation")
    agents_3 = mean(seeds("maddpg-small", 5), "utilisation")
    used = {
        "one model, trained agents over IOS": (
            agents_1 / single["ios stages"]["utilisation"] - 1, 0.26),
        "one model, search over IOS, saturated": (
            single["search, 200 calls"]["saturated"]["utilisation"]
            / single["ios stages"]["saturated"]["utilisation"] - 1, 0.26),
        "three models, trained agents over POS that waits": (
            agents_3 / multi["pos, wait"]["utilisation"] - 1, 0.14),
        "three models, search over POS that waits, saturated": (
            multi["search, 200 calls"]["saturated"]["utilisation"]
            / multi["pos, wait"]["saturated"]["utilisation"] - 1, 0.14),
    }  # fmt: skip
    return Record(
        "TOP uses 26% more of the GPU than IOS on one model, and 14% more than POS on three.",
        A100,
        [
            Check(f"{name}: how much more of the GPU", paper, ours, least=paper / 2)
            for name, (ours, paper) in used.items()
        ],
        why="Trained agents were run at 1.5 times the load of one instance at a time, where they "
        "serve mostly small requests and leave the GPU free. A joint graph of all models, as POS "
        "has it, uses the GPU about as well as combined blocks.",
        remarks=f"{SEARCHED} The search had 200 simulations. The paper does not say whether its "
        "percentages are points; they are taken as shares. At least half of them is accepted. "
        f"{made('serving/top/single-policies', 'serving/top/policies-0.03')}",
        seed="seeds 0 and 1 for one model, seeds 0 to 4 for three models",
    )


@experiment("top", "Figure 20", "stages and groups on four devices", seconds=1)
def figure_20() -> Record:
    """Reads the mean number of stages, and of groups in a stage, by device and scheduler."""
    found = cell("graphs")
    devices = ("nano", "tx2", "xavier-nx", "a100")
    schedulers = ("gpg", "gpg-scored", "ios", "greedy")
    checks = []
    for name in ("gpg", "gpg-scored"):
        poor, rich = (found[f"{device}, {name}"] for device in ("nano", "a100"))
        checks += [
            below(f"{name}: stages on the A100 over those on the Nano",
                  rich["stages"] / poor["stages"], 1.0),
            above(f"{name}: groups a stage on the A100 over those on the Nano",
                  rich["groups a stage"] / poor["groups a stage"], 1.0),
        ]  # fmt: skip
    return Record(
        "The richer the device, the fewer stages a graph has, and the more groups a stage.",
        "the four devices of Table I, simulated from their data sheets",
        checks,
        why="`gpg`, the paper's network, was trained on the A100 and the Xavier NX, and knows a "
        "device only by its latencies. `gpg-scored`, ours, does as the paper says. `ios`, which "
        "minimises the latency, does the opposite.",
        remarks="GPG is not trained on a TX2 and a Nano yet. " + made("serving/top/graphs"),
        tables=[
            Table("Mean number of stages (groups a stage)", ["", *schedulers],
                  [[device, *(f"{row['stages']:.1f} ({row['groups a stage']:.2f})"
                              for row in (found[f"{device}, {name}"] for name in schedulers))]
                   for device in devices])
        ],
        charts=[
            Chart("TOP, Figure 20", "bars", list(devices),
                  {name: [found[f"{device}, {name}"]["stages"] for device in devices]
                   for name in schedulers}, "stages")
        ],
    )  # fmt: skip


@experiment("top", "Figure 21", "training of GPG", seconds=1)
def figure_21() -> Record:
    """Reads the curve of the training: time of the stages over sequential time, by step."""
    run = cell("gpg-training-gpg")
    by_step = dict(run["curve"])
    last = [ratio for step, ratio in run["curve"] if step > 6000]
    before = [ratio for step, ratio in run["curve"] if 4000 < step <= 6000]
    start = [ratio for step, ratio in run["curve"] if step <= 500]
    shown = range(500, run["steps"] + 1, 500)
    return Record(
        "GPG converges within 6,000 steps on each of the four devices, in nearly 20 hours.",
        "an A100 and a Xavier NX together, simulated from their data sheets",
        [
            within("time of the stages after 6,000 steps over that of the 2,000 steps before",
                   float(np.mean(last) / np.mean(before)), 0.98, 1.02),
            below("time of the stages after 6,000 steps over that of the first 500",
                  float(np.mean(last) / np.mean(start)), 1.0),
            Check("hours", 20.0, run["seconds"] / 3600, most=20.0),
        ],
        why="The training has not converged after 6,000 steps.",
        remarks="One network is trained on the blocks of two devices. TX2 and Nano are not trained "
        "yet. Stages are priced by a model, which takes no time. "
        + made("serving/top/gpg-training-gpg"),
        seed="seed 0",
        charts=[
            Chart("TOP, Figure 21", "lines", [str(step) for step in shown],
                  {"gpg": [by_step.get(step) for step in shown]},
                  "time of the stages over sequential")
        ],
    )  # fmt: skip


@experiment("top", "Figure 22", "training of MADDPG", seconds=1)
def figure_22() -> Record:
    """Reads the rewards of the trainings by step, and the rewards of searches.

    A search calls the simulator as often as a training does.
    """
    runs = {name: seeds(*_LEARNERS[name]) for name in ("MADDPG", "MADDPG as printed")}
    curves = {
        name: np.mean([[reward for _, reward in run["curve with noise"]] for run in each], axis=0)
        for name, each in runs.items()
    }
    tenth = len(curves["MADDPG"]) // 10
    finals = {
        name: mean(seeds(*which), "reward") for name, which in {**_LEARNERS, **_SEARCHES}.items()
    }
    steps = [step for step, _ in runs["MADDPG"][0]["curve with noise"]]
    kept = list(range(4, len(steps), 5))
    calls = runs["MADDPG"][0]["calls"]
    return Record(
        "MADDPG converges within 8,000 steps, in about a week.",
        A100,
        [
            *(above(f"{name}: reward of the last tenth of the steps over that of random decisions "
                    "at the start", float(curve[-tenth:].mean() / curve[: 2 * tenth].mean()), 1.0)
              for name, curve in curves.items()),
            Check("hours of one training", 168.0, runs["MADDPG"][0]["seconds"] / 3600, most=168.0),
        ],
        why="As printed, the actors run to the ends of their range. Their decisions then have a "
        "combined block that is too large, for which the paper gives the reward 0.",
        remarks=f"The trainings have {calls:,} steps, so convergence by step 8,000 cannot be "
        "judged. A search with as many simulations finds better decisions than any training: see "
        f"the table. The other three devices are not trained yet. {_NOT_TRAINED} "
        + made("serving/top/maddpg-small-0"),
        seed="seeds 0 to 4; as printed, seed 0",
        tables=[
            Table("Reward of the final decision, mean over the seeds", ["", "reward"],
                  [[name, f"{reward:.2f}"] for name, reward in finals.items()])
        ],
        charts=[
            Chart("TOP, Figure 22", "lines", [str(steps[i]) for i in kept],
                  {name: curve[kept].tolist() for name, curve in curves.items()},
                  "reward of Equation 2")
        ],
    )  # fmt: skip


@experiment("top", "Figure 23", "all models read one queue", seconds=1)
def figure_23() -> Record:
    """Reads the throughput with one queue that all models share."""
    policies = cell("shared-policies")
    runs = seeds("shared-mended", 2)
    pos = max(policies["pos, wait"]["throughput"], policies["pos, skip"]["throughput"])
    searched = policies["search, 200 calls"]["throughput"]
    return Record(
        "If all models read the same input, TOP still serves more than POS.",
        A100,
        [
            above("trained agents over POS", mean(runs, "throughput") / pos, 1.0),
            above("a searched combination over POS", searched / pos, 1.0),
        ],
        why="The trained decisions have a combined block that is too large, and serve nothing. "
        "They had 2,000 steps. A combination found by search serves a little more than POS.",
        remarks=made("serving/top/shared-policies", "serving/top/shared-mended-0"),
        seed="seeds 0 and 1",
        tables=[
            Table("Requests a second", ["", "requests a second"],
                  [["trained agents", f"{mean(runs, 'throughput'):.0f}"],
                   *([name, f"{policies[name]['throughput']:.0f}"]
                     for name in ("search, 200 calls", "pos, wait", "pos, skip", "sequential",
                                  "4 streams"))])
        ],
    )  # fmt: skip


@experiment("top", "Figure 25", "stages and groups by batch", seconds=10)
def figure_25() -> Record:
    """Reads the mean number of stages by batch, and adds those of the paper's scheduler `gpg`."""
    found = cell("graphs-by-batch")
    batches = (1, 4, 16, 64)
    schedulers = ("gpg", "gpg-scored", "ios", "greedy")
    shapes = {
        name: [found[f"{batch}, {name}"] for batch in batches]
        for name in ("gpg-scored", "ios", "greedy")
    }
    shapes["gpg"] = [_shape_of_gpg(batch) for batch in batches]
    checks = [
        check
        for name in ("gpg", "gpg-scored")
        for check in (
            above(f"{name}: stages at batch 64 over those at batch 1",
                  shapes[name][-1]["stages"] / shapes[name][0]["stages"], 1.0),
            below(f"{name}: groups a stage at batch 64 over those at batch 1",
                  shapes[name][-1]["groups a stage"] / shapes[name][0]["groups a stage"], 1.0),
        )
    ]  # fmt: skip
    return Record(
        "The larger the batch, the more slender the graph: more stages, with fewer groups each.",
        A100,
        checks,
        why="`gpg`, the paper's network, hardly changes its stages with the batch. `gpg-scored`, "
        "ours, does as the paper says. Once one operator fills the device, nothing is lost or "
        "gained side by side, so neither shape is faster there.",
        remarks="`ios` has fewer stages at larger batches, and greedy knows no latencies. "
        + made("serving/top/graphs-by-batch"),
        seed="seed 7 for the combined blocks",
        tables=[
            Table("Mean number of stages (groups a stage)", ["batch", *map(str, batches)],
                  [[name, *(f"{row['stages']:.1f} ({row['groups a stage']:.2f})"
                            for row in shapes[name])] for name in schedulers])
        ],
        charts=[
            Chart("TOP, Figure 25", "lines", list(map(str, batches)),
                  {name: [row["stages"] for row in shapes[name]] for name in schedulers}, "stages")
        ],
    )  # fmt: skip


def _shape_of_gpg(batch: int) -> dict[str, float]:
    """Mean numbers of stages, and of groups in a stage, in the schedules of `gpg` at a batch."""
    models = [
        served_model(name, SHEETS["a100"], (batch,) if batch > 1 else ()) for name in NETWORKS
    ]
    priced = [replace(model, costs={1: model.costs[batch]}) for model in models]
    graphs = [joined(priced, parts, "a100") for parts in combinations("a100", 60, 7)]
    made_here = [
        schedule(graph, "gpg", latency) for graph, latency in graphs if graph.num_ops <= 25
    ]
    groups = [len(stage.groups) for each in made_here for stage in each.stages]
    return {
        "stages": float(np.mean([len(each.stages) for each in made_here])),
        "groups a stage": float(np.mean(groups)),
    }
