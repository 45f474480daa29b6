"""Assigns one of two labels to each item, with the lowest total cost, by a minimum cut."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx


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
    """Give each item a label, 0 or 1, so that the sum of `costs` is as small as possible.

    Two items can have the labels 0 and 0, 1 and 1, 0 and 1, or 1 and 0. A minimum cut can express
    the cost of a pair only if the two cases with different labels together cost at least as much as
    the two cases with equal labels. If they cost less, their cost is raised. Ties: as few items as
    possible get label 1. Costs are rounded to whole nanoseconds, so that sums are exact.

    Parameters
    ----------
    equal: pairs of items that must get the same label.

    Source: V. Kolmogorov and R. Zabih, What energy functions can be minimized via graph cuts?
    (2004), section 4. Complexity: one maximum flow over a graph with one node for each item.
    """
    import networkx as nx  # networkx is imported here, because the import takes half a second.

    graph = nx.DiGraph()
    graph.add_nodes_from(["0", "1"])
    weights: dict[int, int] = dict.fromkeys(things, 0)
    graph.add_nodes_from(weights)
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
        _add(graph, cost.first, cost.second, max(c01 + c10 - c00 - c11, 0))
    for a, b in equal:
        _add(graph, a, b, None)
        _add(graph, b, a, None)
    for thing, weight in weights.items():
        if weight > 0:
            _add(graph, "0", thing, weight)
        elif weight < 0:
            _add(graph, thing, "1", -weight)
    _, (_, ones) = nx.minimum_cut(graph, "0", "1")
    return {thing: int(thing in ones) for thing in weights}


def _nanoseconds(us: float) -> int:
    return math.floor(us * 1e3 + 0.5)


def _add(graph: nx.DiGraph, tail: object, head: object, capacity: int | None) -> None:
    """Add `capacity` to an edge's capacity; None makes the edge's capacity unlimited."""
    if capacity is None:
        graph.add_edge(tail, head)
        # For networkx, an edge without a capacity has no limit.
        graph[tail][head].pop("capacity", None)
        return
    known = graph.get_edge_data(tail, head, {"capacity": 0})
    if "capacity" in known:
        graph.add_edge(tail, head, capacity=known["capacity"] + capacity)
