"""Local search, which improves a good schedule by small changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .._native import passes as native
from ..latency.base import LatencyModel, pack_groups_of_stages
from ..program.graph import OpGraph
from .budget import Budget
from .stages import Stage

_LEAST_GAIN = 0.01
"""New stages must be faster than the stages that they replace by at least this share. A smaller
gain may be noise, because latencies are measured.
"""

_FINDING_SHARE = 0.5
"""Share of the time that is left for finding the changes of a round. The rest is for the latencies
of the new stages. Stages with hundreds of operators have so many changes that not all are found.
"""

_Ops: TypeAlias = tuple[int, ...]
_Streams: TypeAlias = tuple[_Ops, ...]
"""A stage: a tuple of streams, sorted by their first operators. Empty streams are left out."""


def refine_stages(
    graph: OpGraph,
    latency: LatencyModel,
    stages: Sequence[Stage],
    op_us: npt.NDArray[np.float64],
    num_streams: int,
    budget: Budget,
) -> tuple[tuple[Stage, ...], bool]:
    """Change the stages, one or two at a time, for as long as the changes make them faster.

    The function returns the new stages, and whether the time was enough to find all changes.

    A change moves an operator to another stream of its stage or into the stage before or after. It
    may also split a stage in two along the topological order, or join two neighbouring stages.

    Each round first estimates how much time each change saves. It collects the changes that should
    save more than 1% of the latency of the stages that they replace. The estimate for a new stage
    is the length of its longest stream, unless its latency is known. The length of a stream is the
    sum of the latencies that its operators have when they run alone. Then one call of
    `latency.stages` gives the latencies of the new stages, the most promising change first. The
    changes that really save more than 1% are made, the largest savings first. A change is skipped
    if the round has already replaced one of the stages that it changes. If two changes save equally
    much, the change with the larger estimate comes first. If the estimates are equal too, the
    change of earlier stages comes first.

    The result is deterministic unless the time runs out. The budget is checked between two changes,
    between rounds, and by `latency`. In each round, at most half of the remaining time is for
    finding changes. After that, the round goes on with the changes found so far.

    Parameters
    ----------
    op_us: (num_ops,) latency of each operator when it runs alone, in microseconds.
    num_streams: largest number of streams in a stage.
    """
    search = _StageSearch(graph, latency, op_us, num_streams)
    current = [search.canonical(stage.by_stream().values()) for stage in stages]
    search.price([(streams,) for streams in current])
    in_time = True
    while budget.left_s() > 0:
        changes, are_all = search.changes(current, budget.share(_FINDING_SHARE))
        in_time = in_time and are_all
        search.price([change.after for change in changes])
        taken: set[int] = set()
        made = []
        for change in sorted(changes, key=lambda c: -search.gain(c)):
            if not search.is_gain(change) or not taken.isdisjoint(change.places):
                continue
            taken.update(change.places)
            made.append(change)
        if not made and are_all:
            break
        for change in sorted(made, key=lambda c: c.first, reverse=True):
            current[change.first : change.first + len(change.before)] = change.after
    stages = [Stage(streams, tuple(range(len(streams)))) for streams in current]
    return tuple(stages), in_time and budget.left_s() > 0


@dataclass(frozen=True)
class _Change:
    """A change that puts the stages `after` in place of the stages `before`.

    The stages `before` are neighbours. The first of them has the index `first`.
    """

    first: int
    before: tuple[_Streams, ...]
    after: tuple[_Streams, ...]

    @property
    def places(self) -> range:
        return range(self.first, self.first + len(self.before))


class _StageSearch:
    """Finds changes of stages, and says how much time each change saves."""

    def __init__(
        self,
        graph: OpGraph,
        latency: LatencyModel,
        op_us: npt.NDArray[np.float64],
        num_streams: int,
    ) -> None:
        self._sources = [frozenset(graph.predecessors(op)) for op in range(graph.num_ops)]
        self._readers = [frozenset(graph.successors(op)) for op in range(graph.num_ops)]
        self._latency = latency
        self._op_us: list[float] = op_us.tolist()
        self._num_streams = num_streams
        self._position = {op: i for i, op in enumerate(graph.topological_order())}
        self._known_us: dict[_Streams, float] = {}
        self._settled: set[tuple[_Streams, ...]] = set()

    def canonical(self, streams: Iterable[Sequence[int]]) -> _Streams:
        """The streams that are not empty, each in topological order, sorted by first operator."""
        ordered = (self._in_order(ops) for ops in streams if ops)
        return tuple(sorted(ordered, key=lambda ops: self._position[ops[0]]))

    def _in_order(self, ops: Sequence[int]) -> _Ops:
        """`ops` in topological order.

        If `ops` is a tuple in this order, the result is the same object. So the many changes of a
        large stage share the tuples of streams that they do not change.
        """
        places = list(map(self._position.__getitem__, ops))
        if isinstance(ops, tuple) and places == sorted(places):
            return ops
        return tuple(sorted(ops, key=self._position.__getitem__))

    def price(self, groups_of_stages: Sequence[tuple[_Streams, ...]]) -> None:
        """Ask, in one call, for the latencies of the stages that are not known yet."""
        wanted = [stage for stages in groups_of_stages for stage in stages]
        unknown = [stage for stage in dict.fromkeys(wanted) if stage not in self._known_us]
        if unknown:
            prices = self._latency.stages(unknown)
            self._known_us.update(zip(unknown, map(float, prices), strict=True))

    def gain(self, change: _Change) -> float:
        """Microseconds that `change` saves. The latencies of old and new stages must be known."""
        return self._us(change.before) - self._us(change.after)

    def is_gain(self, change: _Change) -> bool:
        return self.gain(change) > _LEAST_GAIN * self._us(change.before)

    def changes(self, stages: Sequence[_Streams], budget: Budget) -> tuple[list[_Change], bool]:
        """The changes that may save time and are not tried yet, sorted by their estimated gain.

        Also returns whether the time budget was enough to find all of them.
        """
        found: list[tuple[float, _Change]] = []
        in_time = True
        for i in range(len(stages)):
            for before in (tuple(stages[i : i + 1]), tuple(stages[i : i + 2])):
                in_time = in_time and budget.left_s() > 0
                if before in self._settled or not in_time:
                    continue
                self._settled.add(before)
                price = self._us(before)
                replacements = (
                    self._within(before[0]) if len(before) == 1 else self._between(*before)
                )
                for after in _each_once(replacements):
                    if budget.left_s() <= 0:
                        break
                    hoped_us = price - sum(map(self._bound_us, after))
                    if hoped_us > _LEAST_GAIN * price:
                        found.append((hoped_us, _Change(i, before, after)))
        found.sort(key=lambda pair: -pair[0])
        return [change for _, change in found], in_time and budget.left_s() > 0

    def _us(self, stages: Sequence[_Streams]) -> float:
        return sum(self._known_us[streams] for streams in stages)

    def _bound_us(self, streams: _Streams) -> float:
        if streams in self._known_us:
            return self._known_us[streams]
        return max(sum(map(self._op_us.__getitem__, ops)) for ops in streams)

    def _within(self, streams: _Streams) -> Iterator[tuple[_Streams, ...]]:
        """Changes of one stage: move an operator to another of its streams, or split the stage."""
        for s, ops in enumerate(streams):
            for op in ops:
                rest = tuple(other for other in ops if other != op)
                if not rest:
                    others = (*streams[:s], *streams[s + 1 :])
                    yield from ((joined,) for joined in self._with(op, others))
                elif not self._touching(op, rest):
                    others = _replaced(streams, s, rest)
                    yield from ((joined,) for joined in self._with(op, others, skip=s))
        in_order = sorted((op for ops in streams for op in ops), key=self._position.__getitem__)
        for cut in range(1, len(in_order)):
            first = set(in_order[:cut])
            yield (
                self.canonical([op for op in ops if op in first] for ops in streams),
                self.canonical([op for op in ops if op not in first] for ops in streams),
            )

    def _between(self, first: _Streams, second: _Streams) -> Iterator[tuple[_Streams, ...]]:
        """Changes of two neighbouring stages: move an operator to the other stage, or join them."""
        yield (self._joined((*first, *second)),)
        for source, target, forwards in ((first, second, True), (second, first, False)):
            staying = [op for ops in source for op in ops]
            for s, ops in enumerate(source):
                for op in ops:
                    if self._blocks(op, staying, forwards):
                        continue
                    left = self.canonical(
                        _replaced(source, s, tuple(other for other in ops if other != op))
                    )
                    for grown in self._with(op, target):
                        pair = (left, grown) if forwards else (grown, left)
                        yield tuple(stage for stage in pair if stage)

    def _with(self, op: int, streams: _Streams, skip: int = -1) -> Iterator[_Streams]:
        """Add `op` to a stage, and yield a new stage for each stream that `op` can join.

        If `op` has direct dependencies with operators of one stream only, `op` joins that stream.
        If it has dependencies with operators of several streams, no stage is yielded. If it has no
        dependencies, `op` can join each stream, or a new stream if the number of streams allows it.
        `op` never joins the stream with the index `skip`.
        """
        touched = [s for s, ops in enumerate(streams) if self._touching(op, ops)]
        if len(touched) > 1:
            return
        for s in touched or range(len(streams)):
            if s != skip:
                yield self.canonical(_replaced(streams, s, (*streams[s], op)))
        if not touched and len(streams) < self._num_streams:
            yield self.canonical((*streams, (op,)))

    def _touching(self, op: int, others: Sequence[int]) -> bool:
        """Whether there is a direct dependency between `op` and one of the operators `others`."""
        return not (self._sources[op].isdisjoint(others) and self._readers[op].isdisjoint(others))

    def _blocks(self, op: int, staying: Sequence[int], forwards: bool) -> bool:
        """Whether a dependency on an operator in `staying` keeps `op` in its own stage.

        If `forwards` is True, `op` moves to the stage after its own, otherwise to the stage before.
        """
        near = self._readers[op] if forwards else self._sources[op]
        return not near.isdisjoint(staying)

    def _joined(self, streams: Sequence[_Ops]) -> _Streams:
        """Join all operators into one stage. Operators that depend on each other share a stream."""
        group_of = {op: i for i, ops in enumerate(streams) for op in ops}
        groups = {i: list(ops) for i, ops in enumerate(streams)}
        for op in list(group_of):
            for source in sorted(self._sources[op]):
                if source in group_of and group_of[source] != group_of[op]:
                    gone = group_of[source]
                    groups[group_of[op]] += groups[gone]
                    for moved in groups.pop(gone):
                        group_of[moved] = group_of[op]
        merged = list(groups.values())
        num_streams = min(self._num_streams, len(merged))
        stream_of = pack_groups_of_stages([merged], self._op_us, num_streams)
        packed: list[list[int]] = [[] for _ in range(num_streams)]
        for ops, stream in zip(merged, stream_of, strict=True):
            packed[stream] += ops
        return self.canonical(packed)


def refine_streams(
    graph: OpGraph,
    streams: Sequence[Sequence[int]],
    op_us: npt.NDArray[np.float64],
    num_streams: int,
    budget: Budget,
) -> tuple[tuple[int, ...], ...]:
    """Move one operator at a time to another stream, for as long as the makespan gets shorter.

    All operators have one common order that agrees with every stream. An operator keeps its place
    in this order when it moves to another stream. Operators are tried in the common order, and
    streams by number. A move is kept if it makes the makespan shorter at all. The search ends after
    a round without a gain, or when the budget is spent. `Schedule.simulate` predicts the same
    makespan as this search.

    Parameters
    ----------
    op_us: (num_ops,) latency of each operator when it runs alone, in microseconds.
    num_streams: largest number of streams.
    """
    order = _merged_order(graph, streams)
    stream_of = {op: s for s, ops in enumerate(streams) for op in ops}
    weights = op_us.tobytes()

    def laid_out() -> list[list[int]]:
        lists: list[list[int]] = [[] for _ in range(num_streams)]
        for op in order:
            lists[stream_of[op]].append(op)
        return lists

    def makespan() -> float:
        return float(native.simulate_streams(graph.native, laid_out(), weights))

    best_us = makespan()
    gained = True
    while gained:
        gained = False
        for op in order:
            for stream in range(num_streams):
                if budget.left_s() <= 0:
                    return tuple(tuple(ops) for ops in laid_out() if ops)
                before = stream_of[op]
                stream_of[op] = stream
                found_us = makespan() if stream != before else best_us
                if found_us < best_us:
                    best_us, gained = found_us, True
                else:
                    stream_of[op] = before
    return tuple(tuple(ops) for ops in laid_out() if ops)


def _merged_order(graph: OpGraph, streams: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """An order of all operators that agrees with the dependencies and with each stream's order."""
    along = [(u, v) for ops in streams for u, v in pairwise(ops)]
    return OpGraph.from_edges(graph.names, [*graph.edges, *along]).topological_order()


def _each_once(changes: Iterable[tuple[_Streams, ...]]) -> Iterator[tuple[_Streams, ...]]:
    """Yield the distinct elements of `changes`, each as soon as it is found."""
    seen: set[tuple[_Streams, ...]] = set()
    for change in changes:
        if change not in seen:
            seen.add(change)
            yield change


def _replaced(streams: _Streams, index: int, ops: _Ops) -> _Streams:
    return (*streams[:index], ops, *streams[index + 1 :])
