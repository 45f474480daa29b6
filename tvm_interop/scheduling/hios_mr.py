"""The scheduler `hios-mr`: it maps operators to GPUs by a recurrence over operators and GPUs."""

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
    operator on each GPU. To do so, it keeps one mapping of the operators for each GPU: the best
    mapping in which the previous operator runs on that GPU. It then adds the next operator to each
    of these mappings. At the end, neighbouring operators on a GPU are merged into a stage if this
    makes the schedule shorter (see `hios-lp`). The operators of such a stage, called a window,
    start together.

    The printed Algorithm 3 chooses the mapping in which the last operator ends earliest. But
    another operator whose output nobody reads may end later. So from the mappings that the
    recurrence kept for the last operator, this scheduler chooses the mapping with the lowest
    latency of the whole graph.

    Ties: operators of equal priority are ordered topologically. The lowest GPU and the smallest
    window win.

    Parameters
    ----------
    gpus, window, intra: as in `hios-lp`.

    Complexity: O(n * gpus * (n + gpus) + gpus^2 * edges) for the mapping. Merging takes as long as
        in `hios-lp`.
    """
    started = time.perf_counter()
    check_gpu_options(gpus, window, intra)
    prices = GpuPrices.required(graph, latency, "hios-mr")
    orders = native.hios_mr(*prices.costs(gpus), gpus)
    stages, makespan = with_windows(prices, orders, window, intra)
    return gpu_schedule("hios-mr", prices, stages, makespan, started)
