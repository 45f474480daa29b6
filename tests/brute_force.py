"""What is cheapest, found by trying everything: for graphs of a handful of operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from tvm_interop.program.graph import OpGraph


def cheapest_stages(graph: OpGraph, price: Callable[[frozenset[int]], float]) -> float:
    """The least that any sequence of stages costs, by the definition alone.

    Parameters
    ----------
    price: of a stage of these operators; inf where they can be none.
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
