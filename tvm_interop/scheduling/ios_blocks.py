"""Searches blocks that are too large for an exact search by IOS.

A beam search finds good stages quickly. Then windows of neighbouring stages are searched again,
until the given number of transitions or the given time is used up.
"""

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
from .stages import unpack_stages

BEAM_SHARE = 0.5
"""Share of a block's transitions that the beams may use. The search of windows gets the rest. A
transition of a beam takes longer than a transition of a window."""
_LEAST_GAIN = 1e-9
"""Share by which a makespan must be shorter to count as a gain. A smaller difference may be a
rounding error, because two sums of the same latencies may be rounded differently.
"""
_FIRST_WINDOW = 2_000
"""Largest number of transitions in a window of stages, in the first rounds of windows."""
_WIDEST_WINDOW = 8_000_000
"""Largest number of transitions in a window of stages, in any round. A transition takes 8 bytes."""
_ANY = 1 << 60
_MOST_ASKED_BEAMS = 8
"""Largest number of rounds of beam search with estimated latencies. After each round, the latency
model is asked for the latencies of the chosen stages. In later rounds, these latencies replace the
estimates.
"""

Stages = list[tuple[int, ...]]
"""The operators of each stage; the stages are in the order in which they run."""


@dataclass(frozen=True)
class Limits:
    """The limits on the size of a stage, as in the options of `ios`."""

    max_group_ops: int
    max_groups: int
    single_root: bool


class Allowance:
    """The limit of a search: a number of transitions, or a time at which the search ends.

    With a time limit, the number of transitions is not limited. The result of a search then depends
    on the speed of the machine.
    """

    def __init__(self, transitions: int, end_s: float | None) -> None:
        self._transitions: float = transitions if end_s is None else math.inf
        self._end_s = math.inf if end_s is None else end_s
        self._whole: Allowance | None = None

    def spend(self, transitions: int) -> None:
        """Subtract transitions from this allowance.

        If this allowance was made as a share of another allowance, the transitions are also
        subtracted from the other allowance.
        """
        self._transitions -= transitions
        if self._whole is not None:
            self._whole.spend(transitions)

    def share(self, part: float) -> Allowance:
        """Make a new allowance: the fraction `part` of what this allowance may still spend.

        Parameters
        ----------
        part: the fraction of this allowance to take, from 0 to 1.
        """
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
        """A function that tells whether the time limit has passed; None if there is no limit."""
        return None if math.isinf(self._end_s) else lambda: self.seconds_left <= 0


class LargeBlock:
    """The fastest sequence of stages known for the operators of one block.

    The sequence starts with one operator per stage, or with the stages of `greedy` if they are
    faster. `run_beams` looks for faster sequences from both ends of the block, with ever wider
    beams. `search_windows` takes neighbouring stages and finds the fastest stages for their
    operators, until no window gets better. All stages of the sequence have known latencies, so that
    the sequence can be used at any time.

    Attributes
    ----------
    ops: the operators in topological order.
    cost_us: total latency of the stages in microseconds.
    stages: the operators of each stage.
    transitions: number of transitions that the search has looked at.
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
        # The latency of a stage of one operator is always known, even if the time budget is spent.
        self.offer(StageBatch.from_stages([[(op,)] for op in self.ops]))
        self.offer(self._greedy())

    def offer(self, stages: StageBatch) -> None:
        """Replace the known sequence by `stages` if these are faster. They must obey the limits."""
        us = self._prices.of(stages)
        cost_us = math.fsum(us)
        if cost_us < self.cost_us:
            self.cost_us = cost_us
            self.stages = [tuple(op for group in stage for op in group) for stage in stages]

    def groups(self) -> list[Groups]:
        """The groups of each stage of the fastest known sequence."""
        search = self._windows(1, 1, None)
        return [*StageBatch.from_bytes(native.ios_stages(search))]

    def run_beams(self, allowance: Allowance) -> None:
        """Run beams of width 1, 2, 4, ... until the allowance is spent.

        The width of the last beam is the first of these widths that is above 1024 times the number
        of operators. Beams of width 1 are quick, so they run to their end even if few transitions
        are allowed. If the latency model is slow to answer, beams use estimated latencies
        (`_run_guessing`).
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
        """Search windows of neighbouring stages until the allowance is spent.

        The borders of the windows move from round to round. Windows become wider after three rounds
        without a gain. The search also ends if one window holds the whole block, or if the widest
        windows do not make the block faster.
        """
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
                return  # The window held the whole block, so no faster stages for the block exist.
            rounds_in_vain = 0 if self.cost_us < before_us else rounds_in_vain + 1
            # The windows of the next round have other borders. After three rounds without a gain,
            # windows become wider.
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
        """The stages of `greedy` for this block. No stage holds operators of two blocks."""
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
        """Run a beam; return whether it ended before the transitions or the time were used up."""
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
        """Run beams with estimated latencies, and ask only for latencies of the chosen stages."""
        for _ in range(_MOST_ASKED_BEAMS):
            if allowance.is_over:
                return
            asked = self._prices.num_asked
            for backward in (False, True):
                # Make a new beam. The old beam would keep its estimates for stages whose latencies
                # are known by now.
                self._beam = None
                if not self._run(backward, 8, allowance, self._guess):
                    self._run(backward, 1, allowance, self._guess)
            if self._prices.num_asked == asked:
                return
