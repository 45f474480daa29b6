"""Runs schedulers with learned latencies: few stages are measured, and all others are predicted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import OutOfTimeError
from ..latency import LatencyModel, Link
from ..measure.active import ActiveSearch
from ..measure.few_measured import FewMeasured, few_measured
from ..measure.few_search import search_with_few
from ..measure.measured import MeasuredLatency
from ..measure.store import LatencyStore
from ..program.program import Program
from ..scheduling import Schedule, options_of
from ..scheduling.options import check_numbers
from .time_budget import TimeBudget
from .timed_search import search_limits, searched_in_time

_IOS_SHARE = 0.4
"""The scheduler `auto` spends this fraction of its time on a search by IOS.

The search measures stages, and `auto` learns from them to predict other latencies.
"""
_AUTO_S = 60.0
"""The seconds that `auto` may take if its option `time_budget_s` is not given."""


@dataclass(frozen=True)
class FewMeasurements:
    """Schedules a model with learned latencies.

    Attributes
    ----------
    latency, store: the latency model that measures stages, and the database that keeps the
        measurements.
    run: a function that runs a scheduler with a latency model and the scheduler's options.
    search: a function that makes the search by IOS, given the search's options.
    budget: the time for the schedule and its speed check.
    link: the link between two GPUs; None if it is not known.
    """

    program: Program
    latency: MeasuredLatency
    store: LatencyStore
    run: Callable[[str, LatencyModel, dict[str, Any]], Schedule]
    search: Callable[..., ActiveSearch]
    budget: TimeBudget
    link: Link | None

    def schedule(self, scheduler: str, options: Mapping[str, Any]) -> Schedule:
        """Run a scheduler.

        `ios` runs the search `ActiveSearch`, which measures the stages that decide about the best
        schedule. `auto` first runs the same search to get measurements to learn from. Then `auto`
        runs all its schedulers, with predicted latencies for the stages that are not measured. At
        the end it measures the stages of the schedule that it chose. All other schedulers run as
        `search_with_few` explains.

        Parameters
        ----------
        options: for `ios`, options of `ActiveSearch`. For `auto`, its own options and the options
            of `ActiveSearch`. For another scheduler, its own options, and `max_measurements`,
            `time_budget_s` and `seed`.

        Raises
        ------
        OutOfTimeError: the time is over before every operator has been measured alone.
        ScheduleError, InputError: an option does not exist, or its value is not valid.
        """
        if scheduler == "ios":
            return searched_in_time(self.search, options, self.budget)
        if scheduler == "auto":
            return self._auto(dict(options))
        own = set(options_of(scheduler))
        limits, seed = search_limits(options, self.budget)
        given = {
            name: value
            for name, value in options.items()
            if name in own or name not in ("max_measurements", "time_budget_s", "seed")
        }
        few = self._few(seed)
        return search_with_few(
            lambda model: self.run(scheduler, model, dict(given)),
            self.program.graph(),
            few,
            limits,
            seed,
        )

    def _auto(self, options: dict[str, Any]) -> Schedule:
        """Search for IOS's schedule, learn from the measured stages, and then run `auto`."""
        own = set(options_of("auto"))
        seconds = options.pop("time_budget_s", _AUTO_S)
        check_numbers(time_budget_s=seconds)
        for_ios = {
            name: value
            for name, value in options.items()
            if name not in own or name in ("max_group_ops", "max_groups", "endings", "streams")
        }
        found = searched_in_time(
            self.search, {**for_ios, "time_budget_s": seconds * _IOS_SHARE}, self.budget
        )
        few = self._few(options.get("seed", 0))
        for_auto = {name: value for name, value in options.items() if name in own}
        for_auto["time_budget_s"] = seconds * (1 - _IOS_SHARE)
        made = self.run("auto", few, for_auto)
        graph = self.program.graph()
        missing = few.unmeasured(made.concurrent_stages(graph))
        most = options.get("max_measurements")
        if most is not None:
            missing = missing[: max(most - found.stats["stages_measured"], 0)]
        with contextlib.suppress(OutOfTimeError):  # The predictions stand.
            if missing:
                few.measure(missing)
        learned = {
            name: found.stats[name]
            for name in ("stages", "rounds", "mape", "spearman", "stages_measured")
        }
        learned["stages_measured"] += few.measured
        return replace(
            made,
            makespan=made.simulate(graph, few) if few.measured else made.makespan,
            stats={**made.stats, **learned},
        )

    def _few(self, seed: int) -> FewMeasured:
        graph = self.program.graph()
        return few_measured(
            self.latency,
            graph.num_ops,
            self.store,
            parts=self.program.parts() or (),
            transfers=None if self.link is None else self.link.transfers(graph),
            seed=seed,
        )
