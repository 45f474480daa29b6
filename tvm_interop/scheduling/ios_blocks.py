"""IOS on blocks that are too large to search through: good stages soon, better ones later."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._native import passes as native
from ..latency.batch import Groups, StageBatch
from ..program.graph import OpGraph
from . import budget
from .ios_pricing import StagePrices
from .schedules import unpack_stages

BEAM_SHARE = 0.5
"""The beams' share of a block's transitions; each takes longer than one of the windows'."""
_LEAST_GAIN = 1e-9
"""By which share a sum must be cheaper to count: rounding differs with the order of a sum."""
_FIRST_WINDOW = 2_000
"""Transitions of a window at first."""
_WIDEST_WINDOW = 8_000_000
"""Transitions of a window, 8 bytes each."""
_ANY = 1 << 60
_MOST_ASKED_BEAMS = 8
"""So often a beam of guessed prices is run anew with what was learned of its stages."""

Stages = list[tuple[int, ...]]
"""The operators of each stage, in the order in which they run."""


@dataclass(frozen=True)
class Limits:
    """Which stages there may be; as the options of `ios`."""

    max_group_ops: int
    max_groups: int
    single_root: bool


class Allowance:
    """How far a search may go: in transitions, or in seconds where it has a clock.

    With a clock the transitions are not limited, and what a search finds depends on the machine.
    """

    def __init__(self, transitions: int, end_s: float | None) -> None:
        self._transitions: float = transitions if end_s is None else math.inf
        self._end_s = math.inf if end_s is None else end_s
        self._whole: Allowance | None = None

    def spend(self, transitions: int) -> None:
        """Take transitions off, and off the allowance that this is a share of."""
        self._transitions -= transitions
        if self._whole is not None:
            self._whole.spend(transitions)

    def share(self, part: float) -> Allowance:
        """An allowance of `part` of what is left."""
        shared = Allowance(0, None)
        shared._whole = self
        shared._transitions = self._transitions * part
        left_s = self.seconds_left
        shared._end_s = math.inf if math.isinf(left_s) else budget.now_s() + part * left_s
        return shared

    @property
    def transitions_left(self) -> int:
        return int(min(max(self._transitions, 0), _ANY))

    @property
    def seconds_left(self) -> float:
        return self._end_s - budget.now_s() if math.isfinite(self._end_s) else math.inf

    @property
    def is_over(self) -> bool:
        return self._transitions < 1 or self.seconds_left <= 0

    @property
    def clock(self) -> Callable[[], bool] | None:
        """Tells native code whether the time is over; None without a clock."""
        return None if math.isinf(self._end_s) else lambda: self.seconds_left <= 0


