"""Fewer streams than a scheduler found."""

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
    """Lay whole streams onto `num_streams`, the longest first onto the least loaded.

    Parameters
    ----------
    op_us: what an operator weighs; None for all alike.
    order: in which operators of the same stream run; by earliest start where none is given.
    """
    weights = np.ones(graph.num_ops) if op_us is None else op_us
    lists = [list(ops) for ops in streams]
    return [
        tuple(ops)
        for ops in native.fold_streams(
            graph.native, lists, weights.tobytes(), num_streams, list(order)
        )
    ]
