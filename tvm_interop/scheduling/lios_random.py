"""The ablations of LIOS: one of its two heuristics, or both, replaced by chance."""

from __future__ import annotations

import tvm_ffi

from ..graph import OpGraph
from ..latency.base import LatencyModel
from .list_scheduling import list_schedule
from .options import check_counts
from .registry import register_scheduler
from .schedule import Schedule

_RAND1 = tvm_ffi.get_global_func("tvm_interop.lios_rand1")
_RAND2 = tvm_ffi.get_global_func("tvm_interop.lios_rand2")
_RAND = tvm_ffi.get_global_func("tvm_interop.lios_rand")


@register_scheduler("lios-rand1")
def lios_rand1(
    graph: OpGraph, latency: LatencyModel | None, streams: int | None = None, seed: int = 0
) -> Schedule:
    """LIOS-Rand1: any of the ready operators, on the stream where it finishes first.

    Section V, RQ3 of the LIOS paper: an ablation, there to compare with.

    Parameters
    ----------
    streams: how many streams there are; None for the graph's width.
    seed: draws are uniform, and the same for the same seed on every machine.

    Complexity: O(n log streams + edges), besides the graph's width.
    """
    return list_schedule("lios-rand1", _RAND1, graph, latency, streams, _checked(seed))


@register_scheduler("lios-rand2")
def lios_rand2(
    graph: OpGraph, latency: LatencyModel | None, streams: int | None = None, seed: int = 0
) -> Schedule:
    """LIOS-Rand2: the longest of the ready operators, on any of the streams.

    Section V, RQ3 of the LIOS paper: an ablation, there to compare with. Parameters and
    complexity as `lios_rand1`; ties between operators as `lios`.
    """
    return list_schedule("lios-rand2", _RAND2, graph, latency, streams, _checked(seed))


@register_scheduler("lios-rand")
def lios_rand(
    graph: OpGraph, latency: LatencyModel | None, streams: int | None = None, seed: int = 0
) -> Schedule:
    """LIOS-Rand: any of the ready operators on any of the streams.

    Section V, RQ3 of the LIOS paper: an ablation, there to compare with. Parameters and
    complexity as `lios_rand1`.
    """
    return list_schedule("lios-rand", _RAND, graph, latency, streams, _checked(seed))


def _checked(seed: int) -> int:
    check_counts(seed=seed)
    return int(seed)
