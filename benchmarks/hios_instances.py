"""Random models with latencies, generated as the authors of HIOS generate them.

The paper (Kundu and Shu, CLUSTER 2023, section VI-A) does not say how operators are distributed
over layers. It also does not say how long operators take that run side by side. Both rules are
taken from the authors' published program.
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
    """A random model and its latencies. Operator ids are in topological order, layer by layer."""

    graph: OpGraph
    latency: HalfShared


class HalfShared(LatencyModel):
    """The latency model of the authors' program, for groups that run side by side on a GPU.

    The latency of a stage is the mean of two times. The first is the time of its groups one after
    the other. The second is the shortest time that the groups could take side by side. For a stage
    of two or more groups

        t(S) = 0.5 sum t + 0.5 max(sum t u, max t).

    The sums and the maximum are over the groups of a stage S. Here t is the latency of a group, the
    sum of its operators' latencies. The utilisation of an operator is the share of the GPU that it
    keeps busy. The utilisation u of a group is the mean of its operators' utilisations, weighted by
    their latencies. The latency of a transfer is a fixed share of the latency of the operator that
    produces the tensor, and at least 100 us.
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
        """A latency model of only the operators `ids`, renumbered from 0, without transfers."""
        ops = slice(ids.start, ids.stop)
        return HalfShared(self.op_us[ops].tolist(), self._utilisation[ops].tolist(), (), 0.0)

    @property
    def least_us(self) -> float:
        """Lower bound of the latency of all operators on one GPU, however stages are chosen."""
        return float(0.5 * (self.op_us + self._busy_us).sum())


def instance(
    num_ops: int = 200,
    num_layers: int = 14,
    num_edges: int = 400,
    transfer_share: float = 0.8,
    seed: int = 0,
) -> Instance:
    """Generate a random model by the rules of the authors' program.

    The first and the last layer have one operator each. The other operators are distributed over
    the inner layers in rounds. In the first round each inner layer gets half as many operators as
    there are layers. In each later round it gets a random number of operators, at most as many as
    in the first round. With many layers, such as 22, there are too few operators for the first
    round. In this case each inner layer first gets an equal number of operators. (The authors'
    program fails for so many layers.)

    Between two neighbouring layers, each operator of the first layer picks a random reader in the
    second. Then each operator of the second layer picks a random source in the first. Further edges
    lead from a random inner layer to a later inner layer. No edge occurs twice.

    Parameters
    ----------
    transfer_share: latency of a transfer, as a share of the latency of its producer.
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
    """Lower bound of the latency of any schedule, in microseconds.

    The result is the larger of two bounds: the longest path without transfers, and the time that
    the
    operators take if they keep all GPUs busy to the end.
    """
    finish = [0.0] * subject.graph.num_ops
    for op in subject.graph.topological_order():
        ready = max((finish[u] for u in subject.graph.predecessors(op)), default=0.0)
        finish[op] = ready + subject.latency.op(op)
    return max(max(finish), subject.latency.least_us / gpus)


def _begins(ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], ends[:-1]])


def _sums(values: npt.NDArray[np.float64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.add.reduceat(values, _begins(ends))
