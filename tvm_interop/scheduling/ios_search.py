"""The search that the variants of IOS share: enumerate, price, solve."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from ..errors import ScheduleError
from ..graph import OpGraph
from ..latency.base import LatencyModel, check_size
from .ios_pricing import Bounds, Merges, price_all, price_bounded
from .options import check_counts, check_streams, required_latency, us_since
from .schedule import Schedule, Stage, pack_onto_streams, unpack_stages

_ENUMERATE = tvm_ffi.get_global_func("tvm_interop.ios_enumerate")
_STATS = tvm_ffi.get_global_func("tvm_interop.ios_stats")
_SOLVE = tvm_ffi.get_global_func("tvm_interop.ios_solve")


@dataclass(frozen=True)
class IosOptions:
    """The options of `ios`, which says what they mean.

    Attributes
    ----------
    work_us: by operator, microseconds of all the cores it uses, together; None where each has one.

    Raises
    ------
    ScheduleError: for one of no use, naming it.
    """

    max_group_ops: int
    max_groups: int
    endings: str
    streams: int | None
    max_transitions: int
    bounds: bool = True
    cores: int | None = None
    bound_tolerance: float = 0.05
    bound_slack_us: float = 1.0
    work_us: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        check_counts(max_group_ops=self.max_group_ops, max_groups=self.max_groups)
        check_counts(at_least=1, max_transitions=self.max_transitions)
        if self.endings not in ("complete", "paper"):
            raise ScheduleError(f"`endings` is {self.endings!r}; it must be `complete` or `paper`")
        check_streams(self.streams)
        if self.cores is not None:
            check_counts(at_least=1, cores=self.cores)
        if not 0 <= self.bound_tolerance < 1:
            raise ScheduleError(
                f"`bound_tolerance` is {self.bound_tolerance!r}; it must be a share, from 0 to "
                "below 1"
            )
        if not 0 <= self.bound_slack_us < math.inf:
            raise ScheduleError(
                f"`bound_slack_us` is {self.bound_slack_us!r}; it must be microseconds, 0 or more"
            )


def no_merges(search: Any, graph: OpGraph, model: LatencyModel) -> Merges:
    """No stage is merged."""
    return {}


def search_ios(
    name: str,
    graph: OpGraph,
    latency: LatencyModel | None,
    options: IosOptions,
    find_merges: Callable[[Any, OpGraph, LatencyModel], Merges] = no_merges,
) -> Schedule:
    """The cheapest sequence of stages, each side by side or, where that is cheaper, merged.

    Parameters
    ----------
    name: of the scheduler.
    find_merges: which stages of the search can be merged, and what they take then.
    """
    model = required_latency(latency, name)
    started = time.perf_counter()
    search = enumerate_stages(graph, options)
    search_us = us_since(started)

    started = time.perf_counter()
    check_size(model, graph.names)
    merges = find_merges(search, graph, model)
    if options.bounds:
        bounds = Bounds(
            options.cores, options.bound_tolerance, options.bound_slack_us, options.work_us
        )
        priced = price_bounded(search, graph, model, options.streams, bounds, merges)
    else:
        priced = price_all(search, graph, model, options.streams, merges)
    pricing_us = us_since(started)

    started = time.perf_counter()
    native_stages, makespan = _SOLVE(search, priced.value_us)
    stages = unpack_stages(native_stages)
    if options.streams is not None and priced.op_us is not None:
        stages = pack_onto_streams(stages, priced.op_us.tolist(), options.streams)
    stages = tuple(_merged(stage, priced.merged) for stage in stages)
    search_us += us_since(started)
    stats = {
        "search_us": search_us,
        "pricing_us": pricing_us,
        **dict(_STATS(search)),
        **priced.counts,
    }
    return Schedule(name, graph.names, stages=stages, makespan=makespan, stats=stats)


def enumerate_stages(graph: OpGraph, options: IosOptions) -> Any:
    """The native search with all stages found, none of them priced."""
    return _ENUMERATE(
        graph.native,
        options.max_group_ops,
        options.max_groups,
        options.endings == "paper",
        options.max_transitions,
    )


def _merged(stage: Stage, merged: frozenset[frozenset[int]]) -> Stage:
    """The stage as one operator, on the first stream, where it is one of those to merge."""
    if frozenset(op for group in stage.groups for op in group) not in merged:
        return stage
    return Stage(stage.groups, (0,) * len(stage.groups), "merge", stage.barrier)
