"""The schedulers by name, and the door through which users add their own."""

from __future__ import annotations

import difflib
import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import tvm_ffi

from . import _library as _library
from .errors import ScheduleError
from .graph import OpGraph
from .latency.base import LatencyModel, check_size, op_latencies
from .latency.batch import StageBatch
from .schedules import Schedule, pack_onto_streams, unpack_stages

_IOS_ENUMERATE = tvm_ffi.get_global_func("tvm_interop.ios_enumerate")
_IOS_STAGES = tvm_ffi.get_global_func("tvm_interop.ios_stages")
_IOS_STATS = tvm_ffi.get_global_func("tvm_interop.ios_stats")
_IOS_SOLVE = tvm_ffi.get_global_func("tvm_interop.ios_solve")
_PACK_STAGES = tvm_ffi.get_global_func("tvm_interop.pack_stages")
_LIOS = tvm_ffi.get_global_func("tvm_interop.lios")
_GREEDY = tvm_ffi.get_global_func("tvm_interop.greedy")

Scheduler = Callable[..., Schedule]
_F = TypeVar("_F", bound=Scheduler)
_REGISTRY: dict[str, Scheduler] = {}


def schedule(
    graph: OpGraph, name: str, latency: LatencyModel | None = None, **options: Any
) -> Schedule:
    """Schedule `graph` with the scheduler called `name`.

    Parameters
    ----------
    graph: the operators and who reads whose output.
    name: one of `schedulers()`.
    latency: how long operators and stages take; `ios` and `lios` cannot do without.
    options: the scheduler's own; see the function behind it.

    Returns
    -------
    A schedule that was validated against `graph`. Where there is a latency model its `makespan`
    is predicted. `stats["search_us"]` is the time the search took, `stats["pricing_us"]` what
    the latency model took of it, both in microseconds.

    Raises
    ------
    ScheduleError: for a name or an option that does not exist (listing those that do), an option
        of no use, a latency model that is missing, and a scheduler whose schedule is invalid.
    LatencyError: where the latency model gives no usable number, naming the operator.
    """
    scheduler = _lookup(name)
    _check_options(name, scheduler, options)
    started = time.perf_counter()
    result = scheduler(graph, latency, **options)
    if not isinstance(result, Schedule):
        raise ScheduleError(
            f"scheduler `{name}` returned a {type(result).__name__}; it must return a Schedule"
        )
    stats = {"search_us": _us_since(started), "pricing_us": 0.0, **result.stats}
    result.validate(graph)
    makespan = result.makespan
    if latency is not None and makespan is None:
        started = time.perf_counter()
        makespan = result.simulate(graph, latency)
        stats["pricing_us"] += _us_since(started)
    # The streams of a staged schedule are derived from its stages again.
    streams = () if result.is_staged else result.streams
    return replace(result, makespan=makespan, stats=stats, streams=streams)


def schedulers() -> list[str]:
    """The names that `schedule` takes, in alphabetical order."""
    return sorted(_REGISTRY)


def options_of(name: str) -> list[str]:
    """The options that the scheduler called `name` takes.

    Raises
    ------
    ScheduleError: for a name that does not exist, listing those that do.
    """
    return [parameter.name for parameter in _option_parameters(_lookup(name))]


def register_scheduler(name: str) -> Callable[[_F], _F]:
    """Decorate `fn(graph, latency, **options) -> Schedule` so that `schedule` finds it by name.

    What it returns is validated. The parameters after the first two are its options.

    Raises
    ------
    ScheduleError: when the name is taken or empty.
    """
    if not name or not isinstance(name, str):
        raise ScheduleError(f"a scheduler cannot be called {name!r}; give it a name")

    def register(function: _F) -> _F:
        if name in _REGISTRY:
            raise ScheduleError(f"there is a scheduler `{name}` already; choose another name")
        _REGISTRY[name] = function
        return function

    return register


