"""Graphs to compare schedulers on: the networks of the papers, and families of random graphs.

`LATENCIES` has functions that draw the latencies of operators at random. The same seed gives the
same graph and the same latencies on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_interop import LatencyTable, OpGraph
from tvm_interop.latency import LatencyModel
from tvm_interop.latency.contended import ContendedLatency
from tvm_interop.models import catalog
from tvm_interop.models.synthetic import layered_workload
from tvm_interop.models.units import schedule_units
from tvm_interop.scheduling.simulation import Contention

Edges = list[tuple[int, int]]


@dataclass(frozen=True)
class Subject:
    """A graph and its latencies on a simulated device.

    Attributes
    ----------
    device: `table` if operators never slow each other down, `gpu` if they share a simulated GPU.
    op_us: (num_ops,) microseconds of each operator alone.
    contention: how operators share the simulated GPU; None for `table`.
    """

    name: str
    device: str
    graph: OpGraph
    op_us: npt.NDArray[np.float64]
    latency: LatencyModel
    contention: Contention | None


def uniform(rng: random.Random) -> float:
    """Draw a latency from 5 to 50 microseconds, uniformly."""
    return rng.uniform(5, 50)


def lognormal(rng: random.Random) -> float:
    """Draw a log-normal latency with median 20 microseconds. Some take 200 microseconds."""
    return 20 * rng.lognormvariate(0, 1)


def two_kinds(rng: random.Random) -> float:
    """Draw a latency of 2 to 6 microseconds, or of 80 to 120 for one operator in four."""
    return rng.uniform(80, 120) if rng.random() < 0.25 else rng.uniform(2, 6)


def alike(rng: random.Random) -> float:
    """Return a latency of 10 microseconds for every operator."""
    return 10.0


LATENCIES: dict[str, Callable[[random.Random], float]] = {
    "uniform": uniform,
    "lognormal": lognormal,
    "two_kinds": two_kinds,
    "alike": alike,
}


def network(name: str) -> Callable[[random.Random], tuple[int, Edges]]:
    """The graph of a network in which each operator is a schedule unit of the IOS paper."""

    def make(rng: random.Random) -> tuple[int, Edges]:
        units = schedule_units(catalog.skeleton(name))
        return len(units.names), list(units.edges)

    return make


def kernels(name: str) -> Callable[[random.Random], tuple[int, Edges]]:
    """The graph of a network in which each operator is a kernel that TVM makes of the network."""

    def make(rng: random.Random) -> tuple[int, Edges]:
        if name not in _KERNEL_GRAPHS:
            _KERNEL_GRAPHS[name] = _kernel_graph(name)
        return _KERNEL_GRAPHS[name]

    return make


_KERNEL_GRAPHS: dict[str, tuple[int, Edges]] = {}
_SMALL_IMAGES = {"inception_v3": 75, "randwire": 32, "nasnet_a": 32}
"""Image size of each network, in pixels. A small image gives the same graph of kernels, and
lowering takes less time."""


def _kernel_graph(name: str) -> tuple[int, Edges]:
    from tvm_interop import models
    from tvm_interop.frontend import load_model
    from tvm_interop.lowering.extract import extract
    from tvm_interop.lowering.lower import LowerToUnits
    from tvm_interop.machine.cpu_target import cpu_target

    lower = LowerToUnits(cpu_target("llvm"), ())
    model = models.build(name, image_size=_SMALL_IMAGES[name])
    graph = extract(lower(load_model(model, None))).graph()
    return graph.num_ops, list(graph.edges)


def layered(num_ops: int) -> Callable[[random.Random], tuple[int, Edges]]:
    """A random graph in layers, as in HIOS, with twice as many edges as operators.

    Operators are numbered depth first, that is branch by branch.
    """

    def make(rng: random.Random) -> tuple[int, Edges]:
        graph, _ = layered_workload(num_ops, num_edges=2 * num_ops, seed=rng.randrange(1 << 30))
        return depth_first(num_ops, list(graph.edges))

    return make


def grid(rows: int, columns: int) -> Callable[[random.Random], tuple[int, Edges]]:
    """A grid, numbered row by row. Each operator reads its upper and its left neighbour."""

    def make(rng: random.Random) -> tuple[int, Edges]:
        edges = [
            (r * columns + c, r * columns + c + 1) for r in range(rows) for c in range(columns - 1)
        ]
        edges += [
            (r * columns + c, (r + 1) * columns + c)
            for r in range(rows - 1)
            for c in range(columns)
        ]
        return rows * columns, edges

    return make


def towers(count: int, height: int) -> Callable[[random.Random], tuple[int, Edges]]:
    """`count` independent chains of `height` operators each, numbered chain by chain."""

    def make(rng: random.Random) -> tuple[int, Edges]:
        edges = [
            (first + i, first + i + 1)
            for first in range(0, count * height, height)
            for i in range(height - 1)
        ]
        return count * height, edges

    return make


def series_parallel(num_ops: int) -> Callable[[random.Random], tuple[int, Edges]]:
    """A random series-parallel graph, which grows from one edge.

    Each step picks a random edge and adds an operator. The operator either splits the edge, or
    makes a second path beside it.
    """

    def make(rng: random.Random) -> tuple[int, Edges]:
        edges: Edges = [(0, 1)]
        count = 2
        while count < num_ops:
            u, v = edges[rng.randrange(len(edges))]
            if rng.random() < 0.5:
                edges.remove((u, v))
            edges += [(u, count), (count, v)]
            count += 1
        return renumbered(count, list(dict.fromkeys(edges)), rng)

    return make


def fork_join(joins: int, most_branches: int) -> Callable[[random.Random], tuple[int, Edges]]:
    """A chain of fork-join blocks.

    A block has 2 to `most_branches` branches of 1 to 6 operators each, and one operator that joins
    the branches. All branches start at the operator that joins the block before.
    """

    def make(rng: random.Random) -> tuple[int, Edges]:
        edges: Edges = []
        last, count = 0, 1
        for _ in range(joins):
            ends = []
            for _ in range(rng.randint(2, most_branches)):
                before = last
                for _ in range(rng.randint(1, 6)):
                    edges.append((before, count))
                    before = count
                    count += 1
                ends.append(before)
            edges += [(end, count) for end in ends]
            last = count
            count += 1
        return count, edges

    return make


def transformer(blocks: int, heads: int) -> Callable[[random.Random], tuple[int, Edges]]:
    """A chain of transformer blocks.

    Each head has its own query, key, value, scores, softmax and product. The heads are joined and
    added to the input of the block. Two dense layers follow.
    """

    def make(rng: random.Random) -> tuple[int, Edges]:
        edges: Edges = []
        last, count = 0, 1
        for _ in range(blocks):
            products = []
            for _ in range(heads):
                q, k, v, scores, softmax, product = range(count, count + 6)
                edges += [(last, q), (last, k), (last, v), (q, scores), (k, scores)]
                edges += [(scores, softmax), (softmax, product), (v, product)]
                products.append(product)
                count += 6
            joined, added, dense, back = range(count, count + 4)
            edges += [(product, joined) for product in products]
            edges += [(joined, added), (last, added), (added, dense), (dense, back)]
            last = back
            count += 4
        return count, edges

    return make


def shallow(width: int, depth: int) -> Callable[[random.Random], tuple[int, Edges]]:
    """`depth` layers of `width` operators. Each reads 1 to 3 operators of the layer before."""

    def make(rng: random.Random) -> tuple[int, Edges]:
        edges = {
            ((layer - 1) * width + rng.randrange(width), layer * width + i)
            for layer in range(1, depth)
            for i in range(width)
            for _ in range(rng.randint(1, 3))
        }
        return renumbered(width * depth, sorted(edges), rng)

    return make


def lstm(layers: int, steps: int) -> Callable[[random.Random], tuple[int, Edges]]:
    """An unrolled LSTM: a grid of cells, with `layers` rows and `steps` columns.

    A cell has two matrix products, gates and a state. It reads the cell of the step before and the
    cell of the layer below.
    """

    def make(rng: random.Random) -> tuple[int, Edges]:
        edges: Edges = []

        def cell(layer: int, step: int) -> int:
            return 4 * (layer * steps + step)

        for layer in range(layers):
            for step in range(steps):
                first = cell(layer, step)
                edges += [(first, first + 2), (first + 1, first + 2), (first + 2, first + 3)]
                if layer:
                    edges.append((cell(layer - 1, step) + 3, first))
                if step:
                    left = cell(layer, step - 1)
                    edges += [(left + 3, first + 1), (left + 2, first + 3)]
        return 4 * layers * steps, edges

    return make


def erdos_renyi(num_ops: int, degree: float) -> Callable[[random.Random], tuple[int, Edges]]:
    """A random graph in which each pair of operators has an edge with the same probability.

    The operators are in a random order, and each edge leads from an earlier to a later operator.

    Parameters
    ----------
    degree: `num_ops` times the probability of an edge.
    """

    def make(rng: random.Random) -> tuple[int, Edges]:
        share = degree / num_ops
        edges = [(u, v) for v in range(num_ops) for u in range(v) if rng.random() < share]
        return renumbered(num_ops, edges, rng)

    return make


def ensemble(count: int) -> Callable[[random.Random], tuple[int, Edges]]:
    """`count` copies of Inception v3, and one last operator that reads their results."""

    def make(rng: random.Random) -> tuple[int, Edges]:
        num_ops, inside = network("inception_v3")(rng)
        edges = [
            (copy * num_ops + u, copy * num_ops + v) for copy in range(count) for u, v in inside
        ]
        read = {u for u, _ in edges}
        total = count * num_ops
        return total + 1, edges + [(u, total) for u in range(total) if u not in read]

    return make


def depth_first(num_ops: int, edges: Edges) -> tuple[int, Edges]:
    """The graph with operators numbered depth first, so that each branch is followed to its end."""
    readers: list[list[int]] = [[] for _ in range(num_ops)]
    waits_for = [0] * num_ops
    for u, v in edges:
        readers[u].append(v)
        waits_for[v] += 1
    stack = [op for op in range(num_ops - 1, -1, -1) if not waits_for[op]]
    number = {}
    while stack:
        op = stack.pop()
        number[op] = len(number)
        for reader in readers[op]:
            waits_for[reader] -= 1
            if not waits_for[reader]:
                stack.append(reader)
    return num_ops, sorted((number[u], number[v]) for u, v in edges)


def renumbered(num_ops: int, edges: Edges, rng: random.Random) -> tuple[int, Edges]:
    """The graph with its operators numbered at random."""
    ids = list(range(num_ops))
    rng.shuffle(ids)
    return num_ops, [(ids[u], ids[v]) for u, v in edges]


FAMILIES: dict[str, Callable[[random.Random], tuple[int, Edges]]] = {
    **{name: network(name) for name in ("nasnet_a", "randwire", "inception_v3")},
    **{f"{name}_kernels": kernels(name) for name in ("nasnet_a", "randwire", "inception_v3")},
    "layered_200": layered(200),
    "layered_1000": layered(1000),
    "grid_12x12": grid(12, 12),
    "towers_8x40": towers(8, 40),
    "towers_2x1000": towers(2, 1000),
    "series_parallel_300": series_parallel(300),
    "fork_join": fork_join(12, 14),
    "transformer_6x16": transformer(6, 16),
    "shallow_80x4": shallow(80, 4),
    "lstm_5x30": lstm(5, 30),
    "erdos_renyi_200": erdos_renyi(200, 2.5),
    "ensemble_4": ensemble(4),
}


def subject(family: str, latencies: str, device: str, seed: int) -> Subject:
    """One graph of a family, with random latencies on a simulated device.

    Parameters
    ----------
    family: a key of `FAMILIES`.
    latencies: a key of `LATENCIES`.
    device: `table` or `gpu`. On the GPU an operator keeps 2 to 60 of 80 multiprocessors busy, and
        waits for memory for up to 0.6 of its time.
    """
    rng = random.Random(f"{family} {seed}")
    num_ops, edges = FAMILIES[family](rng)
    draw = LATENCIES[latencies]
    op_us = np.array([draw(rng) for _ in range(num_ops)])
    graph = OpGraph.from_edges(num_ops, edges)
    name = f"{family} {latencies} {seed}"
    if device == "table":
        return Subject(name, device, graph, op_us, LatencyTable(op_us), None)
    contention = Contention(
        cores=80,
        bandwidth=1.5,
        op_cores=[2 * 30 ** rng.random() for _ in range(num_ops)],
        memory_share=[0.6 * rng.random() for _ in range(num_ops)],
    )
    latency = ContendedLatency(
        op_us,
        contention.cores,
        contention.bandwidth,
        contention.op_cores or (),
        contention.memory_share or (),
    )
    return Subject(name, device, graph, op_us, latency, contention)