class LargeBlock:
    """The best stages known for the operators of one block.

    It starts with one operator after the other, and the stages of `greedy`. `run_beams` looks for
    others in both directions, with ever wider beams; `search_windows` takes neighbouring stages
    together and finds the cheapest ones that their operators can make, until no window gets any
    better. Every sequence that it holds was priced, stage by stage: it can be used at any time.

    Attributes
    ----------
    ops: in topological order.
    cost_us: what the stages take together.
    stages: the operators of each.
    transitions: how many were looked at.
    """

    def __init__(
        self, graph: OpGraph, ops: Sequence[int], prices: StagePrices, limits: Limits
    ) -> None:
        self._graph = graph
        self.ops = list(ops)
        self._prices = prices
        self._limits = limits
        self._beam: Any = None
        self._width = 1
        self._window = _FIRST_WINDOW
        self.transitions = 0
        self.cost_us = math.inf
        self.stages: Stages = []
        # No budget leaves out the price of an operator alone.
        self.offer(StageBatch.from_stages([[(op,)] for op in self.ops]))
        self.offer(self._greedy())

    def offer(self, stages: StageBatch) -> None:
        """Take over stages that keep to the limits, if they are cheaper."""
        us = self._prices.of(stages)
        cost_us = math.fsum(us)
        if cost_us < self.cost_us:
            self.cost_us = cost_us
            self.stages = [tuple(op for group in stage for op in group) for stage in stages]

    def groups(self) -> list[Groups]:
        """The groups of each stage."""
        search = self._windows(1, 1, None)
        return [*StageBatch.from_bytes(native.ios_stages(search))]

    def run_beams(self, allowance: Allowance) -> None:
        """Run beams of width 1, 2, 4, ... until nothing is left, or they find all they can.

        Those of width 1 are quick, and run whatever transitions are left.
        """
        if self._prices.are_costly:
            self._run_guessing(allowance)
            return
        while not allowance.is_over:
            through = [self._run(back, self._width, allowance, self._ask) for back in (False, True)]
            if not all(through) or self._width > len(self.ops) << 10:
                return
            self._width *= 2

    def search_windows(self, allowance: Allowance) -> None:
        """Search windows through, wider ones where none gets better, until nothing is left."""
        rounds_in_vain, first = 0, 0
        round_s = 0.0
        while not allowance.is_over and allowance.seconds_left > round_s:
            started = budget.now_s()
            window = min(self._window, allowance.transitions_left)
            search = self._windows(first or len(self.stages), window, allowance.clock)
            windows, transitions = native.ios_effort(search)
            allowance.spend(transitions)
            self.transitions += transitions
            solved, makespan = native.ios_solve(search, self._prices.values(search))
            round_s = budget.now_s() - started
            before_us = self.cost_us
            if makespan < self.cost_us * (1 - _LEAST_GAIN):
                self.cost_us = float(makespan)
                self.stages = [
                    tuple(op for group in stage.groups for op in group)
                    for stage in unpack_stages(solved)
                ]
            if windows == 1:
                return  # Nothing is left to find.
            rounds_in_vain = 0 if self.cost_us < before_us else rounds_in_vain + 1
            # Windows with other borders next, then wider ones.
            first = (first + 2) % 5
            if rounds_in_vain == 3:
                rounds_in_vain = 0
                if self._window >= min(_WIDEST_WINDOW, allowance.transitions_left):
                    return
                self._window *= 4

    def _windows(self, first: int, transitions: int, clock: Callable[[], bool] | None) -> Any:
        return native.ios_windows(
            self._graph.native,
            self._limits.max_group_ops,
            self._limits.max_groups,
            self._limits.single_root,
            [list(stage) for stage in self.stages],
            first,
            transitions,
            clock,
        )

    def _greedy(self) -> StageBatch:
        """Greedy's stages of these operators; it never puts those of two blocks into one."""
        inside = set(self.ops)
        place = {op: i for i, op in enumerate(self._graph.topological_order())}
        stages = (
            sorted((op for group in stage.groups for op in group), key=place.__getitem__)
            for stage in unpack_stages(native.greedy(self._graph.native, self._limits.max_groups))
        )
        return StageBatch.from_stages(
            [[(op,) for op in stage] for stage in stages if inside.issuperset(stage)]
        )

    def _run(self, backward: bool, width: int, allowance: Allowance, ask: Any) -> bool:
        """One beam; whether it got to the end."""
        if self._beam is None:
            self._beam = self._make_beam()
        work_us = float(self._prices.alone_us[self.ops].sum())
        flat, us, transitions, through = native.stage_beam_run(
            self._beam,
            width,
            backward,
            self.cost_us,
            max(work_us / self.cost_us, 1.0) if self.cost_us > 0 else 1.0,
            self._prices.certain,
            allowance.transitions_left if width > 1 else _ANY,
            allowance.clock,
            ask,
        )
        allowance.spend(int(transitions))
        self.transitions += int(transitions)
        found = StageBatch.from_bytes(flat)
        if len(found):
            if not self._prices.are_costly:
                self._prices.write(found, np.frombuffer(us, dtype=np.float64))
            self.offer(found)
        return bool(through)

    def _make_beam(self) -> Any:
        return native.stage_beam_make(
            self._graph.native,
            self.ops,
            self._prices.alone_us.tobytes(),
            self._limits.max_group_ops,
            self._limits.max_groups,
            self._limits.single_root,
            self._prices.set_of,
        )

    def _ask(self, flat: Any) -> bytes:
        return self._prices.ask(StageBatch.from_bytes(flat)).tobytes()

    def _guess(self, flat: Any) -> bytes:
        return self._prices.guess(StageBatch.from_bytes(flat)).tobytes()

    def _run_guessing(self, allowance: Allowance) -> None:
        """Beams that go by guessed prices; only the stages that they choose are asked for."""
        for _ in range(_MOST_ASKED_BEAMS):
            if allowance.is_over:
                return
            asked = self._prices.num_asked
            for backward in (False, True):
                # What is known of stages now is not what the last beam went by.
                self._beam = None
                if not self._run(backward, 8, allowance, self._guess):
                    self._run(backward, 1, allowance, self._guess)
            if self._prices.num_asked == asked:
                return
