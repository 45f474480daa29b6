"""Makes combined blocks, on which the scheduler GPG is trained and evaluated.

A combined block is a graph of blocks of several models that TOP runs together.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np

from benchmarks.serving_cells import NETWORKS, served_model
from tvm_interop.latency.contended import ContendedLatency
from tvm_interop.program.graph import OpGraph
from tvm_interop.serving import ServedModel, ServingDevice
from tvm_interop.serving.devices import SHEETS
from tvm_interop.serving.programs import Part, joint_graph

DEVICES = ("a100", "xavier-nx")
HELD_OUT = "googlenet"
"""A model that takes part in no training."""
Graph = tuple[OpGraph, ContendedLatency]


def models_on(device: str, names: Sequence[str] = tuple(NETWORKS)) -> list[ServedModel]:
    """Networks on the data sheet of a device, divided into blocks.

    The models of the TOP paper have as many blocks as in the paper. Other models have nine.
    """
    found = [served_model(name, SHEETS[device]) for name in names]
    return [m if m.name in NETWORKS else m.divided(9) for m in found]


def joined(models: Sequence[ServedModel], parts: Sequence[Part], device: str) -> Graph:
    """A combined block and its latencies, with contention but without interference.

    Parameters
    ----------
    parts: the blocks to combine, each as the index of a model and of a block.
    """
    graph, costs, _ = joint_graph(models, parts)
    limits = ServingDevice.described(SHEETS[device])
    return graph, ContendedLatency(
        costs.op_us, limits.cores, limits.bandwidth, costs.op_cores, costs.memory_share
    )


def combinations(device: str, count: int, seed: int, most: int = 4) -> list[tuple[Part, ...]]:
    """`count` different random sets of 1 to `most` blocks of the models in the TOP paper.

    A set with a single operator is left out.
    """
    rng = random.Random(seed)
    models = models_on(device)
    every = [(m, b) for m, model in enumerate(models) for b in range(len(model.blocks))]
    found: dict[tuple[Part, ...], None] = {}
    while len(found) < count:
        parts = tuple(sorted(rng.sample(every, rng.randint(1, most))))
        if sum(len(models[m].blocks[b]) for m, b in parts) > 1:
            found[parts] = None
    return list(found)


def split(device: str, count: int = 160, seed: int = 7) -> tuple[list[Graph], list[Graph]]:
    """`count` combined blocks: four fifths for training, and one fifth held out for evaluation."""
    models = models_on(device)
    made = [joined(models, parts, device) for parts in combinations(device, count, seed)]
    kept = count * 4 // 5
    return made[:kept], made[kept:]


def perturbed(graphs: Sequence[Graph], seed: int = 23) -> list[Graph]:
    """Copies of `graphs` whose latencies are changed at random.

    Each operator's time is multiplied by a random factor. The numbers of cores and the memory
    shares are permuted among the operators of a graph.
    """
    rng = np.random.default_rng(seed)
    found: list[Graph] = []
    for graph, latency in graphs:
        dealt = rng.permutation(graph.num_ops)
        us = latency.op_us * rng.lognormal(0.0, 0.6, graph.num_ops)
        changed = ContendedLatency(
            us, latency.cores, latency.bandwidth, latency.op_cores[dealt],
            latency.memory_share[dealt],
        )  # fmt: skip
        found.append((graph, changed))
    return found


def of_held_out_model(device: str, count: int = 16, seed: int = 11) -> list[Graph]:
    """`count` random combined blocks of two to four blocks of the held-out model."""
    models = models_on(device, (HELD_OUT,))
    rng = random.Random(seed)
    every = [(0, b) for b in range(len(models[0].blocks))]
    return [
        joined(models, sorted(rng.sample(every, rng.randint(2, 4))), device) for _ in range(count)
    ]


def small_blocks(device: str, most: int = 11) -> list[Graph]:
    """All blocks and pairs of blocks with 2 to `most` operators, from four models.

    The models are those of the TOP paper and `HELD_OUT`. Each model is divided into blocks in two
    ways: by `OpGraph.blocks`, and as TOP divides it. A pair may also have a block of a single
    operator. Only one of several blocks with the same edges and latencies is kept.
    """
    found: list[Graph] = []
    seen: set[tuple[object, ...]] = set()
    distinct: list[tuple[ServedModel, Part]] = []
    for name in (*NETWORKS, HELD_OUT):
        whole = served_model(name, SHEETS[device])
        divided = models_on(device, (name,))[0]
        fine = ServedModel(name, whole.graph, whole.costs)
        for model in (fine, divided):
            for number in range(len(model.blocks)):
                if len(model.blocks[number]) <= most:
                    graph, latency = joined([model], [(0, number)], device)
                    key = _key(graph, latency)
                    if key not in seen:
                        seen.add(key)
                        distinct.append((model, (0, number)))
                        if graph.num_ops > 1:
                            found.append((graph, latency))
    for (a, (_, i)), (b, (_, j)) in itertools.combinations_with_replacement(distinct, 2):
        if len(a.blocks[i]) + len(b.blocks[j]) <= most:
            graph, latency = joined([a, b], [(0, i), (1, j)], device)
            key = _key(graph, latency)
            if key not in seen:
                seen.add(key)
                found.append((graph, latency))
    return found


def _key(graph: OpGraph, latency: ContendedLatency) -> tuple[object, ...]:
    return graph.edges, latency.op_us.tobytes(), latency.op_cores.tobytes()
