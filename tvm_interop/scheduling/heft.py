"""The scheduler `heft`: each operator goes to the GPU on which it finishes first."""

from __future__ import annotations

import time

from .._native import passes as native
from ..latency.base import LatencyModel
from ..program.graph import OpGraph
from .on_gpus import GpuPrices, check_gpu_options, gpu_schedule, with_windows
from .registry import register_scheduler
from .schedules import Schedule


@register_scheduler("heft")
def heft(
    graph: OpGraph,
    latency: LatencyModel | None,
    gpus: int = 2,
    window: int = 2,
    intra: str = "windows",
) -> Schedule:
    """HEFT: list scheduling over GPUs that may insert operators into gaps (Topcuoglu et al., 2002).

    The operators are placed by descending priority. Each operator goes to the GPU on which it
    finishes first. On this GPU, it takes the first gap between other operators that is long enough.
    The priority of an operator is computed as in HIOS. It equals the upward rank in HEFT's paper
    (Topcuoglu, Hariri and Wu, TPDS 2002), because all GPUs are alike.

    After the placement, neighbouring operators on a GPU are merged into a stage if this makes the
    schedule shorter. The operators of such a stage, called a window, start together. This step is
    the same as in `hios-lp`, except that operators are visited by start time.

    Ties: operators of equal priority are placed in topological order. Among equally good GPUs or
    windows, the lowest GPU and the smallest window win.

    Parameters
    ----------
    gpus, window, intra: as in `hios-lp`.

    Complexity: O(n * gpus * operators of a GPU + gpus * edges) for the placement. Merging takes as
        long as in `hios-lp`.
    """
    started = time.perf_counter()
    check_gpu_options(gpus, window, intra)
    prices = GpuPrices.required(graph, latency, "heft")
    orders = native.heft(*prices.costs(gpus), gpus, False)
    stages, makespan = with_windows(prices, orders, window, intra, opened="by start")
    return gpu_schedule("heft", prices, stages, makespan, started)
