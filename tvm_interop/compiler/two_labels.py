"""Assigns one of two labels to each item, with the lowest total cost, by a minimum cut."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

_Node = int | str
_Edges = dict[_Node, dict[_Node, float]]
"""The capacity that is left of each edge, as `edges[tail][head]`. Each edge has an opposite one."""

_ZERO, _ONE = "0", "1"
"""The source and the sink of the flow. They stand for the two labels."""


@dataclass(frozen=True)
class PairCost:
    """The cost of two items, which depends on the labels of both.

    Attributes
    ----------
    first, second: the two items. None stands for an item whose label is always 0.
    us: microseconds for each pair of labels, as `us[label of first][label of second]`.
    """

    first: int | None
    second: int | None
    us: tuple[tuple[float, float], tuple[float, float]]


def cheapest_labels(
    things: Iterable[int], costs: Iterable[PairCost], equal: Iterable[tuple[int, int]] = ()
) -> dict[int, int]:
    """A label, 0 or 1, for each item, so that the sum of `costs` is as small as possible.

    A minimum cut can express the cost of a pair only if unlike labels are, in sum, no cheaper than
    like labels. Where unlike labels are cheaper, their cost is raised to the cost of like labels.
    Ties: as few items as possible get label 1. Costs are rounded to whole nanoseconds, so that
    sums are exact.

    Parameters
    ----------
    equal: pairs that must get the same label.

    Source: V. Kolmogorov and R. Zabih, What energy functions can be minimized via graph cuts?
    (2004), section 4. Complexity: one maximum flow over a graph with one node for each item.
    """
    weights: dict[int, int] = dict.fromkeys(things, 0)
    nodes: list[_Node] = [_ZERO, _ONE, *weights]
    edges: _Edges = {node: {} for node in nodes}
    for cost in costs:
        (c00, c01), (c10, c11) = ((_nanoseconds(us) for us in row) for row in cost.us)
        if cost.first is None and cost.second is None:
            continue
        if cost.first is None or cost.second is None:
            thing = cost.second if cost.first is None else cost.first
            assert thing is not None
            weights[thing] += (c01 if cost.first is None else c10) - c00
            continue
        weights[cost.first] += c10 - c00
        weights[cost.second] += c11 - c10
        _add(edges, cost.first, cost.second, max(c01 + c10 - c00 - c11, 0))
    for a, b in equal:
        _add(edges, a, b, math.inf)
        _add(edges, b, a, math.inf)
    for thing, weight in weights.items():
        if weight > 0:
            _add(edges, _ZERO, thing, weight)
        elif weight < 0:
            _add(edges, thing, _ONE, -weight)
    _send_all(edges)
    ones = _reaching_the_sink(edges)
    return {thing: int(thing in ones) for thing in weights}


def _nanoseconds(us: float) -> int:
    return math.floor(us * 1e3 + 0.5)


def _add(edges: _Edges, tail: _Node, head: _Node, capacity: float) -> None:
    """Add to an edge's capacity."""
    edges[tail][head] = edges[tail].get(head, 0) + capacity
    edges[head].setdefault(tail, 0)


def _send_all(edges: _Edges) -> None:
    """Send as much as possible from the source to the sink, and reduce the capacities by it.

    Source: E. A. Dinic, Algorithm for solution of a problem of maximum flow in networks with power
    estimation (1970). No path from the source to the sink has only unlimited edges.
    """
    while _ONE in (level := _levels(edges)):
        untried = {node: [*heads] for node, heads in edges.items()}
        path: list[_Node] = [_ZERO]
        while path:
            node = path[-1]
            if node == _ONE:
                _send(edges, path)
                continue
            heads = untried[node]
            while heads and not (
                edges[node][heads[-1]] > 0 and level.get(heads[-1]) == level[node] + 1
            ):
                heads.pop()
            if heads:
                path.append(heads[-1])
            else:
                path.pop()
                if path:
                    untried[path[-1]].pop()


def _levels(edges: _Edges) -> dict[_Node, int]:
    """The number of edges on the shortest path from the source to each node that it reaches."""
    level: dict[_Node, int] = {_ZERO: 0}
    found: list[_Node] = [_ZERO]
    for node in found:  # The loop appends to the list.
        for head, capacity in edges[node].items():
            if capacity > 0 and head not in level:
                level[head] = level[node] + 1
                found.append(head)
    return level


def _send(edges: _Edges, path: list[_Node]) -> None:
    """Send as much as the path takes, and cut the path before its first full edge."""
    amount = min(edges[tail][head] for tail, head in pairwise(path))
    for tail, head in pairwise(path):
        edges[tail][head] -= amount
        edges[head][tail] += amount
    full = next(i for i, (tail, head) in enumerate(pairwise(path)) if edges[tail][head] == 0)
    del path[full + 1 :]


def _reaching_the_sink(edges: _Edges) -> set[_Node]:
    """The nodes from which more could be sent to the sink."""
    found: list[_Node] = [_ONE]
    reached: set[_Node] = {_ONE}
    for node in found:  # The loop appends to the list.
        for tail in edges[node]:
            if edges[tail][node] > 0 and tail not in reached:
                reached.add(tail)
                found.append(tail)
    return reached
