"""Random layered models for comparisons of schedulers, generated as in the paper on HIOS."""

from __future__ import annotations

import random

from ..errors import GraphError
from ..program.graph import OpGraph


def layered_workload(
    num_ops: int = 200,
    num_layers: int = 14,
    num_edges: int = 400,
    *,
    latency_us: tuple[float, float] = (100.0, 4000.0),
    seed: int = 0,
) -> tuple[OpGraph, list[float]]:
    """A random model and the latencies of its operators.

    The method and the defaults follow the paper on HIOS, section VI-A. Operators are assigned to
    layers at random, at least one to each layer. Each operator after the first layer reads one
    operator of the layer before. All other edges lead from any earlier layer to a later one. No
    edge occurs twice. Latencies are drawn uniformly. The same seed gives the same model on every
    machine.

    Parameters
    ----------
    num_edges: number of edges. The graph has more edges if more than `num_edges` operators lie
        after the first layer, because each of these operators has an edge.
    latency_us: least and greatest latency of an operator, in microseconds.

    Returns
    -------
    The graph, and the latency of each operator in microseconds.

    Raises
    ------
    GraphError: there are fewer operators than layers, or more edges than pairs of operators in
        different layers.
    """
    if not 1 <= num_layers <= num_ops:
        raise GraphError(
            f"{num_ops} operators cannot fill {num_layers} layers; each layer needs one"
        )
    rng = random.Random(seed)
    layer_of = [
        *range(num_layers),
        *(rng.randrange(num_layers) for _ in range(num_layers, num_ops)),
    ]
    layer_of.sort()
    layers: list[list[int]] = [[] for _ in range(num_layers)]
    for op, layer in enumerate(layer_of):
        layers[layer].append(op)
    edges = {(rng.choice(layers[layer - 1]), op) for op, layer in enumerate(layer_of) if layer > 0}
    room = sum(len(layers[i]) * len(layers[j]) for j in range(num_layers) for i in range(j))
    if num_edges > room:
        raise GraphError(
            f"{num_edges} edges do not fit: only {room} pairs of operators are in different "
            "layers; ask for fewer edges"
        )
    while len(edges) < num_edges:
        u, v = rng.randrange(num_ops), rng.randrange(num_ops)
        if layer_of[u] < layer_of[v]:
            edges.add((u, v))
    latencies = [rng.uniform(*latency_us) for _ in range(num_ops)]
    return OpGraph.from_edges(num_ops, sorted(edges)), latencies
