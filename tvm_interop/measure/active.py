"""Finds IOS's schedule with few measurements, because the latencies of most stages are predicted.

Only the stages that decide which schedule is the fastest are measured.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .._native import passes as native
from ..errors import InputError, ScheduleError
from ..latency.base import LatencyModel
from ..latency.batch import StageBatch
from ..latency.features import OperatorTable
from ..latency.learned import Floats, LearnedLatency, PredictionError, prediction_error
from ..program.graph import OpGraph
from ..scheduling.ios_search import IosOptions, enumerate_stages, search_ios
from ..scheduling.options import us_since
from ..scheduling.schedules import Schedule
from ..scheduling.stages import Stage, pack_onto_streams
from ..scheduling.whole_operators import WholeOperators
from .measured import MeasuredLatency
from .stage_space import Found, Known, StageSpace
from .store import LatencyStore

_ROUND = 8
_ROUND_SHARE = 0.01
"""A round measures `_ROUND` kinds of stages, or this fraction of all kinds if that is more. A kind
is a set of stages that run the same kernels.
"""
_LEAST_SAMPLES = 24
"""If fewer stages than this were measured, no latencies are predicted, and the next stages to
measure are drawn at random.
"""
_OPTIMISM = 1.0
"""An optimistic latency is this many standard deviations below the expected latency."""
_PATIENCE = 3
_STABLE = 0.01
"""The search ends when the last `_PATIENCE` rounds together made the schedule faster by less than
this fraction."""
_EXPECTED_TRANSITIONS = 1_000_000
"""The largest number of transitions in a search of a large graph that uses expected latencies."""
_WINDOW = 100_000
"""The largest number of transitions in one window (a range of neighbouring stages) of a schedule
that was found by expected latencies."""
_SPACES = 2
"""The search ends when this many schedules in a row were searched in windows (ranges of
neighbouring stages), and each gained less than `_STABLE`."""


class Device(Known, Protocol):
    """Measures stages. `MeasuredLatency` implements this protocol."""

    def op(self, op: int) -> float:
        """Microseconds that operator `op` takes when no other operator runs."""

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> Floats:
        """Microseconds of each stage; stages that were not measured before are measured now."""

    def measure_again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        """Measure stages again, and return how many were measured (see `LatencyModel`)."""


@dataclass(frozen=True)
class Round:
    """The progress of a search after one round.

    Attributes
    ----------
    number: number of the round, from 1.
    measured: stages of several operators that this search has measured so far. Stages that run the
        same kernels count once.
    unmeasured: candidate stages that were never measured. Stages that run the same kernels count
        once.
    best_us: latency of the best schedule that has only measured stages, in microseconds.
    error: error of the predictions for this round's stages, made before the stages were measured.
    samples: number of stages from which the model had learned when it made these predictions.
    """

    number: int
    measured: int
    unmeasured: int
    best_us: float
    error: PredictionError
    samples: int


def active_search(
    graph: OpGraph, latency: MeasuredLatency, store: LatencyStore, **options: Any
) -> ActiveSearch:
    """Prepare to search for a schedule on the device at hand.

    The search learns from all records of this device in `store`.

    Parameters
    ----------
    latency: measures the program's stages, and keeps the results in `store`.
    options: options of `ActiveSearch`.

    Raises
    ------
    ScheduleError, InputError: an option does not exist, or its value is not valid.
    DeviceError: xgboost is not installed.
    """
    known = list(inspect.signature(ActiveSearch).parameters)[3:]
    for option in options:
        if option not in known:
            raise ScheduleError(
                f"the search with learned latencies has no option `{option}`; its options are "
                + ", ".join(known)
            )
    ops = range(graph.num_ops)
    table = OperatorTable.from_workloads(
        [latency.workload(op) for op in ops], [latency.op(op) for op in ops]
    )
    learned = LearnedLatency(table, latency.setting, options.get("seed", 0))
    learned.observe_records(store.records(latency.setting.device), store.workloads())
    return ActiveSearch(graph, latency, learned, **options)


class ActiveSearch:
    """Finds IOS's schedule while measuring few of its stages.

    First the search measures each operator by itself. An operator that is divided into parts is
    also measured as a whole. All other stages are predicted. Then the search goes in rounds of
    three steps:

    1. Find the best schedule, with an optimistic latency for each unmeasured stage. An optimistic
       latency is the expected latency minus its uncertainty.
    2. Measure the stages of this schedule, the stages of the best schedule by expected latencies,
       and the stages of schedules that are nearly as good as the first schedule.
    3. Learn from the measurements.

    With optimistic latencies, the search first measures the stages that could change the best
    schedule. This principle is called optimism in the face of uncertainty. If an optimistic latency
    was too small, the measurement corrects it.

    The search ends when all stages of the best optimistic schedule are measured, or when three
    rounds together have made the schedule faster by less than 1%. It also ends when a budget is
    used up. At any time the result is the best schedule that has only measured stages. While the
    model has few samples, rounds draw the stages to measure at random. Such random rounds do not
    count as rounds without a gain.

    Scheduler `ios` searches the graph block by block. Each block gets a part of `max_transitions`.
    If a block has more transitions, not all of its stages can be considered. Then the beam search
    of `ios` finds a schedule by expected latencies. `ActiveSearch` takes the faster of this
    schedule and the best schedule known before, and divides it into windows of neighbouring stages.
    Only stages made of the operators of one window are considered. When further rounds gain
    nothing, the beam search is repeated with other windows. By then its predictions are better,
    because the model has learned from new measurements. The search ends when two repetitions in a
    row have gained less than 1% each.

    Attributes
    ----------
    rounds: the progress after each round.
    """

    def __init__(
        self,
        graph: OpGraph,
        device: Device,
        learned: LearnedLatency,
        *,
        max_group_ops: int = 3,
        max_groups: int = 8,
        endings: str = "complete",
        streams: int | None = None,
        max_transitions: int = 8_000_000,
        parts: Sequence[Sequence[int]] | None = None,
        max_measurements: int | None = None,
        time_budget_s: float | None = None,
        seed: int = 0,
        on_round: Callable[[Round], object] | None = None,
    ) -> None:
        """Enumerate the candidate stages of the search.

        Parameters
        ----------
        device: measures stages. Each operator whose latency is unknown is measured alone
            immediately.
        learned: predicts stages.
        max_group_ops, max_groups, endings, streams, max_transitions, parts: as in scheduler `ios`.
        max_measurements: how many stages of several operators may be measured; None for no limit.
            Stages whose latencies are known already do not count. Several stages that run the same
            kernels count as one.
        time_budget_s: seconds after which no further round begins; None for no limit.
        seed: seed of the random draw of the first stages.
        on_round: called with a `Round` after each round.

        Raises
        ------
        ScheduleError, InputError: an option's value is not valid; the message names the option.
        """
        if max_measurements is not None and max_measurements < 0:
            raise InputError(f"`max_measurements` must be 0 or more, got {max_measurements}")
        if time_budget_s is not None and not time_budget_s >= 0:
            raise InputError(f"`time_budget_s` must be 0 or more, got {time_budget_s}")
        self.rounds: list[Round] = []
        self._graph = graph
        self._device = device
        self._learned = learned
        self._streams = streams
        self._max_measurements = math.inf if max_measurements is None else max_measurements
        self._time_budget_s = math.inf if time_budget_s is None else time_budget_s
        self._seed = seed
        self._on_round = on_round
        self._started = time.perf_counter()
        self._wholes = None if parts is None else WholeOperators(graph, parts)
        if self._wholes is not None:
            graph, max_group_ops = self._wholes.graph, 1
        self._searched = graph
        self._op_us = np.array([device.op(i) for i in range(self._graph.num_ops)], dtype=np.float64)
        self._options = IosOptions(max_group_ops, max_groups, endings, streams, max_transitions)
        started = time.perf_counter()
        search = enumerate_stages(graph, self._options, self._alone_us, cuts=False)
        self._num_blocks = int(native.ios_stats(search)["blocks"])
        self._num_left = len(native.ios_left_out(search))
        self._search_us = us_since(started)
        self._measured = 0
        self._shift = 0
        self._first_round = 0
        one_by_one = tuple(Stage(((op,),), (0,)) for op in graph.topological_order())
        self._found = Found(one_by_one, float(self._alone_us.sum()))
        self._space = self._windows() if self._num_left else self._space_of(search)

    def run(self) -> Schedule:
        """Search to the end, and return the schedule of `best()`.

        If the search measured any stage, the stages of its schedule are measured again at the end.
        The reason is that a search prefers stages whose first latencies were low by chance.
        """
        in_vain = 0
        while True:
            before_us = self._found.makespan_us
            while (wanted := self._wanted()).size and not (self._is_spent() or self._stands()):
                self._measure(wanted[: int(min(self._round, self._measurements_left))])
            gained = self._found.makespan_us < (1 - _STABLE) * before_us
            in_vain = 0 if gained else in_vain + 1
            if not self._num_left or in_vain == _SPACES or self._is_spent():
                break
            self._first_round = len(self.rounds)
            self._space = self._windows()
        found = self.best()
        stages = [tuple(stage.by_stream().values()) for stage in found.stages]
        is_new = self._measured > 0 and self._has_time()
        again = self._device.measure_again(stages) if is_new else 0
        makespan = float(sum(self._device.stages(stages))) if again else found.makespan
        return replace(
            found,
            makespan=makespan,
            stats={**found.stats, "stages_measured_again": again},
        )

    def best(self) -> Schedule:
        """The best schedule that has only measured stages.

        The method may be called at any time, even after Ctrl-C has interrupted `run`.
        """
        stages, op_us = self._found.stages, self._op_us.tolist()
        if self._wholes is not None:
            stages = self._wholes.divided(stages, op_us, self._streams)
        elif self._streams is not None:
            stages = pack_onto_streams(stages, op_us, self._streams)
        error = next((r.error for r in reversed(self.rounds) if r.error.stages), None)
        priced = self._space.num_priced
        stats = {
            "search_us": self._search_us,
            "pricing_us": us_since(self._started) - self._search_us,
            **self._space.stats,
            "blocks": self._num_blocks,
            "blocks_left": self._num_left,
            "stages_priced": priced,
            "stages_spared": self._space.num_stages - priced,
            "stages_measured": self._measured,
            "rounds": len(self.rounds),
            "mape": None if error is None else error.mape,
            "spearman": None if error is None else error.spearman,
        }
        return Schedule(
            "ios",
            self._graph.names,
            stages=stages,
            makespan=self._found.makespan_us,
            stats=stats,
        )

    def expected_us(self, stages: StageBatch) -> Floats:
        """Microseconds of stages of the searched graph: measured if possible, otherwise predicted.

        While the model has few samples, a stage is predicted to take as long as its longest stream.
        A stream takes the sum of the latencies of its operators.
        """
        batch = self._packed(stages)
        if self._learned.num_samples < _LEAST_SAMPLES:
            longest = native.price_stages(batch.to_bytes(), self._op_us.tobytes())
            guess_us = np.frombuffer(longest, dtype=np.float64)
        else:
            guess_us = self._learned.predict(batch).us
        known_us = np.asarray(self._device.known(batch), dtype=np.float64)
        return np.where(np.isnan(known_us), guess_us, known_us)

    @property
    def candidates(self) -> StageBatch:
        """The stages that the search considers, with their groups packed onto the streams.

        Stages that run the same kernels are of one kind. Only one stage of each kind is returned.
        """
        return self._space.kinds

    @cached_property
    def _alone_us(self) -> Floats:
        """Microseconds of each operator of the searched graph, when no other operator runs."""
        if self._wholes is None:
            return self._op_us
        whole = [[[op]] for op in range(self._searched.num_ops)]
        return np.asarray(self._device.stages(self._packed(StageBatch.from_stages(whole))))

    @property
    def _measurements_left(self) -> float:
        return self._max_measurements - self._measured

    @property
    def _round(self) -> int:
        return max(_ROUND, int(_ROUND_SHARE * len(self._space.kinds)))

    def _space_of(self, search: Any) -> StageSpace:
        """List the stages of a native search. Stages with a single operator are measured
        immediately.
        """
        self._space = StageSpace(search, self._device, self._packed)
        self._take(self._space.of_one_operator)
        return self._space

    def _windows(self) -> StageSpace:
        """All stages whose operators lie in one window of a schedule.

        A window is a range of neighbouring stages of a schedule. This schedule is the best one by
        expected latencies, or the best one of measured stages if it is at least as fast.
        """
        started = time.perf_counter()
        most = min(self._options.max_transitions, _EXPECTED_TRANSITIONS)
        options = replace(self._options, streams=None, max_transitions=most)
        expected = search_ios("ios", self._searched, ExpectedLatency(self), options)
        stages = expected.stages
        if expected.makespan is None or self._found.makespan_us <= expected.makespan:
            stages = self._found.stages
        search = native.ios_windows(
            self._searched.native,
            options.max_group_ops,
            options.max_groups,
            options.endings == "paper",
            [[op for group in stage.groups for op in group] for stage in stages],
            self._shift or len(stages),
            min(_WINDOW, options.max_transitions),
            None,
        )
        self._shift = (self._shift + 2) % 5
        self._search_us += us_since(started)
        return self._space_of(search)

    def _packed(self, stages: StageBatch) -> StageBatch:
        """The stages as they will run, with their groups packed onto the search's streams."""
        if self._wholes is not None:
            stages = StageBatch.from_stages(self._wholes.parts_of(stages))
        if self._streams is None:
            return stages
        flat = native.pack_stages(stages.to_bytes(), self._op_us.tobytes(), self._streams)
        return StageBatch.from_bytes(flat)

    def _wanted(self) -> npt.NDArray[np.intp]:
        """Kinds of stages (see `_take`) to measure next, the most important first; may be empty."""
        unmeasured = self._space.unmeasured
        if not len(unmeasured):
            return unmeasured
        if self._learned.num_samples < _LEAST_SAMPLES:
            draw = np.random.default_rng([self._seed, len(self.rounds)])
            return draw.permutation(unmeasured)[:_LEAST_SAMPLES]
        predicted = self._learned.predict(self._space.kinds)
        hoped = self._space.wanted(predicted.optimistic_us(_OPTIMISM), self._round)
        expected = self._space.wanted(predicted.us, 0) if hoped else []
        # A round measures only the first kinds of the result. So the result alternates between two
        # lists: the kinds wanted by expected latencies, and the kinds wanted by optimistic
        # latencies.
        both = [i for pair in zip(expected, hoped, strict=False) for i in pair]
        return np.array(list(dict.fromkeys([*both, *expected, *hoped])), dtype=np.intp)

    def _is_spent(self) -> bool:
        """Whether the limit on measurements or the limit on time is reached."""
        return self._measurements_left < 1 or not self._has_time()

    def _stands(self) -> bool:
        """Whether the last `_PATIENCE` rounds together gained less than the fraction `_STABLE`.

        Only rounds that searched the current candidate stages count.
        """
        recent = self.rounds[self._first_round :][-_PATIENCE - 1 :]
        if len(recent) <= _PATIENCE or any(r.samples < _LEAST_SAMPLES for r in recent[1:]):
            return False  # The search had too few rounds yet, or a round drew its stages at random.
        return recent[-1].best_us > (1 - _STABLE) * recent[0].best_us

    def _has_time(self) -> bool:
        return time.perf_counter() - self._started <= self._time_budget_s

    def _take(self, kinds: npt.NDArray[np.intp]) -> Floats:
        """Measure one stage of each kind, learn from it, and return the microseconds of each kind.

        Stages that run the same kernels are of one kind.
        """
        stages = [self._space.kinds[int(i)] for i in kinds]
        price_us = np.asarray(self._device.stages(stages), dtype=np.float64)
        self._space.price_us[kinds] = price_us
        self._learned.observe(stages, price_us)
        cheapest = self._space.cheapest()
        if cheapest.makespan_us < self._found.makespan_us:
            self._found = cheapest
        return price_us

    def _measure(self, wanted: npt.NDArray[np.intp]) -> None:
        samples = self._learned.num_samples
        stages = [self._space.kinds[int(i)] for i in wanted]
        predicted_us = self._learned.stages(stages) if samples else np.empty(0)
        price_us = self._take(wanted)
        self._measured += len(wanted)
        done = Round(
            number=len(self.rounds) + 1,
            measured=self._measured,
            unmeasured=len(self._space.unmeasured),
            best_us=self._found.makespan_us,
            error=prediction_error(predicted_us, price_us[: len(predicted_us)]),
            samples=samples,
        )
        self.rounds.append(done)
        if self._on_round is not None:
            self._on_round(done)


class ExpectedLatency(LatencyModel):
    """A latency model that gives measured latencies where they are known, else predictions."""

    def __init__(self, search: ActiveSearch) -> None:
        self._search = search

    def op(self, op: int) -> float:
        return self.stage([[op]])

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> Floats:
        return self._search.expected_us(StageBatch.from_stages(stages))
