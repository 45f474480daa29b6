"""Measurements of models on this machine, made before the first request.

The policies of the server base their decisions on the measured latencies.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence

import numpy as np

from ...execution.threads import num_threads
from ...program.graph import OpGraph
from ..models import OperatorCosts, ServedModel, ServingDevice
from .any_model import AnyModel

_RUNS = 5
"""The minimum number of runs that are measured for each batch size."""
_BUDGET_S = 0.2
"""After `_RUNS` runs, more runs follow until this many seconds are spent or 20 runs are done."""


def warm_up(model: AnyModel) -> None:
    """Run each instance once with each batch size, and measure the latency of each batch size."""
    for size in model.sizes:
        for slot in range(model.num_instances):
            model.run_once(slot, size)
        took: list[float] = []
        while len(took) < _RUNS or (sum(took) < _BUDGET_S and len(took) < 20):
            took.append(model.run_once(0, size))
        model.statistics.measured(size, took)


def served_model(model: AnyModel) -> ServedModel:
    """Describe a warmed-up model for policies.

    The graph of the model is a single operator, which stands for the whole run. A model that is
    divided into blocks is a chain of operators, one per block.

    The number of cores that a run keeps busy is estimated from the slowdown of two instances that
    run at the same time.
    """
    if model.num_blocks > 1:
        block_us = np.median([model.run_blocks_once(0) for _ in range(_RUNS)], axis=0) * 1e6
        count = model.num_blocks
        graph = OpGraph.from_edges(
            [f"block {b}" for b in range(count)], [(b, b + 1) for b in range(count - 1)]
        )
        busy = _busy_cores(model, model.sizes[0])
        by_block = OperatorCosts(block_us, np.full(count, busy), np.zeros(count))
        return ServedModel(model.name, graph, {1: by_block}, tuple((b,) for b in range(count)))
    costs = {
        size: OperatorCosts(
            np.array([model.statistics.median_us(size)]),
            np.array([_busy_cores(model, size)]),
            np.zeros(1),
        )
        for size in model.sizes
    }
    if 1 not in costs:
        # Policies need costs for batch size 1. If the model lacks it, a single row runs in a batch
        # of the smallest size.
        costs[1] = costs[model.sizes[0]]
    return ServedModel(model.name, OpGraph(["run"], []), costs)


def device(models: Sequence[AnyModel]) -> ServingDevice:
    """Describe this machine for policies."""
    most = max((model.num_instances for model in models), default=1)
    return ServingDevice(cores=float(min(num_threads(), most)))


def _busy_cores(model: AnyModel, size: int) -> float:
    """Return the number of cores that an instance keeps busy with a batch of `size`."""
    cores = min(num_threads(), model.num_instances)
    if cores < 2:
        return float(cores)
    together_s = _side_by_side(model, size)
    alone_s = model.statistics.median_us(size) / 1e6
    # Suppose that one instance alone keeps x of 2 cores busy. If two instances run at the same
    # time, they share the 2 cores, so each takes x times as long.
    return float(np.clip(together_s / alone_s, 1.0, 2.0)) * cores / 2


def _side_by_side(model: AnyModel, size: int) -> float:
    """Return the median latency, in seconds, while another instance runs all the time."""
    stop = threading.Event()
    started = threading.Event()

    def beside() -> None:
        while not stop.is_set():
            model.run_once(1, size)
            started.set()

    other = threading.Thread(target=beside, name="tvm-interop-measure")
    other.start()
    try:
        started.wait()
        took: list[float] = []
        until = time.perf_counter() + _BUDGET_S
        while len(took) < _RUNS or (time.perf_counter() < until and len(took) < 20):
            took.append(model.run_once(0, size))
    finally:
        stop.set()
        other.join()
    return statistics.median(took)