@register_scheduler("ios")
def ios(
    graph: OpGraph,
    latency: LatencyModel | None,
    max_group_ops: int = 3,
    max_groups: int = 8,
    endings: str = "complete",
    streams: int | None = None,
    max_transitions: int = 20_000_000,
) -> Schedule:
    """IOS: the cheapest sequence of stages, by dynamic programming over endings.

    Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys 2021, Algorithm 1;
    concurrent execution only. The graph is searched block by block (`OpGraph.blocks`). All the
    distinct stages are found first and priced in one call of `latency.stages`. Of equally cheap
    endings of a state the first in order of enumeration is taken: groups by first operator in
    topological order, then fewer operators first, then lowest operators; endings lexicographic
    in their groups.

    Parameters
    ----------
    max_group_ops: the paper's r, the most operators in a group; 0 for any number.
    max_groups: the paper's s, the most groups in a stage; 0 for any number.
    endings: `complete` for every ending, its groups being its weakly connected components;
        `paper` for only those whose groups have a single root each, as the authors' code
        enumerates them (and the counts of their Table 1).
    streams: the groups of a stage are packed onto that many streams (weighed by `latency.op`,
        longest first), and it is the packed stage that is priced. None: a stream per group.
    max_transitions: the most (state, ending) pairs kept for a block. A block with more is cut
        into halves along the topological order, again if need be; `stats["parts_cut"]` counts
        the cuts. The schedule is then optimal only between them.

    `stats` counts blocks, parts_cut, states (nonempty), transitions, stages_priced (distinct) and
    schedules (ways through the states of all blocks; inf past the range of a double).

    Complexity: O((n/d + 1)^d (r + 1)^s) for a block of n operators and width d (section 4.3).
    """
    model = _required(latency, "ios")
    _check_counts(max_group_ops=max_group_ops, max_groups=max_groups)
    _check_counts(at_least=1, max_transitions=max_transitions)
    if endings not in ("complete", "paper"):
        raise ScheduleError(f"`endings` is {endings!r}; it must be `complete` or `paper`")
    _check_streams(streams)

    started = time.perf_counter()
    paper = endings == "paper"
    search = _IOS_ENUMERATE(graph.native, max_group_ops, max_groups, paper, max_transitions)
    flat = _IOS_STAGES(search)
    search_us = _us_since(started)

    started = time.perf_counter()
    check_size(model, graph.names)
    op_us = None
    if streams is not None:
        op_us = op_latencies(model, graph.names)
        flat = _PACK_STAGES(flat, op_us.tobytes(), streams)
    price_us = np.asarray(model.stages(StageBatch.from_bytes(flat)), dtype=np.float64)
    pricing_us = _us_since(started)

    started = time.perf_counter()
    native_stages, makespan = _IOS_SOLVE(search, price_us.tobytes())
    stages = unpack_stages(native_stages)
    if streams is not None and op_us is not None:
        stages = pack_onto_streams(stages, op_us.tolist(), streams)
    search_us += _us_since(started)
    stats = {"search_us": search_us, "pricing_us": pricing_us, **dict(_IOS_STATS(search))}
    return Schedule("ios", graph.names, stages=stages, makespan=makespan, stats=stats)


@register_scheduler("lios")
def lios(graph: OpGraph, latency: LatencyModel | None, streams: int | None = None) -> Schedule:
    """LIOS: list scheduling, longest operator first, each where it finishes first.

    Section IV, Algorithm 1 of the LIOS paper. Rank is the operator's own latency (Eq. 5), not a
    path length. Ties: the operator that waits longest (operators that become ready together
    arrive by ascending id), the lowest stream.

    Parameters
    ----------
    streams: how many streams there are; None for the graph's width, more would stay empty.

    Complexity: O(n log n + edges + n * streams).
    """
    model = _required(latency, "lios")
    _check_streams(streams)
    started = time.perf_counter()
    op_us = op_latencies(model, graph.names)
    pricing_us = _us_since(started)
    started = time.perf_counter()
    num_streams = max(graph.width, 1) if streams is None else streams
    native_streams, where, when_us, makespan = _LIOS(graph.native, op_us.tobytes(), num_streams)
    ops_and_streams = np.frombuffer(where, dtype=np.int64).reshape(-1, 2).tolist()
    times = np.frombuffer(when_us, dtype=np.float64).reshape(-1, 2).tolist()
    timeline = tuple(
        (op, stream, start, finish)
        for (op, stream), (start, finish) in zip(ops_and_streams, times, strict=True)
    )
    return Schedule(
        "lios",
        graph.names,
        streams=tuple(tuple(ops) for ops in native_streams),
        makespan=makespan,
        timeline=timeline,
        stats={"search_us": _us_since(started), "pricing_us": pricing_us},
    )


