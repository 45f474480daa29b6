"""HIOS-LP: the longest path of what is left to the GPU that suits it best, again and again."""

from __future__ import annotations

import time

from .._native import passes as native
from ..latency.base import LatencyModel
from ..program.graph import OpGraph
from .on_gpus import GpuPrices, check_gpu_options, gpu_schedule, with_windows
from .registry import register_scheduler
from .schedules import Schedule


@register_scheduler("hios-lp")
def hios_lp(
    graph: OpGraph,
    latency: LatencyModel | None,
    gpus: int = 2,
    window: int = 2,
    intra: str = "windows",
) -> Schedule:
    """HIOS-LP: Kundu and Shu, CLUSTER 2023, Algorithms 1 and 2.

    The longest valid path of operators that are not mapped yet goes to the GPU on which the latency
    of all that is mapped is lowest, until none is left. Then neighbours on a GPU start together
    where that makes the schedule shorter. A path is valid where none of its operators but the first
    and the last has an edge to or from one that is mapped; its length counts operators, copies, and
    the longest copy into its first operator and out of its last one.

    The listing of Algorithm 2 keeps a window before it is known to be better, and looks for circles
    along the data alone. Here only what is better stays, and stages may not wait for each other in
    a circle that leads along a GPU's order either.

    Ties: priorities by topological order; of paths that whose first operator comes first there,
    then the shorter, then the next operator that comes first; the lowest GPU; the smallest window.

    Parameters
    ----------
    gpus: how many there are, all alike.
    window: most operators that start together on a GPU.
    intra: `windows`, or `none` for one operator at a time on each GPU.

    Complexity: O(paths * gpus * (n + edges)), then O(n + edges) for each operator on a longest
    path.
    """
    started = time.perf_counter()
    check_gpu_options(gpus, window, intra)
    prices = GpuPrices.required(graph, latency, "hios-lp")
    orders = native.hios_lp(*prices.costs(gpus), gpus)
    stages, makespan = with_windows(prices, orders, window, intra)
    return gpu_schedule("hios-lp", prices, stages, makespan, started)
