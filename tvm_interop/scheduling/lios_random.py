"""Ablations of LIOS: one or both of its two heuristics are replaced by random choices."""

from __future__ import annotations

from .._native import passes as native
from ..latency.base import LatencyModel
from ..program.graph import OpGraph
from .list_scheduling import list_schedule
from .options import check_counts
from .registry import register_scheduler
from .schedules import Schedule


@register_scheduler("lios-rand1")
def lios_rand1(
    graph: OpGraph, latency: LatencyModel | None, streams: int | None = None, seed: int = 0
) -> Schedule:
    """LIOS-Rand1: repeatedly, a random ready operator goes to the stream on which it ends first.

    LIOS-Rand1 is an ablation from section V, RQ3 of the LIOS paper, for comparison only.

    Parameters
    ----------
    streams: number of streams; None for the graph's width.
    seed: seed of the random choices. Draws are uniform, and the same for the same seed on every
        machine.

    Complexity: O(n log streams + edges), plus the computation of the graph's width.
    """
    return list_schedule("lios-rand1", native.lios_rand1, graph, latency, streams, _checked(seed))


@register_scheduler("lios-rand2")
def lios_rand2(
    graph: OpGraph, latency: LatencyModel | None, streams: int | None = None, seed: int = 0
) -> Schedule:
    """LIOS-Rand2: repeatedly, the longest ready operator goes to a random stream.

    LIOS-Rand2 is an ablation from section V, RQ3 of the LIOS paper, for comparison only.
    `lios_rand1` explains the parameters and the complexity. Ties between operators are
    broken as in `lios`.
    """
    return list_schedule("lios-rand2", native.lios_rand2, graph, latency, streams, _checked(seed))


@register_scheduler("lios-rand")
def lios_rand(
    graph: OpGraph, latency: LatencyModel | None, streams: int | None = None, seed: int = 0
) -> Schedule:
    """LIOS-Rand: repeatedly, a random ready operator goes to a random stream.

    LIOS-Rand is an ablation from section V, RQ3 of the LIOS paper, for comparison only.
    `lios_rand1` explains the parameters and the complexity.
    """
    return list_schedule("lios-rand", native.lios_rand, graph, latency, streams, _checked(seed))


def _checked(seed: int) -> int:
    check_counts(seed=seed)
    return int(seed)
