"""Operators that are divided into parts, taken as a whole: a small graph for a costly search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..graph import OpGraph
from ..latency.base import LatencyModel, op_latencies
from .schedule import Schedule, Stage, pack_onto_streams


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
        """
        self._divided = graph
        self._parts = [tuple(ops) for ops in parts]
        whole_of = {op: whole for whole, ops in enumerate(self._parts) for op in ops}
        edges = {
            (whole_of[op], whole_of[target])
            for op in range(graph.num_ops)
            for target in graph.successors(op)
        }
        names = [graph.names[ops[0]] for ops in self._parts]
        self.graph = OpGraph.from_edges(names, sorted((a, b) for a, b in edges if a != b))

    def latency(self, model: LatencyModel) -> LatencyModel:
        """What stages of whole operators take, by a model of their parts."""
        return _WholeLatency(model, self._parts)

    def divided(self, schedule: Schedule, model: LatencyModel, streams: int | None) -> Schedule:
        """The schedule of the parts: those of a stage's operators side by side.

        Parameters
        ----------
        schedule: staged, of whole operators, one a group.
        streams: parts are packed onto so many, as `pack_onto_streams` does; None for one each.
        """
        names = self._divided.names
        stages = tuple(_divided(stage, self._parts) for stage in schedule.stages)
        if streams is not None:
            stages = pack_onto_streams(stages, op_latencies(model, names).tolist(), streams)
        return replace(schedule, op_names=names, stages=stages, streams=())


class _WholeLatency(LatencyModel):
    def __init__(self, model: LatencyModel, parts: list[tuple[int, ...]]) -> None:
        self._model = model
        self._parts = parts

    def op(self, op: int) -> float:
        return self.stage([[op]])

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        return self._model.stages(
            [
                [[part] for ops in groups for op in ops for part in self._parts[op]]
                for groups in stages
            ]
        )


def _divided(stage: Stage, parts: list[tuple[int, ...]]) -> Stage:
    groups = tuple((part,) for ops in stage.groups for op in ops for part in parts[op])
    return Stage(groups, tuple(range(len(groups))), stage.kind, stage.barrier)
