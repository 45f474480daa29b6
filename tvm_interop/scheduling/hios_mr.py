"""The scheduler `hios-mr`: a recurrence over the operators and the GPUs that they may run on."""

from __future__ import annotations

import time

from .._native import passes as native
from ..latency.base import LatencyModel
from ..program.graph import OpGraph
from .on_gpus import GpuPrices, check_gpu_options, gpu_schedule, with_windows
from .registry import register_scheduler
from .schedules import Schedule


@register_scheduler("hios-mr")
def hios_mr(
    graph: OpGraph,
    latency: LatencyModel | None,
    gpus: int = 2,
    window: int = 2,
    intra: str = "windows",
) -> Schedule:
    """HIOS-MR: Kundu and Shu, CLUSTER 2023, Algorithms 3 and 2.

    The operators are taken by descending priority. A recurrence finds the earliest finish of each
    operator on each GPU. For each GPU it keeps the best mapping that has the latest operator on
    this GPU, and extends each of these mappings by the next operator. Then neighbouring operators
    on a GPU start together where that makes the schedule shorter, as in `hios-lp`.

    The printed Algorithm 3 ends with the mapping in which the last operator ends first. Another
    sink of the graph may end later. So here the best mappings for the last operator on each GPU are
    compared by their latency.

    Ties: equal priorities are ordered by topological order. After that, the lowest GPU and the
    smallest window are taken.

    Parameters
    ----------
    gpus, window, intra: as in `hios-lp`.

    Complexity: O(n * gpus * (n + gpus) + gpus^2 * edges), then as `hios-lp`.
    """
    started = time.perf_counter()
    check_gpu_options(gpus, window, intra)
    prices = GpuPrices.required(graph, latency, "hios-mr")
    orders = native.hios_mr(*prices.costs(gpus), gpus)
    stages, makespan = with_windows(prices, orders, window, intra)
    return gpu_schedule("hios-mr", prices, stages, makespan, started)
