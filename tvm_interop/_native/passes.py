"""Typed names for the native algorithms on graphs, schedules and plans in `passes/ffi`.

The comment above a function names its parameters in order. A `bytes` argument is the memory of a
NumPy array. Its elements are float64 for microseconds, and int64 for ids and edges. An edge is a
pair of ids. A list of lists holds the operators of each stream, unless a comment says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tvm_ffi

from . import library as library  # This import registers the functions.

OpGraph: TypeAlias = Any
IosSearch: TypeAlias = Any
IosPricing: TypeAlias = Any
ServedProgram: TypeAlias = Any
ServingEngine: TypeAlias = Any
"""The names above are types of native objects, which are opaque to Python."""

Ids: TypeAlias = Sequence[int]
IdLists: TypeAlias = Sequence[Sequence[int]]
IsOver: TypeAlias = Callable[[], bool] | None
"""A function that returns whether a search must stop now; None for no time limit."""
Stages: TypeAlias = Sequence[Sequence[Sequence[int]]]
"""For each stage: a list of its groups' streams, then a list of operators for each group."""


def _find(name: str) -> Any:
    return tvm_ffi.get_global_func(f"tvm_interop.{name}")


# Schedules over several GPUs. `edge_us` holds the time to copy the tensors of each edge.
# Parameters: graph, stages, devices.
launch_order: Callable[[OpGraph, Stages, Ids], Ids] = _find("launch_order")
# Parameters: graph, op_us, edge_us.
longest_paths: Callable[[OpGraph, bytes, bytes], IdLists] = _find("longest_paths")
# Parameters: graph, op_us, edge_us, gpus.
hios_lp: Callable[[OpGraph, bytes, bytes, int], IdLists] = _find("hios_lp")
# Parameters: graph, op_us, edge_us, gpus.
hios_mr: Callable[[OpGraph, bytes, bytes, int], IdLists] = _find("hios_mr")
# Parameters: graph, op_us, edge_us, gpus, look_ahead.
heft: Callable[[OpGraph, bytes, bytes, int, bool], IdLists] = _find("heft")
# Parameters: graph, op_us, edge_us, orders, window.
window_candidates: Callable[[OpGraph, bytes, bytes, IdLists, int], Sequence[bytes]] = _find(
    "window_candidates"
)
# Parameters: graph, op_us, edge_us, orders, window, priced, price_us, by_start.
open_windows: Callable[[OpGraph, bytes, bytes, IdLists, int, Sequence[bytes], bytes, bool], Any] = (
    _find("open_windows")
)
# Parameters: graph, op_us, edge_us, initial, window, priced, price_us, trials, time_limit_s, seed.
refine_on_gpus: Callable[
    [OpGraph, bytes, bytes, Stages, int, Sequence[bytes], bytes, int, float, int], Any
] = _find("refine_on_gpus")
# Parameters: graph, ops, lanes, devices, launch_us, edge_us, fifo.
simulate_gpus: Callable[[OpGraph, IdLists, Ids, Ids, bytes, bytes, bool], Sequence[bytes]] = _find(
    "simulate_gpus"
)

# The operator graph and queries on it.
# Parameters: names, edges.
graph_make: Callable[[Sequence[str], bytes], OpGraph] = _find("graph_make")
graph_width: Callable[[OpGraph], int] = _find("graph_width")
# Parameters: graph, from, to.
graph_reaches: Callable[[OpGraph, int, int], bool] = _find("graph_reaches")
# Parameters: graph, op.
graph_predecessors: Callable[[OpGraph, int], Ids] = _find("graph_predecessors")
# Parameters: graph, op.
graph_successors: Callable[[OpGraph, int], Ids] = _find("graph_successors")
graph_topological_order: Callable[[OpGraph], Ids] = _find("graph_topological_order")
graph_blocks: Callable[[OpGraph], IdLists] = _find("graph_blocks")

