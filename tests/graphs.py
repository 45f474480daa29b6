"""Makes random operator graphs for tests, and latencies for them.

The functions of this module return the same graph for the same seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tvm_interop.latency import LatencyTable
from tvm_interop.program.graph import OpGraph


def layered(num_ops: int, seed: int, *, layer: int = 6, reach: int = 2) -> OpGraph:
    """A random graph of layers of 1 to `layer` operators.

    Each operator reads 1 to 3 operators of the `reach` layers before its own. Ids are shuffled, so
    that they are not a topological order. Some edges are given twice.
    """
    rng = random.Random(seed)
    layers: list[list[int]] = []
    edges: list[tuple[int, int]] = []
    ids = list(range(num_ops))
    rng.shuffle(ids)
    while ids:
        current = [ids.pop() for _ in range(min(len(ids), rng.randint(1, layer)))]
        before = [op for earlier in layers[-reach:] for op in earlier]
        for op in current:
            for source in rng.sample(before, min(len(before), rng.randint(0, 3))):
                edges += [(source, op)] * (2 if rng.random() < 0.1 else 1)
        layers.append(current)
    return OpGraph.from_edges(num_ops, edges)


def sparse(num_ops: int, seed: int, degree: float = 2.0) -> OpGraph:
    """A random graph in which each pair of operators has an edge with the same probability.

    The edges follow a random order of the operators.
    """
    rng = random.Random(seed)
    order = list(range(num_ops))
    rng.shuffle(order)
    share = min(1.0, degree / max(1, num_ops))
    edges = [
        (order[i], order[j]) for j in range(num_ops) for i in range(j) if rng.random() < 2 * share
    ]
    return OpGraph.from_edges(num_ops, edges)


def randwire(num_ops: int, seed: int, *, neighbours: int = 4, rewire: float = 0.75) -> OpGraph:
    """A stage of RandWire: a Watts-Strogatz ring whose edges lead from the lower to the higher id.

    The last of the `num_ops` operators reads all operators that no other operator reads.
    """
    rng = random.Random(seed)
    n = num_ops - 1
    edges: set[tuple[int, int]] = set()
    for distance in range(1, neighbours // 2 + 1):
        for u in range(n):
            v = (u + distance) % n
            if rng.random() < rewire:
                free = [w for w in range(n) if w != u and _ordered(u, w) not in edges]
                v = rng.choice(free)
            edges.add(_ordered(u, v))
    read = {u for u, _ in edges}
    edges |= {(u, n) for u in range(n) if u not in read}
    return OpGraph.from_edges(num_ops, sorted(edges))


def latencies(num_ops: int, seed: int) -> list[float]:
    """Random latencies in whole microseconds, so that sums are exact and ties happen."""
    rng = random.Random(seed)
    return [float(rng.randint(1, 40)) for _ in range(num_ops)]


def _ordered(u: int, v: int) -> tuple[int, int]:
    return (u, v) if u < v else (v, u)


def divided(graph: OpGraph, rng: random.Random) -> tuple[OpGraph, list[list[int]]]:
    """`graph` with some operators divided into two or three parts, and the parts by operator."""
    parts: list[list[int]] = []
    names: list[str] = []
    for op in range(graph.num_ops):
        count = rng.choice([1, 2, 3])
        parts.append(list(range(len(names), len(names) + count)))
        names += [f"op{op}[{i + 1}/{count}]" for i in range(count)]
    edges = [(a, b) for x, y in graph.edges for a in parts[x] for b in parts[y]]
    return OpGraph.from_edges(names, edges), parts


class Contended(LatencyTable):
    """A latency model in which groups that run side by side slow each other down by `slowdown`."""

    def __init__(self, us: Sequence[float], slowdown: float) -> None:
        super().__init__(us)
        self.slowdown = slowdown
        self.asked = 0

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        self.asked += 1
        longest = max(sum(self.op(op) for op in group) for group in groups)
        return longest * (1 + self.slowdown * (len(groups) - 1))
