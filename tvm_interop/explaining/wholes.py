"""Finds latencies of whole operators that run alone on one core, alone on all cores, or beside
other operators.

A whole operator is an operator of the model, together with all parts that it is divided into.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import GraphError, did_you_mean
from ..latency.base import pack_groups_of_stages
from ..program.graph import OpGraph
from ..scheduling.whole_operators import WholeOperators
from .verdict import Member, SideBySide

Groups = Sequence[Sequence[int]]
Price = Callable[[Sequence[Groups]], npt.NDArray[np.float64]]
"""A function that returns latencies of stages, in microseconds; NaN if a latency is unknown."""


class Wholes:
    """The whole operators of a program: their graph and their latencies.

    A whole operator is an operator of the model, together with all parts that it is divided into.

    Attributes
    ----------
    graph: the graph of the whole operators.
    cores: the number of cores, with one stream on each.
    wait_us: the cost of a wait between streams, in microseconds; NaN if it is unknown.
    """

    def __init__(
        self,
        graph: OpGraph,
        price: Price,
        cores: int,
        wait_us: float,
        whole_of: Sequence[str | None] | None = None,
        again: Callable[[Sequence[Groups]], object] | None = None,
    ) -> None:
        """Find the whole operators, by grouping the parts of each.

        Parameters
        ----------
        graph: the graph of the operators that run, including parts.
        price: a function that returns the latencies of stages of these operators. A stage runs at
            most `cores` groups of operators concurrently.
        whole_of: for each operator of `graph`, the name of the operator that it is a part of, or
            None if it is not a part.
        again: a function that measures stages again; None if nothing is measured.
        """
        parts: dict[str, list[int]] = {}
        for op, name in enumerate(graph.names):
            parts.setdefault((whole_of[op] if whole_of else None) or name, []).append(op)
        self._parts = list(parts.values())
        edges = WholeOperators(graph, self._parts).graph.edges
        self.graph = OpGraph.from_edges(list(parts), edges)
        self.cores, self.wait_us = cores, wait_us
        self._price, self._again = price, again
        self._divided_us = np.full(len(parts), math.nan)
        self._one_core_us = np.full(len(parts), math.nan)
        self._asked: set[int] = set()

    def id_of(self, name: str) -> int:
        """Return the index of the operator `name` of the model.

        Raises
        ------
        GraphError: there is no operator of that name.
        """
        names = self.graph.names
        if name not in names:
            raise GraphError(
                f"there is no operator `{name}`{did_you_mean(name, names)}; `--json` lists them, "
                f"the first are {', '.join(f'`{n}`' for n in names[:3])}"
            )
        return names.index(name)

    def parts_of(self, whole: int) -> tuple[int, ...]:
        """Return the parts of an operator, as operators of the graph that runs."""
        return tuple(self._parts[whole])

    def divided_us(self, wholes: Iterable[int]) -> list[float]:
        """Return the latency of each operator if its parts run on all cores, in microseconds."""
        chosen = list(wholes)
        self._learn(chosen)
        return [float(self._divided_us[whole]) for whole in chosen]

    def one_core_us(self, wholes: Iterable[int]) -> list[float]:
        """Return the latency of each operator if its parts run on one core, in microseconds."""
        chosen = list(wholes)
        self._learn(chosen)
        return [float(self._one_core_us[whole]) for whole in chosen]

    def side_by_side(self, sets: Sequence[Sequence[int]]) -> list[SideBySide]:
        """Return the latencies of sets of independent operators, run one after the other and
        concurrently.
        """
        self._learn({whole for chosen in sets for whole in chosen})
        packed = [self._packed(chosen) for chosen in sets]
        stages = [stage for both in zip(map(self._in_turn, sets), packed, strict=True)
                  for stage in both if stage is not None]  # fmt: skip
        prices = iter(self._price(stages).tolist())
        found = []
        for chosen, streams in zip(sets, packed, strict=True):
            in_turn_us = next(prices)
            beside_us = math.nan if streams is None else next(prices)
            found.append(self._numbers(chosen, streams, in_turn_us, beside_us))
        return found

    def measure_again(self, sets: Sequence[Sequence[int]]) -> None:
        """Measure again every latency that `side_by_side` needs for these sets of operators."""
        if self._again is None or not sets:
            return
        stages = [streams for chosen in sets if (streams := self._packed(chosen))]
        stages += [self._in_turn(chosen) for chosen in sets]
        wholes = sorted({whole for chosen in sets for whole in chosen})
        self._again([*stages, *self._alone(wholes)])
        # Drop the old latencies, because `_learn` measures only latencies that are missing.
        self._asked.clear()

    def levels(self) -> list[list[int]]:
        """Return the sets of two or more operators with the same depth.

        The depth of an operator is the number of operators before it on the longest path from an
        input. There is no path between operators of the same depth, so they are independent.
        """
        depth: dict[int, int] = {}
        for op in self.graph.topological_order():
            depth[op] = 1 + max((depth[p] for p in self.graph.predecessors(op)), default=-1)
        levels: dict[int, list[int]] = {}
        for op, at in depth.items():
            levels.setdefault(at, []).append(op)
        return [sorted(levels[at]) for at in sorted(levels) if len(levels[at]) > 1]

    def _learn(self, wholes: Iterable[int]) -> None:
        new = sorted(set(wholes) - self._asked)
        if not new:
            return
        self._asked.update(new)
        prices = self._price(self._alone(new))
        self._divided_us[new] = prices[0::2]
        self._one_core_us[new] = prices[1::2]

    def _alone(self, wholes: Sequence[int]) -> list[Groups]:
        """Return two stages for each operator: its parts on all cores, and all parts on one."""
        stages: list[Groups] = []
        for whole in wholes:
            stages += [self._in_turn([whole]), [self._parts[whole]]]
        return stages

    def _in_turn(self, wholes: Sequence[int]) -> list[list[int]]:
        """Return, for each stream, the parts that it runs if operators run one after another.

        There is one stream for each core, and the parts of each operator are divided among all
        streams. Each stream runs its parts in the order of `wholes`.
        """
        streams = [[p for w in wholes for p in self._parts[w][s :: self.cores]]
                   for s in range(self.cores)]  # fmt: skip
        return [ops for ops in streams if ops]

    def _packed(self, wholes: Sequence[int]) -> list[list[int]] | None:
        """Return, for each stream, the operators that it runs in concurrent execution.

        The longest operators are assigned to streams first. Return None if a latency is unknown.
        """
        op_us = np.nan_to_num(self._one_core_us, nan=0.0)
        if np.isnan(self._one_core_us[list(wholes)]).any():
            return None
        count = min(self.cores, len(wholes))
        stream_of = pack_groups_of_stages([[[w] for w in wholes]], op_us, count)
        streams: list[list[int]] = [[] for _ in range(count)]
        for whole, stream in zip(wholes, stream_of, strict=True):
            streams[stream] += self._parts[whole]
        return [ops for ops in streams if ops]

    def _numbers(
        self,
        wholes: Sequence[int],
        streams: list[list[int]] | None,
        in_turn_us: float,
        beside_us: float,
    ) -> SideBySide:
        members = tuple(
            Member(
                self.graph.names[whole],
                len(self._parts[whole]),
                float(self._divided_us[whole]),
                float(self._one_core_us[whole]),
            )
            for whole in wholes
        )
        of_part = {part: whole for whole in wholes for part in self._parts[whole]}
        ideal_us = math.nan
        if streams is not None:
            on_stream = [dict.fromkeys(of_part[part] for part in ops) for ops in streams]
            ideal_us = max(float(self._one_core_us[list(ops)].sum()) for ops in on_stream)
        waits = 2 if self.cores > 1 else 0
        return SideBySide(members, in_turn_us, beside_us, ideal_us, waits, self.wait_us, self.cores)
