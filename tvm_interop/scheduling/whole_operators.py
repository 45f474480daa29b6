"""Operators that are divided into parts, taken as a whole: a small graph for a costly search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import ScheduleError
from ..latency.base import LatencyModel, LatencyTable
from ..latency.batch import Groups
from ..program.graph import OpGraph
from .schedule_fields import as_ids, as_tuple
from .schedules import Stage, pack_onto_streams


class WholeOperators:
    """A graph with the parts of each operator put together again.

    The parts of an operator are alike and depend on all parts of those before it: as operators of
    their own they make a search enumerate the same stage over and over.

    Attributes
    ----------
    graph: an operator a whole, named after its first part.
    """

    def __init__(self, graph: OpGraph, parts: Sequence[Sequence[int]]) -> None:
        """Put parts together.

        Parameters
        ----------
        parts: the operators of each whole, by id; each operator in exactly one.

        Raises
        ------
        ScheduleError: for a whole of no parts, and for parts that do not hold each operator once.
        """
        self._parts = [as_ids(ops, "a whole of `parts`") for ops in as_tuple(parts, "`parts`")]
        if not all(self._parts):
            raise ScheduleError("`parts` holds an empty list; leave it out")
        if sorted(op for ops in self._parts for op in ops) != list(range(graph.num_ops)):
            raise ScheduleError(
                f"`parts` must hold each of {graph.num_ops} operators once; give those that are "
                "not divided a list of their own"
            )
        whole_of = {op: whole for whole, ops in enumerate(self._parts) for op in ops}
        edges = {
            (whole_of[op], whole_of[target])
            for op in range(graph.num_ops)
            for target in graph.successors(op)
        }
        names = [graph.names[ops[0]] for ops in self._parts]
        self.graph = OpGraph.from_edges(names, sorted((a, b) for a, b in edges if a != b))

    def parts_of(self, stages: Iterable[Sequence[Sequence[int]]]) -> list[Groups]:
        """Stages of whole operators as they run: each part a group."""
        return [
            tuple((part,) for ops in groups for op in ops for part in self._parts[op])
            for groups in stages
        ]

    def latency(self, model: LatencyModel) -> LatencyModel:
        """Prices stages of whole operators by a latency model of their parts."""
        return _WholeLatency(model, self)

    def work_us(self, op_us: Sequence[float]) -> npt.NDArray[np.float64]:
        """Microseconds of all parts of each operator, which take `op_us` alone."""
        return LatencyTable(op_us).stages([[parts] for parts in self._parts])

    def divided(
        self, stages: Sequence[Stage], op_us: Sequence[float] | None, streams: int | None
    ) -> tuple[Stage, ...]:
        """Stages of the parts: those of a stage's operators side by side.

        Parameters
        ----------
        stages: of whole operators, one a group.
        op_us: what each part takes alone, where `streams` is given.
        streams: parts are packed onto so many, as `pack_onto_streams` does; None for one each.
        """
        groups_of = self.parts_of(stage.groups for stage in stages)
        found = tuple(
            Stage(groups, tuple(range(len(groups))), stage.kind, stage.barrier)
            for groups, stage in zip(groups_of, stages, strict=True)
        )
        if streams is None or op_us is None:
            return found
        return pack_onto_streams(found, op_us, streams)


class _WholeLatency(LatencyModel):
    def __init__(self, model: LatencyModel, wholes: WholeOperators) -> None:
        self._model = model
        self._wholes = wholes
        self.is_costly = model.is_costly
        self.may_refuse = model.may_refuse
        self.stage_us = model.stage_us

    def op(self, op: int) -> float:
        return self.stage([[op]]) - self.stage_us

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        return self._model.stages(self._wholes.parts_of(stages))
