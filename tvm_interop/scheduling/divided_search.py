"""Runs the search of IOS on operators that are divided into parts.

All parts of an operator are scheduled together, as one operator that uses all streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..latency.base import LatencyModel, op_latencies
from ..program.graph import OpGraph
from .given_blocks import Blocks, search_blocks
from .ios_search import IosOptions
from .options import required_latency
from .schedules import Schedule
from .whole_operators import WholeOperators

Parts = Sequence[Sequence[int]]
"""For each operator, the ids of its parts. The list has one id if the operator is not divided."""


def search_divided(
    name: str,
    graph: OpGraph,
    latency: LatencyModel | None,
    options: IosOptions,
    blocks: Blocks | None,
    parts: Parts | None,
    merges: bool = False,
) -> Schedule:
    """Search with IOS.

    The parts of an operator count as one operator. This operator uses all streams, as a divided
    operator does in sequential execution. So a stage of a single operator takes the same time in
    this search and in sequential execution.

    Parameters
    ----------
    options: the options of `ios`. With `parts`, each group holds one operator, and `max_group_ops`
        is ignored.
    parts: as in `ios`; None if no operator is divided.
    merges: whether stages may be merged, as in `search_ios`.
    """
    if parts is None:
        return search_blocks(name, graph, latency, options, blocks, merges)
    model = required_latency(latency, name)
    wholes = WholeOperators(graph, parts)
    streams = options.streams
    options = replace(options, max_group_ops=1, streams=None)
    op_us = None
    if streams is not None:
        op_us = op_latencies(model, graph.names).tolist()
        # The search takes its lower bounds from `work_us` and `cores`: a stage takes at least the
        # total latency of its parts, divided by `streams`.
        work_us = wholes.work_us(op_us)
        options = replace(options, cores=options.cores or streams, work_us=work_us)
    found = search_blocks(name, wholes.graph, wholes.latency(model), options, blocks, merges)
    stages = wholes.divided(found.stages, op_us, streams)
    return replace(found, op_names=graph.names, stages=stages, streams=())
