"""IOS with most stages predicted and few measured: those that decide."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .._native import passes as native
from ..errors import InputError, ScheduleError
from ..latency.batch import StageBatch
from ..latency.features import OperatorTable
from ..latency.learned import Floats, LearnedLatency, PredictionError, prediction_error
from ..program.graph import OpGraph
from ..scheduling.ios_search import IosOptions, enumerate_stages
from ..scheduling.options import us_since
from ..scheduling.schedule import Schedule, pack_onto_streams, unpack_stages
from ..scheduling.whole_operators import WholeOperators
from .measured import MeasuredLatency
from .store import LatencyStore

_ROUND = 8
_ROUND_SHARE = 0.01
"""So many kinds of stages are measured a round, or that share of all, if that is more."""
_LEAST_SAMPLES = 24
"""Below so many samples predictions are not asked for: stages are drawn instead."""
_OPTIMISM = 1.0
"""Stages are hoped to take so many spreads less than expected, until they are measured."""
_PATIENCE = 3
_STABLE = 0.01
"""The search ends when the last `_PATIENCE` rounds together made the schedule faster by less than
this share."""
_NEVER_US = 1e15
"""Stands for a price nobody would pay."""


class Device(Protocol):
    """What measures stages; `MeasuredLatency` does."""

    def op(self, op: int) -> float:
        """Microseconds that operator `op` takes alone."""

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> Floats:
        """Microseconds of each stage, measured now unless they are known."""

    def measure_again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        """Measure stages once more; how many were measured (see `LatencyModel`)."""

    def known(self, stages: Sequence[Sequence[Sequence[int]]]) -> Floats:
        """Microseconds of those stages that were measured before, not a number for the others."""

    def keys(self, stages: Sequence[Sequence[Sequence[int]]]) -> list[str]:
        """Names of the stages; those of one name are the same kernels, and take equally long."""


@dataclass(frozen=True)
class Round:
    """How far a search is.

    Attributes
    ----------
    number: from 1.
    measured: stages of several operators measured so far, in this search; those that run the same
        kernels count once.
    unmeasured: stages that nobody has measured yet, counted likewise.
    best_us: latency of the best schedule that is made of measured stages alone.
    error: of the predictions of this round's stages, made before they were measured and learned
        from.
    samples: stages learned from when those predictions were made.
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
    """The search of a program on the device at hand, which has learned from all that is in `store`.

    Parameters
    ----------
    latency: measures the program's stages, and keeps them in `store`.
    options: `ActiveSearch`'s.

    Raises
    ------
    ScheduleError: there is no such option, or it is of no use.
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

    Operators are measured alone, those in parts as a whole besides. All other stages are predicted;
    the search is solved with every unmeasured stage at its optimistic latency (expected, less its
    uncertainty); the stages on the best way so found, on the best expected way, and those that come
    closest to either are measured; the model learns from them; and so on. A stage that could change
    the optimum is so measured before one that could not (optimism in the face of uncertainty: a
    stage that is hoped for too much is measured, and hoped for no more).

    It ends where the best way is measured already, where three rounds of stages so found have made
    the schedule no better than by 1%, or where a budget is used up. The schedule is at any time the
    best one of measured stages alone. Where no stage was ever measured, the first stages are drawn
    evenly; rounds of those do not count towards the three.

    Attributes
    ----------
    rounds: what each round found.
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
        """Find the stages there are.

        Parameters
        ----------
        device: measures stages; has measured the operators alone, or does now.
        learned: predicts stages.
        max_group_ops, max_groups, endings, streams, max_transitions, parts: as scheduler `ios` has
            them.
        max_measurements: the most stages of several operators to run; None for no limit. One that
            is known already does not count, and stages that run the same kernels count once.
        time_budget_s: seconds after which no further round begins; None for no limit.
        seed: of the stages drawn first.
        on_round: told of each round.

        Raises
        ------
        ScheduleError, InputError: an option is of no use, naming it.
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
        self._op_us = np.array([device.op(i) for i in range(self._graph.num_ops)], dtype=np.float64)
        of_searched = self._op_us
        if self._wholes is not None:
            of_searched = self._wholes.work_us(self._op_us.tolist())
        started = time.perf_counter()
        self._search = enumerate_stages(
            graph,
            IosOptions(max_group_ops, max_groups, endings, streams, max_transitions),
            of_searched,
            cuts=True,
        )
        self._search_us = us_since(started)
        self._best: tuple[Any, float] | None = None
        stages = StageBatch.from_bytes(native.ios_stages(self._search))
        batch = self._packed(stages)
        # Stages of the same kernels are one to measure: repeated cells have many.
        _, firsts, self._kind_of = np.unique(
            device.keys(batch), return_index=True, return_inverse=True
        )
        self._kinds = StageBatch.from_stages([batch[int(i)] for i in firsts])
        self._price_us = np.array(device.known(self._kinds), dtype=np.float64)
        self._take(np.unique(self._kind_of[stages.num_ops == 1]))
        self._known_at_first = self._num_priced
        self._round = max(_ROUND, int(_ROUND_SHARE * len(self._kinds)))

    def run(self) -> Schedule:
        """Search to the end; the schedule is `best()`'s.

        If anything was measured its stages are measured once more: those that luck made seem fast
        are chosen rather than others, so the sum of what they took then would promise too much.
        """
        while (wanted := self._wanted()).size and not self._is_over():
            self._measure(wanted[: int(min(self._round, self._measurements_left))])
        found = self.best()
        stages = [tuple(stage.by_stream().values()) for stage in found.stages]
        is_new = self._num_measured > 0 and self._has_time()
        again = self._device.measure_again(stages) if is_new else 0
        makespan = float(sum(self._device.stages(stages))) if again else found.makespan
        return replace(
            found,
            streams=(),
            makespan=makespan,
            stats={**found.stats, "stages_measured_again": again},
        )

    def best(self) -> Schedule:
        """The best schedule of measured stages alone; at any time, after an interrupt too."""
        native_stages, makespan = self._solved()
        stages, op_us = unpack_stages(native_stages), self._op_us.tolist()
        if self._wholes is not None:
            stages = self._wholes.divided(stages, op_us, self._streams)
        elif self._streams is not None:
            stages = pack_onto_streams(stages, op_us, self._streams)
        error = next((r.error for r in reversed(self.rounds) if r.error.stages), None)
        priced = int(np.isfinite(self._price_us[self._kind_of]).sum())
        stats = {
            "search_us": self._search_us,
            "pricing_us": us_since(self._started) - self._search_us,
            **dict(native.ios_stats(self._search)),
            "stages_priced": priced,
            "stages_spared": len(self._kind_of) - priced,
            "stages_measured": self._num_measured,
            "rounds": len(self.rounds),
            "mape": None if error is None else error.mape,
            "spearman": None if error is None else error.spearman,
        }
        return Schedule("ios", self._graph.names, stages=stages, makespan=makespan, stats=stats)

    @property
    def _num_priced(self) -> int:
        return int(np.isfinite(self._price_us).sum())

    @property
    def _num_measured(self) -> int:
        return self._num_priced - self._known_at_first

    @property
    def _measurements_left(self) -> float:
        return self._max_measurements - self._num_measured

    def _packed(self, stages: StageBatch) -> StageBatch:
        """The stages as they run, on as many streams as there are."""
        if self._wholes is not None:
            stages = StageBatch.from_stages(self._wholes.parts_of(stages))
        if self._streams is None:
            return stages
        flat = native.pack_stages(stages.to_bytes(), self._op_us.tobytes(), self._streams)
        return StageBatch.from_bytes(flat)

    def _solved(self) -> tuple[Any, float]:
        if self._best is None:
            price_us = np.where(np.isnan(self._price_us), _NEVER_US, self._price_us)
            self._best = tuple(native.ios_solve(self._search, price_us[self._kind_of].tobytes()))
        return self._best

    def _wanted(self) -> npt.NDArray[np.int64]:
        """The kinds of stages to measure next, the most important first; none at the end."""
        unmeasured = np.flatnonzero(np.isnan(self._price_us))
        if not len(unmeasured):
            return unmeasured
        if self._learned.num_samples < _LEAST_SAMPLES:
            draw = np.random.default_rng([self._seed, len(self.rounds)])
            return draw.permutation(unmeasured)[:_LEAST_SAMPLES]
        predicted = self._learned.predict(self._kinds)
        hoped = self._on_best_way(predicted.optimistic_us(_OPTIMISM), self._round)
        if not len(hoped):
            return hoped
        expected = self._on_best_way(predicted.us, 0)
        # By turns: what is expected to be best must not wait for all that is hoped to be.
        both = [i for pair in zip(expected, hoped, strict=False) for i in pair]
        return np.array(list(dict.fromkeys([*both, *expected, *hoped])), dtype=np.int64)

    def _on_best_way(self, guess_us: Floats, at_least: int) -> npt.NDArray[np.int64]:
        is_priced = ~np.isnan(self._price_us)
        value_us = np.where(is_priced, self._price_us, guess_us)[self._kind_of]
        marks = is_priced.astype(np.int8)[self._kind_of]
        wanted = native.ios_wanted(self._search, value_us.tobytes(), marks.tobytes(), at_least)
        kinds = self._kind_of[np.frombuffer(wanted, dtype=np.int64)]
        return np.array(list(dict.fromkeys(kinds.tolist())), dtype=np.int64)

    def _is_over(self) -> bool:
        if self._measurements_left < 1:
            return True
        if not self._has_time():
            return True
        recent = self.rounds[-_PATIENCE - 1 :]
        if len(recent) <= _PATIENCE or any(r.samples < _LEAST_SAMPLES for r in recent[1:]):
            return False  # A round of stages that were drawn is no attempt to find better ones.
        return recent[-1].best_us > (1 - _STABLE) * recent[0].best_us

    def _has_time(self) -> bool:
        return time.perf_counter() - self._started <= self._time_budget_s

    def _take(self, kinds: npt.NDArray[np.int64]) -> Floats:
        """Measure kinds of stages, and learn from them; microseconds of each."""
        stages = [self._kinds[int(i)] for i in kinds]
        price_us = np.asarray(self._device.stages(stages), dtype=np.float64)
        self._price_us[kinds] = price_us
        self._best = None
        self._learned.observe(stages, price_us)
        return price_us

    def _measure(self, wanted: npt.NDArray[np.int64]) -> None:
        samples = self._learned.num_samples
        stages = [self._kinds[int(i)] for i in wanted]
        predicted_us = self._learned.stages(stages) if samples else np.empty(0)
        price_us = self._take(wanted)
        done = Round(
            number=len(self.rounds) + 1,
            measured=self._num_measured,
            unmeasured=len(self._kinds) - self._num_priced,
            best_us=self._solved()[1],
            error=prediction_error(predicted_us, price_us[: len(predicted_us)]),
            samples=samples,
        )
        self.rounds.append(done)
        if self._on_round is not None:
            self._on_round(done)