@register_scheduler("greedy")
def greedy(
    graph: OpGraph,
    latency: LatencyModel | None,
    max_groups: int = 8,
    streams: int | None = None,
) -> Schedule:
    """Greedy: again and again one stage of all operators that are ready (IOS, section 6.1).

    Each operator is a group of its own. Needs no latency model.

    Parameters
    ----------
    max_groups: the most operators in a stage, lowest ids first; the others wait for the next.
        0 for any number.
    streams: the groups are packed onto that many streams, weighed by `latency.op`, or all alike
        without a latency model. None: a stream per group.
    """
    _check_counts(max_groups=max_groups)
    _check_streams(streams)
    pricing_us = 0.0
    op_us = [1.0] * graph.num_ops
    if latency is not None and streams is not None:
        started = time.perf_counter()
        op_us = op_latencies(latency, graph.names).tolist()
        pricing_us = _us_since(started)
    started = time.perf_counter()
    stages = unpack_stages(_GREEDY(graph.native, max_groups))
    if streams is not None:
        stages = pack_onto_streams(stages, op_us, streams)
    stats = {"search_us": _us_since(started), "pricing_us": pricing_us}
    return Schedule("greedy", graph.names, stages=stages, stats=stats)


@register_scheduler("sequential")
def sequential(graph: OpGraph, latency: LatencyModel | None) -> Schedule:
    """One operator after the other on one stream, in `OpGraph.topological_order`."""
    started = time.perf_counter()
    streams = (graph.topological_order(),) if graph.num_ops else ()
    stats = {"search_us": _us_since(started), "pricing_us": 0.0}
    return Schedule("sequential", graph.names, streams=streams, stats=stats)


def _lookup(name: str) -> Scheduler:
    if name in _REGISTRY:
        return _REGISTRY[name]
    raise ScheduleError(
        f"there is no scheduler `{name}`; {_choices(str(name), schedulers(), 'the schedulers are')}"
    )


def _check_options(name: str, scheduler: Scheduler, options: dict[str, Any]) -> None:
    parameters = _option_parameters(scheduler)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters]
    for option in options:
        if option not in known:
            raise ScheduleError(
                f"scheduler `{name}` has no option `{option}`; "
                + _choices(option, known, "its options are")
            )


def _option_parameters(scheduler: Scheduler) -> list[inspect.Parameter]:
    """Those after the graph and the latency model."""
    return list(inspect.signature(scheduler).parameters.values())[2:]


def _choices(wrong: str, known: list[str], intro: str) -> str:
    if not known:
        return "it takes none"
    close = difflib.get_close_matches(wrong, known, n=1)
    hint = f"did you mean `{close[0]}`? " if close else ""
    return f"{hint}{intro} {', '.join(known)}"


def _required(latency: LatencyModel | None, name: str) -> LatencyModel:
    if latency is None:
        raise ScheduleError(
            f"scheduler `{name}` needs a latency model; pass `latency=`, for example a "
            "LatencyTable of the operators' latencies in microseconds"
        )
    return latency


def _check_counts(at_least: int = 0, **options: int) -> None:
    for option, value in options.items():
        is_count = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not is_count or value < at_least:
            raise ScheduleError(
                f"`{option}` is {value!r}; it must be a whole number, {at_least} or more"
                + ("" if at_least else " (0: no limit)")
            )


def _check_streams(streams: int | None) -> None:
    if streams is not None:
        _check_counts(at_least=1, streams=streams)


def _us_since(started: float) -> float:
    return (time.perf_counter() - started) * 1e6
