"""Random models as the authors of HIOS generate them, what they take, and their own evaluator.

The paper (Kundu and Shu, CLUSTER 2023, section VI-A) leaves open how operators are dealt onto
layers and what operators take that run side by side; the authors' published program says.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_interop.latency import LatencyModel, LatencyTable, StageBatch
from tvm_interop.program.graph import OpGraph

_LATENCY_US = (100.0, 4000.0)
_LEAST_TRANSFER_US = 100.0


@dataclass(frozen=True)
class Instance:
    """A random model and its prices. Ids are in topological order, layer by layer."""

    graph: OpGraph
    latency: HalfShared


class HalfShared(LatencyModel):
    """A stage takes half of what its groups take in turn, and half of what they take at best.

    t(S) = 0.5 sum t + 0.5 max(sum t u, max t), where u is an operator's utilisation: the share of
    the GPU that it keeps busy. A group's t is the sum of its operators' and its u their mean,
    weighed by time. A transfer takes a share of what its producer does, 100 us at least.
    """

    def __init__(
        self,
        op_us: Sequence[float],
        utilisation: Sequence[float],
        edges: Sequence[tuple[int, int]],
        transfer_share: float,
    ) -> None:
        self.op_us = np.asarray(op_us, dtype=np.float64)
        self._utilisation = np.asarray(utilisation, dtype=np.float64)
        self._busy_us = self.op_us * self._utilisation
        self._table = LatencyTable(
            op_us,
            transfers={
                (u, v): max(_LEAST_TRANSFER_US, transfer_share * op_us[u]) for u, v in edges
            },
        )

    def op(self, op: int) -> float:
        return float(self.op_us[op])

    def transfer(self, u: int, v: int) -> float:
        return self._table.transfer(u, v)

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        batch = StageBatch.from_stages(stages)
        if not len(batch):
            return np.empty(0)
        group_us = _sums(self.op_us[batch.ops], batch.group_ends)
        busy_us = _sums(self._busy_us[batch.ops], batch.group_ends)
        longest_us = np.maximum.reduceat(group_us, _begins(batch.stage_ends))
        total_us = _sums(group_us, batch.stage_ends)
        shared = 0.5 * total_us + 0.5 * np.maximum(_sums(busy_us, batch.stage_ends), longest_us)
        num_groups = np.diff(batch.stage_ends, prepend=0)
        return np.where(num_groups > 1, shared, total_us)

    def of(self, ids: range) -> HalfShared:
        """The prices of these operators, numbered from 0; none of copies."""
        ops = slice(ids.start, ids.stop)
        return HalfShared(self.op_us[ops].tolist(), self._utilisation[ops].tolist(), (), 0.0)

    @property
    def least_us(self) -> float:
        """What one GPU takes at least, however operators are put side by side."""
        return float(0.5 * (self.op_us + self._busy_us).sum())


def instance(
    num_ops: int = 200,
    num_layers: int = 14,
    num_edges: int = 400,
    transfer_share: float = 0.8,
    seed: int = 0,
) -> Instance:
    """A random model by the rules of the authors' program.

    The first and the last layer have one operator. The others get half as many as there are
    layers, then a random number up to that, round by round, until all are dealt. (Where half is
    too many for all to get some, as with 22 layers, they first get an equal part; the authors'
    program stops there.) Between neighbours each operator of the one picks a reader and each of the
    other a source; the other edges lead from a random inner layer to a later one. No edge is there
    twice.
    """
    rng = random.Random(seed)
    sizes = [1, *([0] * (num_layers - 2)), 1]
    left, half, is_first = num_ops - 2, -(-num_layers // 2), True
    fair = left // (num_layers - 2)
    while left > 0:
        for layer in range(1, num_layers - 1):
            added = min(left, min(half, fair) if is_first else rng.randint(0, half))
            sizes[layer] += added
            left -= added
        is_first = False
    layers: list[list[int]] = []
    for size in sizes:
        first = sum(map(len, layers))
        layers.append(list(range(first, first + size)))
    edges: dict[tuple[int, int], None] = {}
    for before, behind in itertools.pairwise(layers):
        edges.update(dict.fromkeys((u, rng.choice(behind)) for u in before))
        edges.update(dict.fromkeys((rng.choice(before), v) for v in behind))
    while len(edges) < num_edges:
        low, high = sorted(rng.sample(range(1, num_layers - 1), 2))
        edges[rng.choice(layers[low]), rng.choice(layers[high])] = None
    op_us = [rng.uniform(*_LATENCY_US) for _ in range(num_ops)]
    utilisation = [rng.uniform(0.6, 1.0) for _ in range(num_ops)]
    graph = OpGraph.from_edges(num_ops, sorted(edges))
    return Instance(graph, HalfShared(op_us, utilisation, graph.edges, transfer_share))


def lower_bound_us(subject: Instance, gpus: int) -> float:
    """What no schedule can be below: the longest path without copies, and all GPUs busy."""
    finish = [0.0] * subject.graph.num_ops
    for op in subject.graph.topological_order():
        ready = max((finish[u] for u in subject.graph.predecessors(op)), default=0.0)
        finish[op] = ready + subject.latency.op(op)
    return max(max(finish), subject.latency.least_us / gpus)


def _begins(ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], ends[:-1]])


def _sums(values: npt.NDArray[np.float64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.add.reduceat(values, _begins(ends))
