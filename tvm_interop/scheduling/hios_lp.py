"""The scheduler `hios-lp`: it takes longest paths one by one, and maps each to the best GPU."""

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

    The longest valid path of unmapped operators goes to the GPU on which the schedule of all mapped
    operators becomes shortest. This step is repeated until every operator is mapped. Then
    neighbouring operators on a GPU become one stage if this makes the schedule shorter. The
    operators of such a stage, which is called a window, start together.

    A path is valid if no operator inside it has an edge to or from a mapped operator. Only the
    first and the last operator of a path may have such edges. The length of a path is the sum of
    the latencies of its operators and of the copies between them. To this length, the longest copy
    into the first operator and the longest copy out of the last operator are added.

    This implementation differs from the printed Algorithm 2 in two ways. First, the paper keeps a
    window before it knows whether the window is better. Here a window is kept only if it makes the
    schedule shorter. Second, the paper looks for circular waits only along the edges of the graph.
    Here circular waits that arise from the order of the operators on a GPU are ruled out too.

    Ties: operators of equal priority are ordered topologically. Among equally long paths, the path
    whose first operator comes first in topological order wins. At each operator of a path, ending
    the path there wins over an equally long continuation. Among equally long continuations, the one
    whose next operator comes first wins. The lowest GPU and the smallest window win.

    Parameters
    ----------
    gpus: number of GPUs. They are all alike.
    window: largest number of operators that start together on a GPU.
    intra: `windows`, or `none` for one operator at a time on each GPU.

    Complexity: O(paths * gpus * (n + edges)) for the mapping. Merging takes O(n + edges) for each
        operator on a longest path.
    """
    started = time.perf_counter()
    check_gpu_options(gpus, window, intra)
    prices = GpuPrices.required(graph, latency, "hios-lp")
    orders = native.hios_lp(*prices.costs(gpus), gpus)
    stages, makespan = with_windows(prices, orders, window, intra)
    return gpu_schedule("hios-lp", prices, stages, makespan, started)
