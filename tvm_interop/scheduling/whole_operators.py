"""Joins the parts of each divided operator into one operator, to make a search faster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..errors import ScheduleError
from ..latency.base import LatencyModel, LatencyTable
from ..latency.batch import Groups
from ..program.graph import OpGraph
from .schedule_fields import as_ids, as_tuple
from .stages import Stage, pack_onto_streams


class WholeOperators:
    """A graph in which the parts of each divided operator are joined into one operator again.

    The parts of an operator are alike. Each part reads all parts of the operators that its operator
    reads. If the parts were separate operators in the graph, a search would enumerate many stages
    that differ only in the choice of parts.

    Attributes
    ----------
    graph: the graph of whole operators. Each operator has the name of its first part.
    """

    def __init__(self, graph: OpGraph, parts: Sequence[Sequence[int]]) -> None:
        """Make the graph in which each divided operator is one operator.

        Parameters
        ----------
        parts: for each whole operator, the ids of its parts. Each id is in exactly one list.

        Raises
        ------
        ScheduleError: a list is empty, or the lists do not hold each operator exactly once.
        """
        self._parts = [as_ids(ops, "a whole of `parts`") for ops in as_tuple(parts, "`parts`")]
        if not all(self._parts):
            raise ScheduleError("`parts` holds an empty list; leave it out")
        if sorted(op for ops in self._parts for op in ops) != list(range(graph.num_ops)):
            raise ScheduleError(
                f"`parts` must hold each of {graph.num_ops} operators once; give each operator "
                "that is not divided a list of its own"
            )
        self._whole_of = {op: whole for whole, ops in enumerate(self._parts) for op in ops}
        edges = {
            (self._whole_of[op], self._whole_of[target])
            for op in range(graph.num_ops)
            for target in graph.successors(op)
        }
        names = [graph.names[ops[0]] for ops in self._parts]
        self.graph = OpGraph.from_edges(names, sorted((a, b) for a, b in edges if a != b))

    def parts_of(self, stages: Iterable[Sequence[Sequence[int]]]) -> list[Groups]:
        """Convert stages of whole operators to stages of parts, in which each part is a group."""
        return [
            tuple((part,) for ops in groups for op in ops for part in self._parts[op])
            for groups in stages
        ]

    def flat_parts(self, ops: Iterable[int]) -> list[int]:
        """The ids of the parts of `ops` (ids in `graph`), one operator after the other."""
        return [part for op in ops for part in self._parts[op]]

    def wholes_of(self, parts: Iterable[int]) -> list[int]:
        """The whole operators to which `parts` belong, each once, in the order of the parts."""
        return list(dict.fromkeys(self._whole_of[part] for part in parts))

    def latency(self, model: LatencyModel) -> LatencyModel:
        """Make a latency model of whole operators, which asks `model` for stages of parts."""
        return _WholeLatency(model, self)

    def work_us(self, op_us: Sequence[float]) -> npt.NDArray[np.float64]:
        """For each whole operator, the total latency of its parts in microseconds: (num_wholes,).

        Parameters
        ----------
        op_us: latency of each part when it runs alone, in microseconds.
        """
        return LatencyTable(op_us).stages([[parts] for parts in self._parts])

    def divided(
        self, stages: Sequence[Stage], op_us: Sequence[float] | None, streams: int | None
    ) -> tuple[Stage, ...]:
        """Convert stages of whole operators to stages of parts that run side by side.

        Parameters
        ----------
        stages: stages of whole operators, one operator in a group.
        op_us: latency of each part when it runs alone, in microseconds; needed with `streams`.
        streams: number of streams onto which `pack_onto_streams` packs the parts; None gives each
            part its own stream. The parts in a merged stage are all on stream 0.
        """
        groups_of = self.parts_of(stage.groups for stage in stages)
        found = tuple(
            Stage(groups, tuple(range(len(groups))), stage.kind, stage.barrier)
            for groups, stage in zip(groups_of, stages, strict=True)
        )
        if streams is not None and op_us is not None:
            found = pack_onto_streams(found, op_us, streams)
        return tuple(
            replace(stage, streams=(0,) * len(stage.groups)) if stage.kind == "merge" else stage
            for stage in found
        )


class _WholeLatency(LatencyModel):
    def __init__(self, model: LatencyModel, wholes: WholeOperators) -> None:
        self._model = model
        self._wholes = wholes
        self.is_costly = model.is_costly
        self.may_refuse = model.may_refuse
        self.stage_us = model.stage_us
        self._op_us: npt.NDArray[np.float64] | None = None

    def op(self, op: int) -> float:
        if self._op_us is None:  # Ask once for all operators, because a model may measure them.
            us = self.stages([[[each]] for each in range(self._wholes.graph.num_ops)])
            self._op_us = np.maximum(us - self.stage_us, 0.0)
        return float(self._op_us[op])

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        return self._model.stages(self._wholes.parts_of(stages))

    def mergeable(self) -> Sequence[Sequence[int]]:
        return [self._wholes.wholes_of(parts) for parts in self._model.mergeable()]

    def merges(self, sets: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        return self._model.merges([self._wholes.flat_parts(ops) for ops in sets])
