"""Finds optimal schedules of graphs with a handful of operators by trying all schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from tvm_interop.program.graph import OpGraph


def cheapest_stages(graph: OpGraph, price: Callable[[frozenset[int]], float]) -> float:
    """Return the least total latency of all sequences of stages, found by trying each sequence.

    Parameters
    ----------
    price: returns the latency of a stage of these operators; inf if they cannot form a stage.
    """

    @cache
    def solve(state: frozenset[int]) -> float:
        best = 0.0 if not state else math.inf
        ops = sorted(state)
        for mask in range(1, 1 << len(ops)):
            ending = frozenset(op for i, op in enumerate(ops) if mask >> i & 1)
            stays = state - ending
            if not any(v in stays for u in ending for v in graph.successors(u)):
                best = min(best, solve(stays) + price(ending))
        return best

    return solve(frozenset(range(graph.num_ops)))
