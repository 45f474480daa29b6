"""The registry of schedulers by name, with functions that register a scheduler and that run one."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from ..errors import ScheduleError, did_you_mean
from ..latency.base import LatencyModel
from ..program.graph import OpGraph
from .options import us_since
from .schedules import Schedule

MEASURED_AGAIN = "stages_measured_again"
"""Key in `Schedule.stats` for the number of stages that were measured again. If a scheduler sets
this key, it has measured its stages again itself, and `schedule` does not repeat this.
"""

Scheduler = Callable[..., Schedule]
_F = TypeVar("_F", bound=Scheduler)
_REGISTRY: dict[str, Scheduler] = {}


def schedule(
    graph: OpGraph, name: str, latency: LatencyModel | None = None, **options: Any
) -> Schedule:
    """Schedule `graph` with the scheduler called `name`.

    Parameters
    ----------
    graph: the operators, with an edge from each operator to each reader of its output.
    name: one of `schedulers()`.
    latency: the model that gives the latencies of operators and stages, in microseconds.
        `sequential`, `greedy`, `nimble` and `opara` accept None. All other schedulers of this
        package need a latency model.
    options: options of the scheduler; the docstring of its function explains them.

    Returns
    -------
    A schedule that was validated against `graph`. With a latency model, its `makespan` is
    predicted. If the scheduler chose stages by their measured latency, these stages are measured
    again (`LatencyModel.measure_again`), because their first latencies may be low by chance.
    `stats["stages_measured_again"]` counts them. `stats["search_us"]` is the time of the search
    without the latency model. `stats["pricing_us"]` is the time that the latency model took to
    answer. Both times are in microseconds. If a scheduler does not report these times, all of its
    time counts as search.

    Raises
    ------
    ScheduleError: the scheduler's name or an option is unknown (the message lists what is known),
        the value of an option is not valid, a latency model is missing, or the scheduler returns an
        invalid schedule.
    LatencyError: the latency model gives a number that is not a latency. The message names the
        operator.

    Examples
    --------
    >>> graph = OpGraph.from_edges(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    >>> [stage.groups for stage in schedule(graph, "greedy").stages]
    [((0,),), ((1,), (2,)), ((3,),)]
    """
    scheduler = _lookup(name)
    _check_options(name, scheduler, options)
    started = time.perf_counter()
    result = scheduler(graph, latency, **options)
    if not isinstance(result, Schedule):
        raise ScheduleError(
            f"scheduler `{name}` returned a {type(result).__name__}; it must return a Schedule"
        )
    stats = {"search_us": us_since(started), "pricing_us": 0.0, **result.stats}
    result.validate(graph)
    makespan = result.makespan
    if latency is not None:
        started = time.perf_counter()
        if makespan is not None and MEASURED_AGAIN not in stats:
            # The search chose stages of low measured latency. Some latencies may be low only by
            # chance, so measure these stages again.
            stats[MEASURED_AGAIN] = result.measure_again(graph, latency)
        if makespan is None or stats.get(MEASURED_AGAIN):
            makespan = result.simulate(graph, latency)
        stats["pricing_us"] += us_since(started)
    return replace(result, makespan=makespan, stats=stats)


def schedulers() -> list[str]:
    """Return the names that `schedule` and `compile` take, in alphabetical order.

    Examples
    --------
    >>> "ios" in schedulers()
    True
    """
    return sorted(_REGISTRY)


def is_own(name: str) -> bool:
    """Whether scheduler `name` belongs to this package. If not, a user has registered it."""
    module: str | None = _lookup(name).__module__  # The module is None if `exec` made the function.
    return module is not None and module.startswith(f"{__package__}.")


def options_of(name: str) -> list[str]:
    """The options that the scheduler called `name` takes.

    Raises
    ------
    ScheduleError: the name is unknown. The message lists the known names.
    """
    return [parameter.name for parameter in _option_parameters(_lookup(name))]


def register_scheduler(name: str) -> Callable[[_F], _F]:
    """Decorate `fn(graph, latency, **options) -> Schedule` so that `schedule` finds it by name.

    The further parameters of `fn` become options of the scheduler. `schedule` validates each
    schedule that the function returns.

    Raises
    ------
    ScheduleError: the name is taken or empty.

    Examples
    --------
    >>> @register_scheduler("in a row")  # doctest: +SKIP
    ... def in_a_row(graph, latency, *, streams=1):
    ...     return Schedule("in a row", graph.names, streams=[graph.topological_order()])
    """
    if not name or not isinstance(name, str):
        raise ScheduleError(f"a scheduler cannot be called {name!r}; give it a name")

    def register(function: _F) -> _F:
        if name in _REGISTRY:
            raise ScheduleError(f"there is a scheduler `{name}` already; choose another name")
        _REGISTRY[name] = function
        return function

    return register


def _lookup(name: str) -> Scheduler:
    if name in _REGISTRY:
        return _REGISTRY[name]
    raise ScheduleError(
        f"there is no scheduler `{name}`{did_you_mean(str(name), schedulers())}; the schedulers "
        f"are {', '.join(schedulers())}"
    )


def _check_options(name: str, scheduler: Scheduler, options: dict[str, Any]) -> None:
    parameters = _option_parameters(scheduler)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters]
    for option in options:
        if option not in known:
            raise ScheduleError(
                f"scheduler `{name}` has no option `{option}`{did_you_mean(option, known)}; "
                + (f"its options are {', '.join(known)}" if known else "it takes none")
            )


def _option_parameters(scheduler: Scheduler) -> list[inspect.Parameter]:
    """The parameters of `scheduler`, without the graph and the latency model."""
    return list(inspect.signature(scheduler).parameters.values())[2:]
