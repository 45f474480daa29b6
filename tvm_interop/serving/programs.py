"""Makes the native programs that simulated instances run.

A program is a schedule of one model, or of a joint graph of parts of several models. `Programs`
makes each program once and caches it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._native import passes as native
from ..errors import InputError, ScheduleError
from ..latency.contended import ContendedLatency
from ..program.graph import OpGraph
from ..program.planning import sync_plan
from ..scheduling.registry import schedule as make_schedule
from ..scheduling.schedules import Schedule
from .models import OperatorCosts, ServedModel, ServingDevice
from .tasks import WHOLE, Start

Part = tuple[int, int]
"""The index of a model and the index of one of its blocks, or `WHOLE` for the whole model."""


class Programs:
    """A cache of the programs of some models on one device."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        device: ServingDevice,
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Begin without programs.

        Parameters
        ----------
        options: options to pass to schedulers, keyed by scheduler name; for example `weights` for
            `gpg`.
        """
        self.models = tuple(models)
        self.options = dict(options or {})
        self.device = device
        self._packed = device.packed
        self._made: dict[tuple[object, ...], Any] = {}

    def of_model(
        self, model: int, batch: int = 1, schedule: str = "sequential", barriers: bool = False
    ) -> Any:
        """Return the native program of one model at a batch size.

        `schedule` names the scheduler that orders the operators.

        Raises
        ------
        InputError: there are no costs for that batch size.
        ScheduleError: as `tvm_interop.schedule`.
        """
        key = (model, batch, schedule, barriers)
        if key not in self._made:
            served = self.models[model]
            if batch not in served.costs:
                raise InputError(
                    f"model `{served.name}` has no costs for a batch of {batch}; there are costs "
                    f"for batches of {', '.join(map(str, sorted(served.costs)))}"
                )
            costs = served.costs[batch]
            parts = np.zeros(served.graph.num_ops, dtype=np.int64)
            self._made[key] = self._make(served.graph, costs, parts, schedule, barriers)
        return self._made[key]

    def of_parts(self, parts: tuple[Part, ...], schedule: str, barriers: bool = True) -> Any:
        """Return the native program of a joint graph.

        The schedule includes all parts of the joint graph, also if some parts have no request
        later.
        """
        key = (parts, schedule, barriers)
        if key not in self._made:
            graph, costs, part_of = joint_graph(self.models, parts)
            self._made[key] = self._make(graph, costs, part_of, schedule, barriers)
        return self._made[key]

    def of_start(self, start: Start) -> tuple[Any, int]:
        """Return the program of an instance, and a bit mask of the parts that have a request."""
        if start.parts is None:
            first = start.requests[0]
            if first is None or any(r is None or r.model != first.model for r in start.requests):
                raise InputError(
                    "an instance without `parts` can only serve requests of one model; "
                    "set `parts` in its `Start`"
                )
            batch = sum(r.batch for r in start.requests if r is not None)
            return self.of_model(first.model, batch, start.schedule, start.barriers), 1
        present = sum(1 << i for i, request in enumerate(start.requests) if request is not None)
        return self.of_parts(start.parts, start.schedule, start.barriers), present

    def alone_us(self, program: Any, present: int = 1) -> float:
        """Return the latency in microseconds of a program that has the device to itself."""
        return float(native.served_program_alone(program, present, self._packed)[0])

    def model_us(
        self, model: int, batch: int = 1, schedule: str = "sequential", barriers: bool = False
    ) -> float:
        """Return the latency in microseconds of one model that has the device to itself."""
        return self.alone_us(self.of_model(model, batch, schedule, barriers))

    def _make(
        self,
        graph: OpGraph,
        costs: OperatorCosts,
        part_of: npt.NDArray[np.int64],
        scheduler: str,
        barriers: bool,
    ) -> Any:
        latency = ContendedLatency(
            costs.op_us, self.device.cores, self.device.bandwidth, costs.op_cores,
            costs.memory_share,
        )  # fmt: skip
        made = make_schedule(graph, scheduler, latency, **self.options.get(scheduler, {}))
        return native_program(graph, costs, made, part_of, barriers)


def native_program(
    graph: OpGraph,
    costs: OperatorCosts,
    made: Schedule,
    part_of: npt.NDArray[np.int64] | None = None,
    barriers: bool = False,
) -> Any:
    """Return the native program of a schedule.

    Parameters
    ----------
    part_of: (num_ops,) part of each operator; None if all operators belong to one part.
    barriers: whether the host waits after each stage. A stage whose own `barrier` is set always
        begins after all earlier stages have ended.

    Raises
    ------
    ScheduleError: for a schedule of several GPUs, and for a merged stage, which has no latency.
    """
    if made.devices or any(stage.kind == "merge" for stage in made.stages):
        raise ScheduleError(
            f"the schedule of `{made.scheduler}` has merged stages or several GPUs; instances of "
            "such schedules cannot be simulated; choose another scheduler"
        )
    segments = np.zeros(graph.num_ops, dtype=np.int64)
    segment = 0
    for i, stage in enumerate(made.stages):
        segment += i > 0 and (barriers or stage.barrier)
        segments[list(stage.ops)] = segment
    waits = sync_plan(graph, [list(ops) for ops in made.streams])
    num_waits = [
        sum(segments[source] == segments[op] for source in sources)
        for op, sources in enumerate(waits)
    ]
    parts = np.zeros(graph.num_ops, dtype=np.int64) if part_of is None else part_of
    places = np.stack([np.array(num_waits, dtype=np.int64), segments, parts], axis=1)
    return native.served_program_make(
        graph.native,
        [list(ops) for ops in made.streams],
        np.asarray(costs.op_us, dtype=np.float64).tobytes(),
        np.asarray(costs.op_cores, dtype=np.float64).tobytes(),
        np.asarray(costs.memory_share, dtype=np.float64).tobytes(),
        np.ascontiguousarray(places).tobytes(),
        barriers and bool(made.stages),
    )


def joint_graph(
    models: Sequence[ServedModel], parts: Sequence[Part]
) -> tuple[OpGraph, OperatorCosts, npt.NDArray[np.int64]]:
    """Return the joint graph of some parts, its costs, and the part of each operator.

    The joint graph is the union of the parts, with no edges between them. An edge between two
    blocks of a model is left out, because a block starts only when its input is there.
    """
    names: list[str] = []
    edges: list[tuple[int, int]] = []
    picked: list[tuple[OperatorCosts, list[int]]] = []
    part_of: list[int] = []
    for number, (model, block) in enumerate(parts):
        served = models[model]
        ops = list(range(served.graph.num_ops)) if block == WHOLE else list(served.blocks[block])
        place = {op: len(names) + i for i, op in enumerate(ops)}
        names += [f"{number}:{served.name}/{served.graph.names[op]}" for op in ops]
        edges += [(place[u], place[v]) for u, v in served.graph.edges if u in place and v in place]
        picked.append((served.costs[1], ops))
        part_of += [number] * len(ops)
    columns = [
        np.concatenate([getattr(costs, column)[ops] for costs, ops in picked])
        for column in ("op_us", "op_cores", "memory_share")
    ]
    known = [models[model].graph.layers for model, _ in parts]
    layers = None
    if None not in known:
        layers = [of[op] for of, (_, ops) in zip(known, picked, strict=True) for op in ops]  # type: ignore[index]
    graph = OpGraph(names, edges, layers=layers)
    return graph, OperatorCosts(*columns), np.array(part_of, dtype=np.int64)
