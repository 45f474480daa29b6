"""Searches blocks that the user gives, instead of blocks that are found in the graph, with IOS.

Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys 2021, section 4.2: a
network is a stack of blocks, and each block is optimised separately. `OpGraph.blocks` divides a
graph at its cuts: a cut is a place where all operators before it must run before all operators
after it. In NASNet-A, a cell reads the two cells before it, so there is no cut between cells. For
such a network, the user must give the blocks.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import ScheduleError, did_you_mean
from ..latency.base import LatencyModel
from ..latency.some_operators import LatencyOfSome
from ..program.graph import OpGraph
from ..program.part_names import whole_name
from .ios_search import IosOptions, search_ios
from .options import required_latency
from .schedule_fields import as_tuple
from .schedules import Schedule
from .stages import Stage

Blocks = Sequence[Sequence[str]]


def search_blocks(
    name: str,
    graph: OpGraph,
    latency: LatencyModel | None,
    options: IosOptions,
    blocks: Blocks | None,
    merges: bool = False,
) -> Schedule:
    """Search each block with IOS, and put the stages of the blocks one after the other.

    The limit `max_transitions` holds for each block, and each block gets an equal part of
    `time_budget_s`. The counts in `stats` are sums over the blocks.

    Parameters
    ----------
    blocks: as in `block_ids`; None stands for the blocks that are found in the graph.

    Raises
    ------
    ScheduleError: the blocks cannot be used (see `block_ids`).
    """
    if blocks is None or graph.num_ops == 0:
        return search_ios(name, graph, latency, options, merges)
    model = required_latency(latency, name)
    ids = block_ids(graph, blocks)
    if options.time_budget_s is not None:
        options = replace(options, time_budget_s=options.time_budget_s / len(ids))
    stages: list[Stage] = []
    stats: list[dict[str, Any]] = []
    for ops in ids:
        part, of_block = part_of(graph, ops), options
        if options.work_us is not None:
            of_block = replace(options, work_us=options.work_us[list(ops)])
        found = search_ios(name, part, LatencyOfSome(model, ops), of_block, merges)
        stats.append({**found.stats, "makespan": found.makespan})
        stages += [
            replace(stage, groups=tuple(tuple(ops[op] for op in group) for group in stage.groups))
            for stage in found.stages
        ]
    together = _together(stats)
    makespan_us = together.pop("makespan")
    return Schedule(name, graph.names, stages=tuple(stages), makespan=makespan_us, stats=together)


def block_ids(graph: OpGraph, blocks: Blocks) -> list[tuple[int, ...]]:
    """The ids of the operators of each block, in topological order.

    Parameters
    ----------
    blocks: for each block, in the order in which they run, the names of its operators. A name with
        `*` or `?` is a pattern, such as `cell_3/*`. The parts of a divided operator have its name.

    Raises
    ------
    ScheduleError: no operator has a given name, an operator is in two blocks or in none, or an
        operator reads from a later block. The message names the operator or the given name.
    """
    named: dict[str, list[int]] = {}
    for op in graph.topological_order():
        named.setdefault(whole_name(graph.names[op]), []).append(op)
    block_of: dict[int, int] = {}
    for number, names in enumerate(as_tuple(blocks, "`blocks`")):
        for pattern in as_tuple(names, "a block of `blocks`"):
            for op in _matching(named, pattern):
                if op in block_of:
                    raise ScheduleError(
                        f"operator `{graph.names[op]}` is in two of `blocks`; give it once"
                    )
                block_of[op] = number
    for op in graph.topological_order():
        if op not in block_of:
            raise ScheduleError(
                f"operator `{graph.names[op]}` is in none of `blocks`; each operator must be in one"
            )
        for u in graph.predecessors(op):
            if block_of[u] > block_of[op]:
                raise ScheduleError(
                    f"operator `{graph.names[op]}` reads `{graph.names[u]}` of a later block; "
                    "give the blocks in an order in which they can run"
                )
    ids: dict[int, list[int]] = {}
    for op in graph.topological_order():
        ids.setdefault(block_of[op], []).append(op)
    return [tuple(ids[number]) for number in sorted(ids)]


def part_of(graph: OpGraph, ops: Sequence[int]) -> OpGraph:
    """The subgraph of the operators `ops`, which are numbered from 0 in the subgraph."""
    place = {op: i for i, op in enumerate(ops)}
    edges = {(place[u], place[v]) for u in ops for v in graph.successors(u) if v in place}
    return OpGraph.from_edges([graph.names[op] for op in ops], sorted(edges))


def _matching(named: dict[str, list[int]], pattern: object) -> list[int]:
    if not isinstance(pattern, str):
        raise ScheduleError(f"`blocks` holds {pattern!r}; it must hold names of operators")
    if pattern in named:
        return named[pattern]
    if any(sign in pattern for sign in "*?"):
        # Brackets in a pattern stand for themselves, because names of operators may contain
        # brackets.
        plain = pattern.replace("[", "[[]")
        found = [op for name in fnmatch.filter(named, plain) for op in named[name]]
        if found:
            return found
    close = did_you_mean(pattern, list(named))
    raise ScheduleError(
        f"`blocks` names `{pattern}`, and no operator has this name{close}; `OpGraph.names` and "
        "`tvm-interop show` list the names"
    )


def _together(stats: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combine the `stats` of the blocks into the `stats` of the whole graph."""
    together: dict[str, Any] = {}
    for key in stats[0]:
        values = [of_block[key] for of_block in stats]
        if key == "optimal":
            together[key] = all(values)
        elif key == "bound_scale":
            together[key] = min(values)
        elif key == "schedules":
            together[key] = math.prod(values)
        else:
            together[key] = sum(values)
    return together
