"""Merges operators: finds sets to merge, measures merged operators, and adapts schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..latency import LatencyModel
from ..latency.base import LatencyOver
from ..lowering.merge_convs import (
    MergeConvs,
    fold_for_merging,
    merged_alone,
    merged_beside_apart,
)
from ..lowering.mergeable import find_chains, mergeable_sets, why_not_merged
from ..program.part_names import whole_name
from ..program.program import Program
from ..scheduling import Schedule
from .realized_merges import realize_merges


class Compiled(Protocol):
    """The attributes of a compilation that merging needs."""

    @property
    def program(self) -> Program: ...
    @property
    def streams(self) -> int: ...
    @property
    def measured_latency(self) -> LatencyModel: ...


Rows: TypeAlias = "Callable[[Sequence[Sequence[int]]], Iterable[float]]"
"""A function that takes lists of operators, and returns the latency of each list in microseconds.
The operators of a list run one after the other. An unknown latency is inf.
"""

PriceAlone: TypeAlias = "Callable[[Any], tuple[Program, Rows]]"
"""A function that lowers a Relax module. It returns the program and its operators' latencies."""


_C = TypeVar("_C", bound=Compiled)


class OperatorMerges:
    """The convolutions and products of a model that could be merged (IOS, section 3).

    Attributes
    ----------
    sets: sets of ids of operators. Two or more operators of one set might be merged. No operator is
        in two sets, and all parts of a divided operator are in the same set.
    """

    def __init__(self, imported: Any, names: Sequence[str]) -> None:
        """Find the operators that could be merged.

        Parameters
        ----------
        imported: the Relax module before it was lowered.
        names: the names of the operators of the lowered model, by id. A part of a divided operator
            has the name of that operator.
        """
        self._module = fold_for_merging()(imported)
        self._names = names
        self._chains = find_chains(self._module["main"])
        ids: dict[str, list[int]] = {}
        for i, name in enumerate(names):
            ids.setdefault(name, []).append(i)
        found = [[ids[n] for n in group if n in ids] for group in mergeable_sets(self._chains)]
        self.sets = [tuple(op for parts in ops for op in parts) for ops in found if len(ops) > 1]

    def can_merge(self, ops: Sequence[int]) -> bool:
        """Whether the operators `ops`, all from one of `sets`, can be merged into one operator."""
        return why_not_merged([self._chains[name] for name in self._named(ops)]) is None

    def merged(self, groups: Sequence[Sequence[str]]) -> Any:
        """Make the Relax module with one operator in place of each group.

        Raises
        ------
        ScheduleError: a group cannot be merged; the message says why.
        """
        merge: Any = MergeConvs(groups)
        return merge(self._module)

    def beside_apart(self, groups: Sequence[Sequence[str]]) -> tuple[Any, list[int]]:
        """Make a Relax module of the separate and the merged operators; see
        `merged_beside_apart`.
        """
        return merged_beside_apart(self._module, groups)

    def alone(self, groups: Sequence[Sequence[int]]) -> tuple[Any, list[int]]:
        """Make a Relax module of only the merged operators; see `merged_alone`."""
        return merged_alone(self._module, [self._named(ops) for ops in groups])

    def _named(self, ops: Sequence[int]) -> list[str]:
        """The names of the operators `ops`. All parts of a divided operator have the same name."""
        return list(dict.fromkeys(self._names[op] for op in ops))


class MergingLatency(LatencyOver):
    """A latency model that also knows how long merged operators take.

    Parameters
    ----------
    base: the latency model for operators and stages without merging.
    price_alone: a function that lowers a module of merged operators, and returns their latencies.
        These come from the same source as the latencies of `base`.
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
            return made.program, partial(_measured_rows_us, made)

        return cls(base, merges, measured)

    def mergeable(self) -> Sequence[Sequence[int]]:
        """Sets of ids of operators that might be merged: see `OperatorMerges.sets`."""
        return self._merges.sets

    def merges(self, sets: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        """The latency of the merged operator for each set, in microseconds.

        The latency includes the time to split the merged operator's output into the separate
        results. It is inf for a set that cannot be merged. All merged operators with unknown
        latencies are lowered as one model. If `base` measures latencies instead of looking them up,
        this model is also compiled and measured.
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


def _measured_rows_us(made: Compiled, rows: Sequence[Sequence[int]]) -> list[float]:
    """Measure the latency of each list of operators. The operators of a list run one after the
    other.

    If operators are divided into parts, the parts of each operator run side by side, as they do in
    sequential execution.
    """
    parts = made.program.parts()
    if parts is None:
        return [float(us) for us in made.measured_latency.stages([[row] for row in rows])]
    whole_of = {op: whole for whole, ops in enumerate(parts) for op in ops}
    in_rows = [list(dict.fromkeys(whole_of[op] for op in row)) for row in rows]
    used = list(dict.fromkeys(whole for row in in_rows for whole in row))
    stages_us = made.measured_latency.stages([[[op] for op in parts[whole]] for whole in used])
    us = dict(zip(used, stages_us.tolist(), strict=True))
    return [sum(us[whole] for whole in row) for row in in_rows]


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

        Return the compilation of the merged model, and the schedule for this compilation.

        Raises
        ------
        ScheduleError: operators cannot be merged; the message says why.
        """
        groups = merged_stages(schedule)
        key = frozenset(frozenset(group) for group in groups)
        if key not in self._made:
            self._made[key] = self._compile_merged(self._merges.merged(groups))
        compilation = self._made[key]
        return compilation, realize_merges(schedule, compilation.program, compilation.streams)


def merged_stages(schedule: Schedule) -> list[tuple[str, ...]]:
    """The names of each merged stage's operators; all parts of an operator count as one."""
    return [
        tuple(dict.fromkeys(whole_name(schedule.op_names[op]) for op in stage.ops))
        for stage in schedule.stages
        if stage.kind == "merge"
    ]
