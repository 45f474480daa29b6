"""Simulates a schedule on one device, where streams share the cores and the memory bandwidth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._native import passes as native
from ..errors import ScheduleError
from ..latency.base import LatencyModel, op_latencies
from ..plain_data import is_finite
from ..program.graph import OpGraph
from ..program.planning import sync_plan
from .schedules import Schedule


@dataclass(frozen=True)
class Contention:
    """How operators that run at the same time slow each other down.

    Let c be the number of cores that the running operators keep busy together, and m the sum of
    their memory shares. Compared with an operator that runs alone, arithmetic takes max(1, c /
    `cores`) times as long, and memory traffic takes max(1, m / `bandwidth`) times as long. An
    operator is slowed down by the mean of these two factors, weighted by its own memory share.

    Attributes
    ----------
    cores: number of cores of the device; inf for no limit. For a GPU, use 1, and give `op_cores` as
        shares of its multiprocessors.
    bandwidth: largest number of operators that can run at once at full speed if they only read and
        write memory; inf for no limit.
    op_cores: for each operator id, number of cores that the operator keeps busy when it runs alone;
        None if each operator keeps one core busy.
    memory_share: for each operator id, share of its time, from 0 to 1, for which the operator waits
        for memory when it runs alone; None if no operator waits for memory.
    wait_us: microseconds that a wait across streams costs the waiting stream.
    """

    cores: float = math.inf
    bandwidth: float = math.inf
    op_cores: Sequence[float] | None = None
    memory_share: Sequence[float] | None = None
    wait_us: float = 0.0

    def __post_init__(self) -> None:
        for name in ("cores", "bandwidth"):
            value = getattr(self, name)
            if not (value == math.inf or is_finite(value)) or value <= 0:
                raise ScheduleError(
                    f"`{name}` is {value!r}; it must be a number above 0, or inf for no limit"
                )
        if not is_finite(self.wait_us) or self.wait_us < 0:
            raise ScheduleError(
                f"`wait_us` is {self.wait_us!r}; it must be a number of microseconds, 0 or more"
            )


@dataclass(frozen=True)
class Simulation:
    """The times of a simulated run of a schedule on one device.

    Attributes
    ----------
    makespan_us: microseconds from the start to the end of the last operator.
    timeline: each operator as (op, stream, start_us, finish_us), in order of start. `op` is an
        id of the graph.
    """

    makespan_us: float
    timeline: tuple[tuple[int, int, float, float], ...]


def simulate(
    graph: OpGraph,
    schedule: Schedule,
    latency: LatencyModel,
    contention: Contention | None = None,
) -> Simulation:
    """Simulate `schedule` event by event. `contention` says how operators share the device.

    An operator starts when its stream is free and all operators that it waits for have ended. The
    speed of an operator changes whenever another operator starts or ends. A stage with a barrier
    waits for all earlier stages. In a stage without a barrier, each operator waits only for its
    dependencies. Plans have the same waits.

    Without contention, a streamed schedule takes the makespan that `Schedule.simulate` predicts. In
    a staged schedule whose stages all have barriers, each stage takes the latency of its longest
    group, and the makespan is the sum over the stages.

    Raises
    ------
    ScheduleError: the schedule has a fault (see `Schedule.validate`); a stage is of kind `merge`,
        so `latency` does not know its operator; `contention` and the graph have different numbers
        of operators; or the time of the run is too large for a float.
    LatencyError: `latency` gives a number that is not a latency. The message names the operator.

    Complexity: O(operators * streams), plus the time to plan the waits.
    """
    schedule.validate(graph)
    if any(stage.kind == "merge" for stage in schedule.stages):
        raise ScheduleError(
            "a merged stage cannot be simulated, because its operator has no latency; give a "
            "schedule without merged stages"
        )
    op_us = op_latencies(latency, graph.names)
    ids = {name: i for i, name in enumerate(graph.names)}
    to_graph = [ids[name] for name in schedule.op_names]
    streams = [[to_graph[op] for op in ops] for ops in schedule.streams]
    barriers = [(to_graph[u], to_graph[v]) for u, v in schedule.ordering_edges()]
    waits = [list(sources) for sources in sync_plan(graph, streams, barriers)]
    shared = contention if contention is not None else Contention()
    _, where, when_us, makespan = native.simulate_contention(
        graph.native,
        streams,
        waits,
        op_us.tobytes(),
        float(shared.cores),
        float(shared.bandwidth),
        _column(shared.op_cores, "op_cores", 1.0, math.inf, graph).tobytes(),
        _column(shared.memory_share, "memory_share", 0.0, 1.0, graph).tobytes(),
        float(shared.wait_us),
    )
    rows = np.frombuffer(where, dtype=np.int64).reshape(-1, 2).tolist()
    times = np.frombuffer(when_us, dtype=np.float64).reshape(-1, 2).tolist()
    timeline = tuple(
        (op, stream, start, end) for (op, stream), (start, end) in zip(rows, times, strict=True)
    )
    return Simulation(float(makespan), timeline)


def _column(
    values: Sequence[float] | None, name: str, default: float, most: float, graph: OpGraph
) -> npt.NDArray[np.float64]:
    if values is None:
        return np.full(graph.num_ops, default)
    try:
        column = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ScheduleError(f"`{name}` is not a list of numbers: {error}") from None
    if column.shape != (graph.num_ops,):
        raise ScheduleError(
            f"`{name}` has shape {column.shape}; give one number for each of "
            f"{graph.num_ops} operators"
        )
    for op in np.flatnonzero(~(np.isfinite(column) & (column >= 0) & (column <= most))):
        raise ScheduleError(
            f"`{name}` of operator `{graph.names[op]}` is {column[op]}; it must be from 0 to {most}"
        )
    return column
