"""Combines streams if a scheduler uses more streams than are allowed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .._native import passes as native
from ..program.graph import OpGraph


def fold_streams(
    graph: OpGraph,
    streams: Sequence[Sequence[int]],
    op_us: npt.NDArray[np.float64] | None,
    num_streams: int,
    order: Sequence[int] = (),
) -> list[tuple[int, ...]]:
    """Combine streams into `num_streams` streams. The operators of a stream stay together.

    The streams are placed one by one, the longest first. Each stream is appended to the new stream
    that has the shortest total length so far.

    Parameters
    ----------
    op_us: (num_ops,) latency of each operator in microseconds. The length of a stream is the sum of
        the latencies of its operators. If `op_us` is None, the length is the number of operators.
    order: order in which operators of the same stream run. If empty, they run in the order of their
        earliest start.
    """
    weights = np.ones(graph.num_ops) if op_us is None else op_us
    lists = [list(ops) for ops in streams]
    return [
        tuple(ops)
        for ops in native.fold_streams(
            graph.native, lists, weights.tobytes(), num_streams, list(order)
        )
    ]
