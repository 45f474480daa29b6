"""Makes small random models to serve, and arrivals."""

from __future__ import annotations

import random

from tests.graphs import latencies, layered
from tvm_interop.latency.contended import ContendedLatency
from tvm_interop.serving import ServedModel, ServingDevice


def random_models(seed: int, count: int | None = None, cores: float = 4.0) -> list[ServedModel]:
    """One to three random models of up to ten operators. Each operator needs one to three cores."""
    rng = random.Random(seed)
    models = []
    for i in range(count or rng.randint(1, 3)):
        graph = layered(rng.randint(1, 10), seed * 7 + i)
        op_us = latencies(graph.num_ops, seed + i)
        op_cores = [rng.choice([1.0, 2.0, 3.0]) for _ in graph.names]
        shares = [rng.choice([0.0, 0.3, 0.8]) for _ in graph.names]
        latency = ContendedLatency(op_us, cores, 1.0, op_cores, shares)
        models.append(ServedModel.priced(f"m{i}", graph, latency))
    return models


def random_device(seed: int) -> ServingDevice:
    """A device of four cores. Some devices have interference, barriers and launch times."""
    rng = random.Random(seed)
    return ServingDevice(
        4.0,
        1.0,
        rng.choice([0.0, 0.03, 0.1]),
        rng.choice([0.0, 1.0]),
        rng.choice([0.0, 5.0]),
        rng.choice([0.0, 0.0, 1.0]),
    )
