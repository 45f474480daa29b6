"""Typed names for the native algorithms on graphs, schedules and plans in `passes/ffi`.

The comment above a function lists its parameters in order. A `bytes` argument is the memory of a
NumPy array. The elements of the array are float64 for microseconds, and int64 for ids and edges. An
edge is a pair of ids. A list of lists holds the operators of each stream, unless a comment says
otherwise.

Some parameters have the same meaning in all functions. `op_us` holds the latency of each operator
in microseconds. `price_us` holds the latency of each stage in a list of stages. A batch is a list
of stages in the form of three int64 arrays: the fields of `StageBatch` in `latency/batch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

OpGraph: TypeAlias = Any
IosSearch: TypeAlias = Any
IosPricing: TypeAlias = Any
ServedProgram: TypeAlias = Any
ServingEngine: TypeAlias = Any
CombinedServing: TypeAlias = Any
"""The names above are the types of native objects, whose contents Python cannot see."""

Ids: TypeAlias = Sequence[int]
IdLists: TypeAlias = Sequence[Sequence[int]]
IsOver: TypeAlias = Callable[[], bool] | None
"""A function that returns whether a search must stop now; None for no time limit."""
Stages: TypeAlias = Sequence[Sequence[Sequence[int]]]
"""Stages, each as a list of lists. The first list holds the stream of each group, and each further
list holds the operators of one group."""


def _find(name: str) -> Any:
    """Return a Python function that calls the native function `name`.

    The native library and tvm-ffi are loaded only at the first call, because it takes long to load
    them.
    """
    found: Any = None

    def call(*args: Any) -> Any:
        nonlocal found
        if found is None:
            from .library import find

            found = find(name)
        return found(*args)

    return call


# The functions below make and simulate schedules over several GPUs. `gpus` is the number of GPUs,
# and `edge_us` holds the time to copy the tensors of each edge between two GPUs. `orders` holds the
# operators of each GPU in running order.

# Returns the indices of the stages in the order in which the stages are launched. `devices` holds
# the GPU of each stage. Parameters: graph, stages, devices.
launch_order: Callable[[OpGraph, Stages, Ids], Ids] = _find("launch_order")
# Returns the paths that `hios_lp` maps to GPUs, in the order in which it maps them.
# Parameters: graph, op_us, edge_us.
longest_paths: Callable[[OpGraph, bytes, bytes], IdLists] = _find("longest_paths")
# Parameters: graph, op_us, edge_us, gpus.
hios_lp: Callable[[OpGraph, bytes, bytes, int], IdLists] = _find("hios_lp")
# Parameters: graph, op_us, edge_us, gpus.
hios_mr: Callable[[OpGraph, bytes, bytes, int], IdLists] = _find("hios_mr")
# `look_ahead` says whether the choice of an operator's GPU also considers the operators that read
# its results. Parameters: graph, op_us, edge_us, gpus, look_ahead.
heft: Callable[[OpGraph, bytes, bytes, int, bool], IdLists] = _find("heft")
# Returns a batch of all stages whose latencies `open_windows` may need. Each of these stages has 2
# to `window` operators. Parameters: graph, op_us, edge_us, orders, window.
window_candidates: Callable[[OpGraph, bytes, bytes, IdLists, int], Sequence[bytes]] = _find(
    "window_candidates"
)
# Merges neighbouring operators on a GPU into stages of at most `window` operators. `price_us` holds
# the latency of each stage in the batch `priced`. `by_start` says whether the function goes through
# the operators by start time; otherwise it goes through them by priority.
# Parameters: graph, op_us, edge_us, orders, window, priced, price_us, by_start.
open_windows: Callable[[OpGraph, bytes, bytes, IdLists, int, Sequence[bytes], bytes, bool], Any] = (
    _find("open_windows")
)
# Improves a schedule by at most `trials` random changes. `initial` holds the stages of each GPU. A
# stage is a list of at most `window` operators.
# Parameters: graph, op_us, edge_us, initial, window, priced, price_us, trials, time_limit_s, seed.
refine_on_gpus: Callable[
    [OpGraph, bytes, bytes, Stages, int, Sequence[bytes], bytes, int, float, int], Any
] = _find("refine_on_gpus")
# Simulates launches. Launch i runs the operators `ops[i]` on GPU `devices[i]` in `launch_us[i]`
# microseconds. Launches with the same number in `lanes` run one after the other. `fifo` says
# whether a link between GPUs makes one copy at a time.
# Parameters: graph, ops, lanes, devices, launch_us, edge_us, fifo.
simulate_gpus: Callable[[OpGraph, IdLists, Ids, Ids, bytes, bytes, bool], Sequence[bytes]] = _find(
    "simulate_gpus"
)

# The functions below make an operator graph and answer questions about it.

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

# The functions below check that a schedule fits its graph, and simulate the schedule's latency.

# `devices` holds the GPU of each stage, or -1 if a stage is assigned to no GPU. Parameters: graph,
# stages, devices.
validate_stages: Callable[[OpGraph, Stages, Ids], None] = _find("validate_stages")
# Parameters: graph, streams.
validate_streams: Callable[[OpGraph, IdLists], None] = _find("validate_streams")
# Parameters: graph, streams, op_us.
simulate_streams: Callable[[OpGraph, IdLists, bytes], float] = _find("simulate_streams")
# `cores` and `bandwidth` are the limits of the device. `op_cores` and `memory_share` hold, for each
# operator, the cores that it uses and the share of its latency during which it waits for memory.
# Parameters: graph, streams, waits, op_us, cores, bandwidth, op_cores, memory_share, wait_us.
simulate_contention: Callable[
    [OpGraph, IdLists, IdLists, bytes, float, float, bytes, bytes, float], Any
] = _find("simulate_contention")

# The functions below work on batches of stages. A stage consists of groups of operators, and each
# group runs on one stream. `streams` is the largest number of streams that a stage may use.

# Returns the stream on which each group runs, stage after stage. Parameters: batch, op_us, streams.
pack_groups_of_stages: Callable[[Sequence[bytes], bytes, int], Ids] = _find("pack_groups_of_stages")
# Returns the batch with groups joined, so that each stage has at most `streams` groups.
# Parameters: batch, op_us, streams.
pack_stages: Callable[[Sequence[bytes], bytes, int], Sequence[bytes]] = _find("pack_stages")
# Returns the latency of each stage. Parameters: batch, op_us.
price_stages: Callable[[Sequence[bytes], bytes], bytes] = _find("price_stages")

# The functions below are the scheduler IOS, which enumerates stages and then finds the best
# schedule by dynamic programming. A stage has at most `max_groups` groups, and a group at most
# `max_group_ops` operators; 0 sets no limit. `single_root` allows only groups that consist of one
# operator and all operators that depend on it. A state is a set of operators that are still to be
# scheduled. A transition is a state together with a stage that may be the last stage of its
# operators.

# `cuts` says whether a block with too many transitions is cut in two. Otherwise the block is left
# out of the search. Parameters: graph, max_group_ops, max_groups, single_root, max_transitions,
# cuts, op_us, is_over.
ios_enumerate: Callable[[OpGraph, int, int, bool, int, bool, bytes, IsOver], IosSearch] = _find(
    "ios_enumerate"
)
# The function `ios_windows` improves a schedule: it takes windows of neighbouring stages, and
# searches for a better schedule of the operators in each window. The first window is at most
# `first_window` stages wide.
# Parameters: graph, max_group_ops, max_groups, single_root, stages, first_window,
# max_transitions, is_over.
ios_windows: Callable[[OpGraph, int, int, bool, IdLists, int, int, IsOver], IosSearch] = _find(
    "ios_windows"
)
# Returns the number of parts into which the search cut the graph, and the number of transitions
# that it examined.
ios_effort: Callable[[IosSearch], tuple[int, int]] = _find("ios_effort")
ios_left_out: Callable[[IosSearch], IdLists] = _find("ios_left_out")
ios_stages: Callable[[IosSearch], Sequence[bytes]] = _find("ios_stages")
ios_stats: Callable[[IosSearch], Mapping[str, Any]] = _find("ios_stats")
# Parameters: search, price_us.
ios_solve: Callable[[IosSearch, bytes], Any] = _find("ios_solve")
# Returns the indices of the stages to measure next: at least `at_least`, if there are as many.
# `value_us` holds the latency of each stage, or an estimate. `is_priced` holds one byte for each
# stage: whether its latency is known. Parameters: search, value_us, is_priced, at_least.
ios_wanted: Callable[[IosSearch, bytes, bytes, int], bytes] = _find("ios_wanted")

# With the functions below, IOS measures few stages. It measures a stage only if lower bounds of
# latencies are not enough to find the best schedule. An object called book stores the latencies of
# measured stages.

# Parameters: search, book.
ios_pricing_make: Callable[[IosSearch, Any], IosPricing] = _find("ios_pricing_make")
# Sets the lower bounds on the latencies of stages. The comments on the C++ struct `StageBounds`
# describe the parameters. Parameters: pricing, alone_us, op_us, streams, cores, work_us, tolerance,
# slack_us, scale.
ios_pricing_bounds: Callable[
    [IosPricing, bytes, bytes, int, int, bytes, float, float, float], None
] = _find("ios_pricing_bounds")
ios_pricing_num_priced: Callable[[IosPricing], int] = _find("ios_pricing_num_priced")
stage_book_make: Callable[[], Any] = _find("stage_book_make")
# Stores the latencies of the stages in the batch `stages`.
# Parameters: book, stages, op_us, price_us.
stage_book_write: Callable[[Any, Sequence[bytes], bytes, bytes], None] = _find("stage_book_write")
# Returns the stored latency of each stage in the batch `stages`; NaN if no latency is stored.
# Parameters: book, stages, op_us.
stage_book_read: Callable[[Any, Sequence[bytes], bytes], bytes] = _find("stage_book_read")
# Prepares a beam search over the states of IOS. `ops` are the operators to schedule. Operators that
# may be merged with each other form a set. `set_of` holds, for each operator, the number of its
# set, or -1 if it has none. Parameters: graph, ops, op_us, max_group_ops, max_groups, single_root,
# set_of.
stage_beam_make: Callable[[OpGraph, Ids, bytes, int, int, bool, Ids], Any] = _find(
    "stage_beam_make"
)
# Runs the beam search. The function `ask` returns the latency of each stage of a batch. The struct
# `BeamOptions` in C++ describes the other parameters.
# Parameters: beam, width, backward, below_us, parallelism, certain, max_transitions, is_over, ask.
stage_beam_run: Callable[[Any, int, bool, float, float, float, int, IsOver, Any], Any] = _find(
    "stage_beam_run"
)
# Stores latencies that the caller already knows. `stages` holds the indices of their stages.
# Parameters: pricing, stages, price_us.
ios_pricing_give: Callable[[IosPricing, bytes, bytes], None] = _find("ios_pricing_give")
# Returns a batch of the stages to measure next: at least `at_least` stages, if there are as many.
# Parameters: pricing, at_least.
ios_pricing_next: Callable[[IosPricing, int], Sequence[bytes]] = _find("ios_pricing_next")
# Sets the latencies of the stages that `ios_pricing_next` returned last.
# Parameters: pricing, price_us.
ios_pricing_prices: Callable[[IosPricing, bytes], Any] = _find("ios_pricing_prices")
ios_pricing_values: Callable[[IosPricing], bytes] = _find("ios_pricing_values")

# The functions below are schedulers that assign operators to `streams` streams.

# Parameters: graph, op_us, streams.
lios: Callable[[OpGraph, bytes, int], Any] = _find("lios")
# Parameters: graph, op_us, streams, seed.
lios_rand1: Callable[[OpGraph, bytes, int, int], Any] = _find("lios_rand1")
# Parameters: graph, op_us, streams, seed.
lios_rand2: Callable[[OpGraph, bytes, int, int], Any] = _find("lios_rand2")
# Parameters: graph, op_us, streams, seed.
lios_rand: Callable[[OpGraph, bytes, int, int], Any] = _find("lios_rand")
# `wait_us` is the delay of an operator that waits for another stream, in microseconds.
# Parameters: graph, op_us, streams, wait_us.
lios_plus: Callable[[OpGraph, bytes, int, float], Any] = _find("lios_plus")
# `max_groups` is the most operators in a stage; 0 sets no limit. Parameters: graph, max_groups.
greedy: Callable[[OpGraph, int], Stages] = _find("greedy")
nimble: Callable[[OpGraph], Any] = _find("nimble")
# `demand` holds the demand of each operator for GPU resources. `is_memory_bound` holds one byte for
# each operator: 1 if memory limits its speed, else 0. Parameters: graph, demand, is_memory_bound.
opara: Callable[[OpGraph, bytes, bytes], Any] = _find("opara")
# Joins streams until at most `num_streams` streams are left. The operators of a joined stream run
# in the order in which they appear in `order`. Parameters: graph, streams, op_us, num_streams,
# order.
fold_streams: Callable[[OpGraph, IdLists, bytes, int, Ids], IdLists] = _find("fold_streams")

# The functions below compute the waits and the memory layout of plans, and check programs on
# streams. `nbytes` holds the size of each tensor. `producers` and `users` hold the operators that
# write and that read each tensor.

# Returns, for each operator, the operators that it waits for.
# Parameters: graph, streams, extra_edges.
plan_sync: Callable[[OpGraph, IdLists, bytes], IdLists] = _find("plan_sync")
# Places the tensors in memory.
# Parameters: graph, streams, waits, nbytes, producers, users, alignment.
plan_memory: Callable[[OpGraph, IdLists, IdLists, Ids, IdLists, IdLists, int], Any] = _find(
    "plan_memory"
)
# Parameters: graph, nbytes, producers, users.
memory_order: Callable[[OpGraph, Ids, IdLists, IdLists], Any] = _find("memory_order")
# The comments in `passes/ffi/check.cc` describe the arrays, which are int64, and the result.
# Parameters: stream_of, waits, takes_no_overlap, accesses.
check_stream_program: Callable[[bytes, bytes, bytes, bytes], tuple[bytes, bytes]] = _find(
    "check_stream_program"
)

# The functions below simulate a server, on which several programs share a device. `device` holds
# these float64 numbers: cores, bandwidth, interference, and the microseconds that a wait, a barrier
# and a launch take. A program has one or more parts, which do not depend on each other. A run may
# leave out some of the parts: `present` has one bit for each part. The bit says whether the part
# runs.

# `places` has a row of three int64 numbers for each operator: the number of operators that it waits
# for, the index of its segment and the index of its part. A segment is a section of the program
# that starts when the segment before it has ended. Parameters: graph, streams, op_us, op_cores,
# memory_share, places, has_barriers.
served_program_make: Callable[
    [OpGraph, IdLists, bytes, bytes, bytes, bytes, bool], ServedProgram
] = _find("served_program_make")
# Parameters: program, present, device.
served_program_alone: Callable[[ServedProgram, int, bytes], Sequence[float]] = _find(
    "served_program_alone"
)
# Parameters: device.
serving_engine_make: Callable[[bytes], ServingEngine] = _find("serving_engine_make")
# `alone` says whether the program runs without any other program at the same time.
# Parameters: engine, program, present, alone.
serving_engine_start: Callable[[ServingEngine, ServedProgram, int, bool], int] = _find(
    "serving_engine_start"
)
# Returns the number of the next program that ends, or -1 if none ends by `until_us`.
# Parameters: engine, until_us.
serving_engine_advance: Callable[[ServingEngine, float], int] = _find("serving_engine_advance")
serving_engine_now: Callable[[ServingEngine], float] = _find("serving_engine_now")
serving_engine_busy: Callable[[ServingEngine], float] = _find("serving_engine_busy")
# A model is a chain of blocks. A program runs a combined block: blocks of several models at once.
# `places` has two lists for each model: the index of the program that runs each block of the model,
# and the index of the block's part in that program. `interval_us` holds, for each model, the least
# time between two requests that leave its queue. `buffer` is the most requests that wait for a
# block.
#
# `arrivals` holds three arrays. The first has the times of arrivals in microseconds, and the second
# has the model of each arrival. Each row of the third has three numbers: a model, a next model and
# a delay. When a request of the model has been served, a request of the next model arrives after
# the delay. Parameters: device, programs, places, interval_us, buffer, arrivals, until_us.
simulate_combined: Callable[
    [bytes, Sequence[ServedProgram], Sequence[IdLists], bytes, int, Sequence[bytes], float],
    Sequence[bytes],
] = _find("simulate_combined")
# The functions below simulate the server one time window after another. A new window begins with
# the queues and the running program (a combined block) of the window before.
# Parameters: device, followers.
combined_serving_make: Callable[[bytes, bytes], CombinedServing] = _find("combined_serving_make")
# Parameters: serving, programs, places, interval_us, buffer.
combined_serving_decide: Callable[
    [CombinedServing, Sequence[ServedProgram], Sequence[IdLists], bytes, int], None
] = _find("combined_serving_decide")
# `arrivals` holds the times and the models of further arrivals. `at_us` holds the times at which to
# observe the server. The comments in `passes/ffi/serving.cc` describe the result.
# Parameters: serving, arrivals, until_us, at_us.
combined_serving_run: Callable[
    [CombinedServing, Sequence[bytes], float, bytes], Sequence[bytes]
] = _find("combined_serving_run")