# Checks that a schedule fits its graph, and simulations of its latency from operator latencies.
# Parameters: graph, stages, devices.
validate_stages: Callable[[OpGraph, Stages, Ids], None] = _find("validate_stages")
# Parameters: graph, streams.
validate_streams: Callable[[OpGraph, IdLists], None] = _find("validate_streams")
# Parameters: graph, streams, op_us.
simulate_streams: Callable[[OpGraph, IdLists, bytes], float] = _find("simulate_streams")
# Parameters: graph, streams, waits, op_us, cores, bandwidth, op_cores, memory_share, wait_us.
simulate_contention: Callable[
    [OpGraph, IdLists, IdLists, bytes, float, float, bytes, bytes, float], Any
] = _find("simulate_contention")

# Latencies of stages, computed in batches. A batch is three int64 arrays, see `StageBatch.packed`.
# Parameters: batch, op_us, streams.
pack_groups_of_stages: Callable[[Sequence[bytes], bytes, int], Ids] = _find("pack_groups_of_stages")
# Parameters: batch, op_us, streams.
pack_stages: Callable[[Sequence[bytes], bytes, int], Sequence[bytes]] = _find("pack_stages")
# Parameters: batch, op_us.
price_stages: Callable[[Sequence[bytes], bytes], bytes] = _find("price_stages")

# The scheduler IOS: enumerate stages, then find the best schedule by dynamic programming.
# Parameters: graph, max_group_ops, max_groups, single_root, max_transitions, cuts, op_us, is_over.
ios_enumerate: Callable[[OpGraph, int, int, bool, int, bool, bytes, IsOver], IosSearch] = _find(
    "ios_enumerate"
)
# The function `ios_windows` improves a schedule: it searches windows of neighbouring stages again.
# The first window is at most `first_window` stages wide.
# Parameters: graph, max_group_ops, max_groups, single_root, stages, first_window,
# max_transitions, is_over.
ios_windows: Callable[[OpGraph, int, int, bool, IdLists, int, int, IsOver], IosSearch] = _find(
    "ios_windows"
)
# Returns two counts: the parts of the search, and the transitions that were examined to find them.
ios_effort: Callable[[IosSearch], tuple[int, int]] = _find("ios_effort")
ios_left_out: Callable[[IosSearch], IdLists] = _find("ios_left_out")
ios_stages: Callable[[IosSearch], Sequence[bytes]] = _find("ios_stages")
ios_stats: Callable[[IosSearch], Mapping[str, Any]] = _find("ios_stats")
# Parameters: search, price_us.
ios_solve: Callable[[IosSearch, bytes], Any] = _find("ios_solve")
# Parameters: search, value_us, is_priced, at_least.
ios_wanted: Callable[[IosSearch, bytes, bytes, int], bytes] = _find("ios_wanted")

# The scheduler IOS: a stage is measured only if bounds on its latency do not decide the search.
# Parameters: search, book.
ios_pricing_make: Callable[[IosSearch, Any], IosPricing] = _find("ios_pricing_make")
# Parameters: pricing, alone_us, op_us, streams, cores, work_us, tolerance, slack_us, scale.
ios_pricing_bounds: Callable[
    [IosPricing, bytes, bytes, int, int, bytes, float, float, float], None
] = _find("ios_pricing_bounds")
ios_pricing_num_priced: Callable[[IosPricing], int] = _find("ios_pricing_num_priced")
# A store of known stage latencies, and beam search over the states of IOS.
stage_book_make: Callable[[], Any] = _find("stage_book_make")
# Parameters: book, stages, op_us, price_us.
stage_book_write: Callable[[Any, Sequence[bytes], bytes, bytes], None] = _find("stage_book_write")
# Parameters: book, stages, op_us.
stage_book_read: Callable[[Any, Sequence[bytes], bytes], bytes] = _find("stage_book_read")
# Parameters: graph, ops, op_us, max_group_ops, max_groups, single_root, set_of.
stage_beam_make: Callable[[OpGraph, Ids, bytes, int, int, bool, Ids], Any] = _find(
    "stage_beam_make"
)
# Parameters: beam, width, backward, below_us, parallelism, certain, max_transitions, is_over, ask.
stage_beam_run: Callable[[Any, int, bool, float, float, float, int, IsOver, Any], Any] = _find(
    "stage_beam_run"
)
# Parameters: pricing, stages, price_us.
ios_pricing_give: Callable[[IosPricing, bytes, bytes], None] = _find("ios_pricing_give")
# Parameters: pricing, at_least.
ios_pricing_next: Callable[[IosPricing, int], Sequence[bytes]] = _find("ios_pricing_next")
# Parameters: pricing, price_us.
ios_pricing_prices: Callable[[IosPricing, bytes], Any] = _find("ios_pricing_prices")
ios_pricing_values: Callable[[IosPricing], bytes] = _find("ios_pricing_values")

