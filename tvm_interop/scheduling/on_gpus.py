"""Code that schedulers over several GPUs share: options, latencies and windows.

A window is a set of neighbouring operators on a GPU that start together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from .._native import passes as native
from ..errors import LatencyError, ScheduleError
from ..latency.base import LatencyModel, op_latencies
from ..latency.batch import StageBatch
from ..latency.transfers import edge_transfers
from ..program.graph import OpGraph
from .budget import Budget, BudgetedLatency
from .options import check_counts, required_latency, us_since
from .schedules import Schedule

_UNASKED = math.inf
"""Stands for the latency of a stage that the latency model had no time to measure."""

Intra = Literal["windows", "none"]
GpuStages = Sequence[Sequence[Sequence[int]]]
"""For each GPU, its stages in order. A stage is a list of operator ids."""


def check_gpu_options(gpus: int, window: int, intra: str) -> None:
    """Check `gpus`, `window` and `intra`, which all schedulers over several GPUs take.

    Raises
    ------
    ScheduleError: `gpus` or `window` is not a whole number of 1 or more, or `intra` is unknown. The
        message names the option.
    """
    check_counts(at_least=1, gpus=gpus, window=window)
    if intra not in get_args(Intra):
        raise ScheduleError(f"`intra` is {intra!r}; it must be `windows` or `none`")


@dataclass
class GpuPrices:
    """The latencies of a graph's operators, copies and stages, each asked for only once.

    Attributes
    ----------
    pricing_us: microseconds that the latency model took to answer.
    """

    graph: OpGraph
    latency: LatencyModel
    pricing_us: float = 0.0

    def __post_init__(self) -> None:
        self._stage_us: dict[tuple[int, ...], float] = {}

    @classmethod
    def required(cls, graph: OpGraph, latency: LatencyModel | None, scheduler: str) -> GpuPrices:
        """The latencies that `latency` gives. Raises NoLatencyError if `latency` is None."""
        return cls(graph, required_latency(latency, scheduler))

    @cached_property
    def op_us(self) -> npt.NDArray[np.float64]:
        """(num_ops,) latency of each operator when it runs alone, in microseconds."""
        started = time.perf_counter()
        op_us = op_latencies(self.latency, self.graph.names)
        self.pricing_us += us_since(started)
        return op_us

    @cached_property
    def edge_us(self) -> npt.NDArray[np.float64]:
        """Microseconds to copy the data of each edge between two GPUs: (num_edges,)."""
        started = time.perf_counter()
        edge_us = edge_transfers(self.latency, self.graph)
        self.pricing_us += us_since(started)
        return edge_us

    def costs(self, gpus: int) -> tuple[Any, bytes, bytes]:
        """The first arguments of the native schedulers: the graph, `op_us` and `edge_us`.

        If there is only one GPU, `edge_us` is 0, and the latency model is not asked for copies.
        """
        edge_us = np.zeros(self.graph.num_edges) if gpus == 1 else self.edge_us
        return self.graph.native, self.op_us.tobytes(), edge_us.tobytes()

    def ask(self, stages: Iterable[Sequence[int]], budget: Budget | None = None) -> int:
        """Ask for the latencies of stages that are not known yet.

        The operators of a stage start together.

        Parameters
        ----------
        budget: time limit; None stands for no limit.

        Returns
        -------
        The number of stages that got no latency, for example because the time budget was spent.

        Raises
        ------
        LatencyError: a latency is negative or not a number. The message names the operators.
        """
        sets = dict.fromkeys(tuple(sorted(ops)) for ops in stages)
        unknown = [ops for ops in sets if len(ops) > 1 and ops not in self._stage_us]
        model = self.latency
        if budget is not None:
            model = BudgetedLatency(model, self.op_us, budget)
        started = time.perf_counter()
        found = model.stages([[(op,) for op in ops] for ops in unknown]) if unknown else ()
        self.pricing_us += us_since(started)
        left = 0
        for ops, us in zip(unknown, map(float, found), strict=True):
            if us == _UNASKED:
                left += 1
            elif math.isfinite(us) and us >= 0:
                self._stage_us[ops] = us
            else:
                named = ", ".join(f"`{self.graph.names[op]}`" for op in ops)
                raise LatencyError(
                    f"the latency model says that {named} take {us} us together; a latency must "
                    "be finite and not negative"
                )
        return left

    def native(self) -> tuple[list[bytes], bytes]:
        """The stages whose latencies are known, and the latencies, as input of native functions."""
        batch = StageBatch.from_stages([[(op,) for op in ops] for ops in self._stage_us])
        return batch.to_bytes(), np.array(list(self._stage_us.values()), np.float64).tobytes()


def windows_of(prices: GpuPrices, orders: Sequence[Sequence[int]], window: int) -> StageBatch:
    """All possible windows (neighbouring operators that start together) in the orders `orders`.

    `passes/schedulers/gpu_windows.h` explains windows.
    """
    costs = prices.costs(len(orders))
    return StageBatch.from_bytes(
        native.window_candidates(*costs, [list(o) for o in orders], window)
    )


def with_windows(
    prices: GpuPrices,
    orders: Sequence[Sequence[int]],
    window: int,
    intra: str,
    opened: Literal["by priority", "by start"] = "by priority",
) -> tuple[GpuStages, float]:
    """Start neighbouring operators of a GPU together where this makes the schedule faster.

    The function returns the stages of each GPU, and the makespan in microseconds.

    Parameters
    ----------
    orders: the operators of each GPU, in order.
    opened: the order in which operators are tried as the first operator of a window: by priority,
        or by start time.
    """
    if intra == "none":
        window = 1
    candidates = windows_of(prices, orders, window)
    prices.ask([[op for group in stage for op in group] for stage in candidates])
    stages, makespan = native.open_windows(
        *prices.costs(len(orders)),
        [list(order) for order in orders],
        window,
        *prices.native(),
        opened == "by start",
    )
    return [[list(ops) for ops in gpu] for gpu in stages], float(makespan)


def gpu_schedule(
    scheduler: str,
    prices: GpuPrices,
    stages: GpuStages,
    makespan: float,
    started: float,
    **stats: Any,
) -> Schedule:
    """Make the schedule of the given stages, with the times of the search in `stats`.

    Parameters
    ----------
    makespan: predicted makespan in microseconds.
    started: start of the search, a value of `time.perf_counter()`.
    """
    search_us = us_since(started) - prices.pricing_us
    stats = {"search_us": search_us, "pricing_us": prices.pricing_us, **stats}
    if not prices.graph.num_ops:
        return Schedule(scheduler, prices.graph.names, makespan=0.0, stats=stats)
    return Schedule.from_gpu_stages(
        scheduler, prices.graph.names, stages, makespan=makespan, stats=stats
    )
