"""Merges operators: finds sets to merge, measures merged operators, and adapts schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import ScheduleError
from ..latency import LatencyModel
from ..latency.base import LatencyOver
from ..lowering.merge_convs import (
    MergeConvs,
    fold_for_merging,
    merged_alone,
    merged_beside_apart,
    merged_name,
)
from ..lowering.mergeable import find_chains, mergeable_sets, why_not_merged
from ..program.graph import OpGraph
from ..program.program import Program
from ..scheduling import Schedule, Stage


class Compiled(Protocol):
    """The part of a compilation that merging needs."""

    @property
    def program(self) -> Program: ...
    @property
    def graph(self) -> OpGraph: ...
    @property
    def measured_latency(self) -> LatencyModel: ...


Rows: TypeAlias = "Callable[[Sequence[Sequence[int]]], Iterable[float]]"
"""A function that gives the microseconds of each of several lists of operators. The operators of a
list run one after the other. The result is inf for a list whose latency is unknown."""

PriceAlone: TypeAlias = "Callable[[Any], tuple[Program, Rows]]"
"""A function that lowers a Relax module. The result is the program and its latencies."""


_C = TypeVar("_C", bound=Compiled)


class OperatorMerges:
    """The convolutions and products of a model that could be merged (IOS, section 3).

    Attributes
    ----------
    sets: sets of ids of operators; two or more operators of one set might be merged. No operator
        is in two sets.
    """

    def __init__(self, imported: Any, names: Sequence[str]) -> None:
        """Find the operators that could be merged.

        Parameters
        ----------
        imported: the Relax module before it was lowered.
        names: the names of the operators of the lowered model, by id.
        """
        self._module = fold_for_merging()(imported)
        self._names = names
        self._chains = find_chains(self._module["main"])
        ids = {name: i for i, name in enumerate(names)}
        found = [[ids[n] for n in group if n in ids] for group in mergeable_sets(self._chains)]
        self.sets = [tuple(ops) for ops in found if len(ops) > 1]

    def can_merge(self, ops: Sequence[int]) -> bool:
        """Whether these operators, all from one set, can be merged into one operator."""
        return why_not_merged([self._chains[self._names[op]] for op in ops]) is None

    def merged(self, groups: Sequence[Sequence[str]]) -> Any:
        """Make the Relax module with one operator in place of each group.

        Raises
        ------
        ScheduleError: a group cannot be merged; the message says why.
        """
        merge: Any = MergeConvs(groups)
        return merge(self._module)

    def beside_apart(self, groups: Sequence[Sequence[str]]) -> tuple[Any, list[int]]:
        """Make a Relax module of operators apart and merged; see `merged_beside_apart`."""
        return merged_beside_apart(self._module, groups)

    def alone(self, groups: Sequence[Sequence[int]]) -> tuple[Any, list[int]]:
        """Make a Relax module of the merged operators alone; see `merged_alone`."""
        return merged_alone(self._module, [[self._names[op] for op in ops] for ops in groups])


class MergingLatency(LatencyOver):
    """A latency model that also knows how long merged operators take.

    Parameters
    ----------
    base: the latency model for operators and stages without merging.
    price_alone: lowers a module of merged operators, and gives their latencies from the source that
        `base` has its latencies from.
    """

    def __init__(
        self,
        base: LatencyModel,
        merges: OperatorMerges,
        price_alone: PriceAlone,
    ) -> None:
        super().__init__(base)
        self._merges = merges
        self._price_alone = price_alone
        self._known_us: dict[frozenset[int], float] = {}

    @classmethod
    def measuring(
        cls, base: LatencyModel, merges: OperatorMerges, compile_alone: Callable[[Any], Compiled]
    ) -> MergingLatency:
        """Make the latency model that also compiles and measures merged operators.

        Parameters
        ----------
        compile_alone: makes a compilation of a Relax module, with the streams and threads of
            `base`.
        """

        def measured(module: Any) -> tuple[Program, Rows]:
            made = compile_alone(module)
            return made.program, lambda rows: made.measured_latency.stages([[row] for row in rows])

        return cls(base, merges, measured)

    def mergeable(self) -> Sequence[Sequence[int]]:
        """Sets of ids of operators that might be merged: see `OperatorMerges.sets`."""
        return self._merges.sets

    def merges(self, sets: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        """The latency of the merged operator for each set, in microseconds.

        The latency includes cutting the merged operator's output into parts. It is inf for a set
        that cannot be merged. All merged operators of unknown latency are lowered as one model.
        If `base` measures, they are compiled and measured together.
        """
        keys = [frozenset(ops) for ops in sets]
        for key, ops in zip(keys, sets, strict=True):
            if key not in self._known_us and not self._merges.can_merge(ops):
                self._known_us[key] = math.inf
        unknown = [key for key in dict.fromkeys(keys) if key not in self._known_us]
        if unknown:
            self._known_us.update(zip(unknown, self._priced(unknown), strict=True))
        return np.array([self._known_us[key] for key in keys])

    def _priced(self, sets: Sequence[frozenset[int]]) -> list[float]:
        module, num_outputs = self._merges.alone([sorted(ops) for ops in sets])
        program, rows_us = self._price_alone(module)
        graph = program.graph()
        outputs = iter(program.outputs)
        rows = []
        for count in num_outputs:
            ends = {op for _ in range(count) for op in program.writers_of(next(outputs))}
            ops = [
                op
                for op in graph.topological_order()
                if op in ends or any(graph.reaches(op, end) for end in ends)
            ]
            rows.append(ops)
        return [float(us) for us in rows_us(rows)]


class MergedCompilations(Generic[_C]):
    """Compilations of a model with merged operators, one for each choice of operators to merge.

    Parameters
    ----------
    compile_merged: makes a compilation of a Relax module, with the model's streams and threads.
    """

    def __init__(self, merges: OperatorMerges, compile_merged: Callable[[Any], _C]) -> None:
        self._merges = merges
        self._compile_merged = compile_merged
        self._made: dict[frozenset[frozenset[str]], _C] = {}

    def realized(self, schedule: Schedule) -> tuple[_C, Schedule]:
        """Merge the operators of a schedule's merged stages.

        The result is the compilation of the merged model, and the schedule for this compilation.

        Raises
        ------
        ScheduleError: operators cannot be merged; the message says why.
        """
        groups = merged_stages(schedule)
        key = frozenset(frozenset(group) for group in groups)
        if key not in self._made:
            self._made[key] = self._compile_merged(self._merges.merged(groups))
        compilation = self._made[key]
        return compilation, realize_merges(schedule, compilation.graph)


def realize_merges(schedule: Schedule, graph: OpGraph) -> Schedule:
    """Make a schedule of the merged model from a schedule with merged stages.

    A merged stage becomes a stage with a single group, on the stage's first stream: first the
    merged operator, and then the operators that cut its output into parts. Merging can make
    operators needless, such as a concat of all the parts. Such operators are left out of the other
    stages. A merged operator may be fused with a reader of that concat, and then read tensors that
    a later stage makes. It then has a stage of its own behind that stage.

    Parameters
    ----------
    graph: the graph of the merged model. Operators that are not merged keep their names.

    Raises
    ------
    ScheduleError: an operator of the merged model has no place in the schedule.
    """
    names = schedule.op_names
    ids = {name: i for i, name in enumerate(graph.names)}
    places: dict[int, _Place] = {}
    for i, stage in enumerate(schedule.stages):
        groups = [[ids[names[op]] for op in group if names[op] in ids] for group in stage.groups]
        if stage.kind == "merge":
            merged = merged_name([names[op] for op in stage.ops])
            groups = [[ids[merged], *(op for group in groups for op in group)]]
        places |= {op: _Place(i, False, g) for g, group in enumerate(groups) for op in group}
    settled: dict[_Place, list[int]] = {}
    for op, place in _settled(places, schedule.stages, graph).items():
        settled.setdefault(place, []).append(op)
    stages = []
    for i, stage in enumerate(schedule.stages):
        for is_late in (False, True):
            here = sorted(place for place in settled if place[:2] == (i, is_late))
            if here:
                kept = tuple(tuple(settled[place]) for place in here)
                streams = tuple(stage.streams[place.group] for place in here)
                stages.append(Stage(kept, streams, barrier=stage.barrier, device=stage.device))
    return Schedule(
        schedule.scheduler,
        graph.names,
        stages=tuple(stages),
        makespan=schedule.makespan,
        stats=schedule.stats,
    )


class _Place(NamedTuple):
    """The place of an operator in a schedule. Places are ordered as their operators run.

    Attributes
    ----------
    stage: the number of the stage in the schedule with merged stages.
    is_late: whether the operator is in an additional stage, right behind that stage.
    group: the number of the group.
    """

    stage: int
    is_late: bool
    group: int


def _settled(
    places: Mapping[int, _Place], stages: Sequence[Stage], graph: OpGraph
) -> dict[int, _Place]:
    """The place of each operator of the merged model, in topological order.

    Parameters
    ----------
    places: the places of operators that are known from the stages. Any other operator joins the
        group of its last predecessor.
    """
    settled: dict[int, _Place] = {}
    for op in graph.topological_order():
        before = [settled[source] for source in graph.predecessors(op)]
        if op not in places and not before:
            raise ScheduleError(f"operator `{graph.names[op]}` is in no stage after merging")
        place = places[op] if op in places else max(before)
        # Stages on several GPUs are not in one order.
        device = stages[place.stage].device
        known = [source for source in before if stages[source.stage].device == device]
        last = max(known, default=place)
        if last[:2] > place[:2]:
            place = _Place(last.stage, True, 0)
        settled[op] = place
    return settled


def merged_stages(schedule: Schedule) -> list[tuple[str, ...]]:
    """The names of the operators of each merged stage."""
    return [
        tuple(schedule.op_names[op] for group in stage.groups for op in group)
        for stage in schedule.stages
        if stage.kind == "merge"
    ]