# Schedulers that assign operators to streams.
# Parameters: graph, op_us, streams.
lios: Callable[[OpGraph, bytes, int], Any] = _find("lios")
# Parameters: graph, op_us, streams, seed.
lios_rand1: Callable[[OpGraph, bytes, int, int], Any] = _find("lios_rand1")
# Parameters: graph, op_us, streams, seed.
lios_rand2: Callable[[OpGraph, bytes, int, int], Any] = _find("lios_rand2")
# Parameters: graph, op_us, streams, seed.
lios_rand: Callable[[OpGraph, bytes, int, int], Any] = _find("lios_rand")
# Parameters: graph, op_us, streams, wait_us.
lios_plus: Callable[[OpGraph, bytes, int, float], Any] = _find("lios_plus")
# Parameters: graph, max_groups.
greedy: Callable[[OpGraph, int], Stages] = _find("greedy")
nimble: Callable[[OpGraph], Any] = _find("nimble")
# Parameters: graph, demand, is_memory_bound.
opara: Callable[[OpGraph, bytes, bytes], Any] = _find("opara")
# Parameters: graph, streams, op_us, num_streams, order.
fold_streams: Callable[[OpGraph, IdLists, bytes, int, Ids], IdLists] = _find("fold_streams")

# Compute the waits and the memory of plans, and check programs on streams.
# Parameters: graph, streams, extra_edges.
plan_sync: Callable[[OpGraph, IdLists, bytes], IdLists] = _find("plan_sync")
# Parameters: graph, streams, waits, nbytes, producers, users, alignment.
plan_memory: Callable[[OpGraph, IdLists, IdLists, Ids, IdLists, IdLists, int], Any] = _find(
    "plan_memory"
)
# Parameters: graph, nbytes, producers, users.
memory_order: Callable[[OpGraph, Ids, IdLists, IdLists], Any] = _find("memory_order")
# Parameters: stream_of, waits, takes_no_overlap, accesses.
check_stream_program: Callable[[bytes, bytes, bytes, bytes], tuple[bytes, bytes]] = _find(
    "check_stream_program"
)

# Simulate serving, in which instances of programs share a device. `device` holds these float64
# numbers: cores, bandwidth, interference, and the microseconds of a wait, a barrier and a launch.
# `present` is a set of parts, one bit for each part.
# Parameters: graph, streams, op_us, op_cores, memory_share, places, has_barriers. `places` has a
# row of three int64 numbers for each operator: its waits, its segment and its part.
served_program_make: Callable[
    [OpGraph, IdLists, bytes, bytes, bytes, bytes, bool], ServedProgram
] = _find("served_program_make")
# Parameters: program, present, device.
served_program_alone: Callable[[ServedProgram, int, bytes], Sequence[float]] = _find(
    "served_program_alone"
)
# Parameters: device.
serving_engine_make: Callable[[bytes], ServingEngine] = _find("serving_engine_make")
# Parameters: engine, program, present, alone.
serving_engine_start: Callable[[ServingEngine, ServedProgram, int, bool], int] = _find(
    "serving_engine_start"
)
# Parameters: engine, until_us.
serving_engine_advance: Callable[[ServingEngine, float], int] = _find("serving_engine_advance")
serving_engine_now: Callable[[ServingEngine], float] = _find("serving_engine_now")
serving_engine_busy: Callable[[ServingEngine], float] = _find("serving_engine_busy")
# Parameters: device, programs, places, interval_us, buffer, arrivals, until_us. `places` has two
# lists for each model: the program and the part of each of its blocks. `arrivals` holds three
# arrays: times in microseconds, models, and rows of two models and a delay in microseconds.
simulate_combined: Callable[
    [bytes, Sequence[ServedProgram], Sequence[IdLists], bytes, int, Sequence[bytes], float],
    Sequence[bytes],
] = _find("simulate_combined")
