"""Trains GPG, TOP's learned scheduler, and compares it with other schedulers and the optimum."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.top_blocks import (
    DEVICES,
    Graph,
    of_held_out_model,
    perturbed,
    small_blocks,
    split,
)
from tvm_interop.latency.contended import ContendedLatency
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import schedule
from tvm_interop.scheduling.endings import Mask, endings
from tvm_interop.scheduling.gpg import MAX_GROUP_OPS, MAX_GROUPS
from tvm_interop.serving.learning.gpg import GpgConfig, GpgTraining, Task, save_weights

STEPS = {"gpg": 8000, "gpg-scored": 6000}
BEAM_WIDTH = 8


def train(variant: str, folder: Path, seed: int = 0, steps: int | None = None) -> dict[str, Any]:
    """Train GPG on combined blocks of two devices, and on copies with changed latencies.

    The weights and a checkpoint are written into `folder`. If there is a checkpoint, the training
    continues from it.

    Parameters
    ----------
    variant: `gpg` or `gpg-scored`.
    steps: number of steps; None for the number in `STEPS`.
    """
    graphs = [graph for device in DEVICES for graph in split(device)[0]]
    tasks = [Task.of(*graph) for graph in (*graphs, *perturbed(graphs))]
    config = GpgConfig(variant=variant, steps=steps or STEPS[variant], seed=seed)
    training = GpgTraining(tasks, config)
    began = time.process_time()
    path = folder / f"{variant}-{seed}.checkpoint.npz"
    weights = training.run(checkpoint_path=path, every=1000, quiet=False)
    save_weights(folder / f"{variant}-{seed}.npz", weights)
    return {"steps": config.steps, "seconds": time.process_time() - began, "curve": training.curve}


def beam_search(graph: OpGraph, latency: ContendedLatency, width: int = BEAM_WIDTH) -> float:
    """The makespan in microseconds of the best stages that a beam search finds.

    The search chooses the last stage first. A state is a set of remaining operators, and its
    endings are the stages that may come last. States are ranked by the microseconds of the stages
    chosen so far, relative to the latency of the operators in them. For each state the latencies of
    all endings are computed, or of the first 4,096 if there are more.

    Parameters
    ----------
    width: number of states that are kept.
    """
    task = Task.of(graph, latency)
    block = task.block
    everything = (1 << len(block)) - 1
    beam: dict[Mask, float] = {everything: 0.0}
    best = math.inf
    while beam:
        reached: dict[Mask, float] = {}
        for remaining, spent_us in beam.items():
            found = endings(block.successors, remaining, MAX_GROUP_OPS, MAX_GROUPS)
            candidates = [found.numbered(i) for i in range(min(found.count, 4096))]
            for ending, us in zip(candidates, task.price(candidates), strict=True):
                after = remaining & ~sum(ending)
                total_us = spent_us + float(us)
                if after == 0:
                    best = min(best, total_us)
                elif total_us < reached.get(after, math.inf):
                    reached[after] = total_us
        masks = list(reached)
        if not masks:
            break
        left = block.rows(masks) @ block.us
        spent = np.array([reached[mask] for mask in masks])
        # All states have the same number of stages, but the operators in these stages take
        # different times. So rank by the time of the stages, relative to the total latency of their
        # operators.
        order = np.argsort(spent / np.maximum(block.total_us - left, 1e-12), kind="stable")
        beam = {masks[i]: reached[masks[i]] for i in order[:width]}
    return best


def _by(name: str, **options: Any) -> Callable[[Graph], float]:
    def made(graph: Graph) -> float:
        found = schedule(graph[0], name, graph[1], **options)
        assert found.makespan is not None
        return found.makespan

    return made


def exact_gaps(
    device: str, weights: dict[str, Path | None], graphs: Sequence[Graph] | None = None
) -> dict[str, Any]:
    """Makespans of schedulers over the optimum, for blocks of up to 11 operators.

    Parameters
    ----------
    weights: file with the weights of each variant of GPG; None for the default weights.
    graphs: the blocks; None for `small_blocks` of the device.

    Raises
    ------
    AssertionError: a block is too large for the exact search.
    """
    graphs = small_blocks(device) if graphs is None else graphs
    rows: dict[str, list[float]] = {name: [] for name in ("greedy", *weights)}
    wins = 0
    for graph in graphs:
        best = _exact(graph)
        wins += best < float(graph[1].op_us.sum()) * (1 - 1e-9)
        rows["greedy"].append(_by("greedy")(graph) / best)
        for name, path in weights.items():
            rows[name].append(_by(name, weights=path)(graph) / best)
    return {
        "device": device,
        "blocks": len(graphs),
        "where side by side pays": wins,
        **{
            name: {
                "most": max(ratios),
                "mean": float(np.mean(ratios)),
                "within 5%": sum(r <= 1.05 for r in ratios),
            }
            for name, ratios in rows.items()
        },
    }


def _exact(graph: Graph) -> float:
    found = schedule(graph[0], "ios", graph[1])
    assert found.makespan is not None
    if not found.stats["optimal"]:
        raise AssertionError(
            f"a block of {graph[0].num_ops} operators is too large for the exact search: "
            "leave it out"
        )
    return found.makespan


def large_blocks(device: str, weights: dict[str, Path | None]) -> dict[str, Any]:
    """Makespans of schedulers, divided by the makespan of `ios`, for combined blocks of 20 to 60
    operators.

    No training has seen these blocks. Seconds are processor time. `ios` searches each combined
    block as a whole, with its default budget. In a block that is too large, it searches parts with
    beams.

    Parameters
    ----------
    weights: file with the weights of each variant of GPG; None for the default weights.
    """
    sets = {"held-out combinations": split(device)[1], "held-out model": of_held_out_model(device)}
    contestants: dict[str, Callable[[Graph], float]] = {
        "sequential": _by("sequential"),
        "greedy": _by("greedy"),
        f"beam of {BEAM_WIDTH}": lambda graph: beam_search(*graph),
        "ios": _by("ios"),
        **{name: _by(name, weights=path) for name, path in weights.items()},
    }
    found: dict[str, Any] = {"device": device}
    for label, graphs in sets.items():
        chosen = [graph for graph in graphs if 20 <= graph[0].num_ops <= 60]
        makespans: dict[str, list[float]] = {}
        seconds: dict[str, float] = {}
        for name, run in contestants.items():
            began = time.process_time()
            makespans[name] = [run(graph) for graph in chosen]
            seconds[name] = (time.process_time() - began) / len(chosen)
        over = np.array(makespans["ios"])
        found[label] = {
            "blocks": len(chosen),
            "operators": [graph[0].num_ops for graph in chosen],
            "over ios": {
                name: {
                    "geometric mean": float(np.exp(np.log(np.array(us) / over).mean())),
                    "least": float((np.array(us) / over).min()),
                    "most": float((np.array(us) / over).max()),
                }
                for name, us in makespans.items()
            },
            "seconds a block": seconds,
        }
    return found


def printed_reward(graphs: Sequence[Graph], gamma: float = 0.95) -> list[dict[str, float]]:
    """Solve blocks exactly, by dynamic programming, for the paper's return and for the makespan.

    The return is the sum over stages of gamma^t exp(-milliseconds). The index t counts from the
    first choice, which is the last stage. The value of a state is discounted by gamma at each step
    of the recursion.
    """
    found = []
    for graph, latency in graphs:
        task = Task.of(graph, latency)
        best: dict[Mask, tuple[float, float, int]] = {0: (0.0, 0.0, 0)}
        least: dict[Mask, tuple[float, int]] = {0: (0.0, 0)}

        def solve(remaining: Mask, task: Task = task, best: Any = best, least: Any = least) -> None:
            if remaining in best:
                return
            possible = endings(task.block.successors, remaining, MAX_GROUP_OPS, MAX_GROUPS)
            candidates = [possible.numbered(i) for i in range(possible.count)]
            prices = task.price(candidates)
            rewarded, shortest = [], []
            for ending, us in zip(candidates, prices.tolist(), strict=True):
                after = remaining & ~sum(ending)
                solve(after)
                value, makespan, stages = best[after]
                rewarded.append((math.exp(-us / 1e3) + gamma * value, us + makespan, stages + 1))
                shortest.append((us + least[after][0], least[after][1] + 1))
            best[remaining] = max(rewarded)
            least[remaining] = min(shortest)

        everything = (1 << len(task.block)) - 1
        solve(everything)
        _, makespan_us, stages = best[everything]
        found.append(
            {
                "operators": graph.num_ops,
                "sequential_us": task.block.total_us,
                "paper_reward_us": makespan_us,
                "paper_reward_stages": stages,
                "least_us": least[everything][0],
                "least_stages": least[everything][1],
            }
        )
    return found
