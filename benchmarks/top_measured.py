"""Measures TOP in the server with real kernels on this CPU, beside policies that run whole models.

    python -m benchmarks.top_measured [--json FILE] [--rounds N] [--seconds S] [--quick]

The networks are real, and each is compiled for one thread. All run in one process. Each contestant
is an executor with its own policy, and gets its requests directly, not over a network connection.
In each round the contestants serve for a while one after the other, in a new random order.

Requests for the three models have the ratio 1:2:4, called a mix. At any time, enough requests are
in progress that no queue is empty. The results are throughputs. They count only requests that make
up whole mixes. Ratios are to the throughput of one instance at a time (`sequential`) in the same
round. Noise is half the interquartile range of the ratios.

Policies of blocks run each block by its own plan, and run the blocks of a combined block side by
side. The simulator can also put operators of several models into one stage. The server cannot. The
agents of `top` learn beforehand on the simulator, with latencies of blocks that are measured here.
`top+` searches on the simulator. The output has the predictions of the simulator beside the
measurements.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.machine_state import observe
from benchmarks.options import add_json, add_rounds
from benchmarks.serving_reality import compiled, inputs_of
from tvm_interop.serving import (
    Combination,
    Policy,
    Programs,
    ServedModel,
    ServingDevice,
    ServingRun,
    make_policy,
    periodic,
    simulate_combined,
    simulate_serving,
)
from tvm_interop.serving.decisions import Environment, Space
from tvm_interop.serving.server.executor import Executor
from tvm_interop.serving.server.measuring import served_model, warm_up
from tvm_interop.serving.server.model import Model
from tvm_interop.serving.server.ticket import Ticket

NETWORKS: tuple[tuple[str, int | None], ...] = (
    ("resnet50", 96), ("squeezenet", 128), ("wide_deep", None)
)  # fmt: skip
MIX = (1.0, 2.0, 4.0)
BLOCKS = 4
MOST = 4
CORES = 2
_UNDER_WAY = 3
"""Number of requests in progress at a time, for each unit of the mix 1:2:4. So a policy that serves
requests first come first served serves the models in this ratio."""


class Contestant:
    """A policy with its own executor and its own copies of the models.

    Attributes
    ----------
    executor: serves the requests.
    make: makes the policy, for the executor and for the simulator.
    seconds_to_begin: time to start the executor, with the preparations of the policy.
    """

    def __init__(
        self, name: str, artifacts: dict[str, Any], make: Callable[[], Policy], blocks: int
    ) -> None:
        self.name = name
        self.make = make
        loaded = [Model(network, made, max(blocks, CORES)) for network, made in artifacts.items()]
        began = time.perf_counter()
        self.executor = Executor(loaded, make, instances=CORES, blocks=blocks)
        self.seconds_to_begin = time.perf_counter() - began

    def serve(self, inputs: dict[str, dict[str, np.ndarray]], seconds: float) -> dict[str, int]:
        """Serve for `seconds` seconds, and return the number of requests served, by model.

        At all times, some requests of each model are in progress, so that no queue is empty.
        """
        served = dict.fromkeys(inputs, 0)
        lock, until = threading.Lock(), time.perf_counter() + seconds
        left = threading.Semaphore(0)

        def done(ticket: Ticket) -> None:
            if ticket.error is not None or time.perf_counter() >= until:
                left.release()
                return
            with lock:
                served[ticket.served] += 1
            self.executor.submit(ticket.served, inputs[ticket.served], done)

        under_way = [round(_UNDER_WAY * share) for share in MIX[: len(inputs)]]
        for (name, given), count in zip(inputs.items(), under_way, strict=True):
            for _ in range(count):
                self.executor.submit(name, given, done)
        for _ in range(sum(under_way)):
            left.acquire()
        if self.executor.broken is not None:
            raise RuntimeError(f"{self.name}: {self.executor.broken}")
        return served


def measured_blocks(artifacts: dict[str, Any]) -> list[ServedModel]:
    """The models for the simulator: each is a chain of blocks with their measured latencies."""
    found = []
    for name, made in artifacts.items():
        model = Model(name, made, CORES)
        warm_up(model)
        model.divide(BLOCKS)
        found.append(served_model(model))
    return found


def learned(served: Sequence[ServedModel], device: ServingDevice, steps: int, seed: int) -> Any:
    """Train agents of `top` for the given blocks, by MADDPG on the simulator.

    The neural networks of the agents are smaller than in the paper.
    """
    import torch

    from tvm_interop.serving.decisions import Agents
    from tvm_interop.serving.learning.maddpg import MaddpgConfig, MaddpgTraining

    torch.set_num_threads(1)
    programs = Programs(served, device)
    alone_us = [programs.model_us(m) for m in range(len(served))]
    shares = np.array(MIX[: len(served)]) / sum(MIX[: len(served)])
    mean_us = float(shares @ alone_us)
    seconds = 150 * mean_us / 1e6
    arrivals = periodic((2.5e6 / mean_us * shares).tolist(), seconds)
    space = Space(
        tuple(len(model.blocks) for model in served), shortest_s=2e-7 * mean_us,
        longest_s=2e-5 * mean_us,
    )  # fmt: skip

    def serve(combination: Combination, interval_us: list[float]) -> ServingRun:
        return simulate_combined(programs, arrivals, combination, seconds, interval_us=interval_us)

    environment = Environment(served, space, serve, MOST, "throughput", seed)
    config = MaddpgConfig(
        steps=steps, random_steps=max(100, steps // 4), gamma=0.0, centring=0.05,
        shared_reward=True, critic=(256, 128, 64), actor=(128, 64), actor_rate=3e-4, seed=seed,
    )  # fmt: skip
    training = MaddpgTraining(environment, config)
    training.run()
    return Agents(space, training.actors.arrays())


def predicted(
    served: Sequence[ServedModel], device: ServingDevice, make: Callable[[], Policy]
) -> float:
    """Simulated throughput of a policy with saturated queues (see `in_mix`)."""
    programs = Programs(served, device)
    shares = np.array(MIX[: len(served)]) / sum(MIX[: len(served)])
    mean_us = float(shares @ [programs.model_us(m) for m in range(len(served))])
    seconds = 400 * mean_us / 1e6
    arrivals = periodic((3e6 / mean_us * shares).tolist(), seconds)
    run = simulate_serving(served, arrivals, make(), device, seconds, programs=programs)
    return in_mix(run.served(), seconds)


def in_mix(served: Any, seconds: float) -> float:
    """Throughput in requests per second. Only requests that make up whole mixes count.

    The result is decided by the model that is furthest below its share of the mix.

    Parameters
    ----------
    served: number of requests served of each model.
    """
    counts = np.asarray(list(served), dtype=np.float64)
    shares = np.array(MIX[: len(counts)]) / sum(MIX[: len(counts)])
    return float((counts / shares).min() / seconds)


def measure(
    networks: Sequence[tuple[str, int | None]] = NETWORKS,
    rounds: int = 15,
    seconds: float = 1.5,
    steps: int = 1500,
) -> dict[str, Any]:
    """Measure and simulate all contestants, and return the results for JSON.

    Each contestant serves for `seconds` in a round. The agents of `top` are trained with `steps`
    steps.
    """
    machine = observe().as_dict()
    artifacts = {name: compiled(name, size) for name, size in networks}
    served = measured_blocks(artifacts)
    cores = max(1.0, min(2.0, observe(0.2).cores_at_once))
    device = ServingDevice(cores=cores)
    rates = list(MIX[: len(served)])
    began = time.perf_counter()
    agents = learned(served, device, steps, 0)
    seconds_to_learn = time.perf_counter() - began
    policies: dict[str, tuple[Callable[[], Policy], int]] = {
        "sequential": (lambda: make_policy("sequential"), 1),
        "sequential again": (lambda: make_policy("sequential"), 1),
        "2 streams": (lambda: make_policy("streams", streams=2), 1),
        "search, TOP's rule": (
            lambda: make_policy("search", budget=60, most=MOST, rates=rates, inside=BLOCKS), BLOCKS
        ),
        "top": (
            lambda: make_policy(
                "top", agents=agents, most=MOST, schedule="greedy", inside=BLOCKS, threshold=4.0
            ), BLOCKS,
        ),
        "top+": (lambda: make_policy("top+", budget=20, rates=rates, inside=BLOCKS), BLOCKS),
    }  # fmt: skip
    contestants = [
        Contestant(name, artifacts, make, blocks) for name, (make, blocks) in policies.items()
    ]
    inputs = {name: inputs_of(made) for name, made in artifacts.items()}
    counts: dict[str, list[list[int]]] = {name: [] for name in policies}
    load, cores_seen = [], []
    rng = random.Random(0)
    for contestant in contestants:
        contestant.serve(inputs, 0.3)
    for _ in range(rounds):
        rng.shuffle(contestants)
        for contestant in contestants:
            found = contestant.serve(inputs, seconds)
            counts[contestant.name].append([found[name] for name in artifacts])
        load.append(os.getloadavg()[0])
        cores_seen.append(observe(0.1).cores_at_once)
    explained = {c.name: [text for _, text in c.executor.explanation()][:3] for c in contestants}
    begin_s = {c.name: c.seconds_to_begin for c in contestants}
    for contestant in contestants:
        contestant.executor.close()
    base = [in_mix(row, seconds) for row in counts["sequential"]]
    said_base = predicted(served, device, policies["sequential"][0])
    rows = []
    for name, (make, _) in policies.items():
        values = [in_mix(row, seconds) for row in counts[name]]
        totals = [sum(row) / seconds for row in counts[name]]
        ratios = [a / b for a, b in zip(values, base, strict=True)]
        low, middle, high = np.percentile(ratios, [25, 50, 75])
        said = predicted(served, device, make)
        rows.append(
            {
                "policy": name, "in mix": statistics.median(values),
                "requests a second": statistics.median(totals), "over sequential": float(middle),
                "noise": float(high - low) / 2, "predicted in mix": said,
                "predicted over sequential": said / said_base,
                "seconds to begin": begin_s[name], "said": explained[name],
            }
        )  # fmt: skip
    return {
        "machine": machine, "networks": [list(n) for n in networks], "mix": rates,
        "blocks_ms": [(model.costs[1].op_us / 1e3).tolist() for model in served],
        "cores_at_once": [cores, statistics.median(cores_seen)], "load": load,
        "rounds": rounds, "seconds": seconds, "steps": steps, "seconds_to_learn": seconds_to_learn,
        "rows": rows, "counts": counts,
    }  # fmt: skip


def table(found: dict[str, Any]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| policy | requests in whole mixes a second | all requests a second | over sequential "
        "| noise | simulated, in whole mixes | over sequential |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in found["rows"]:
        lines.append(
            f"| {row['policy']} | {row['in mix']:.0f} | {row['requests a second']:.0f} | "
            f"{row['over sequential']:.2f} | {row['noise']:.2f} | {row['predicted in mix']:.0f} | "
            f"{row['predicted over sequential']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_json(parser, "everything")
    add_rounds(parser, 15)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a contestant in a round")
    parser.add_argument("--quick", action="store_true", help="two networks, two short rounds")
    options = parser.parse_args()
    if options.quick:
        found = measure(NETWORKS[1:], 2, 0.3, 300)
    else:
        found = measure(NETWORKS, options.rounds, options.seconds)
    print(table(found))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
