"""The graph neural network of the paper "TOP" (Lin et al., TPDS 36(2), 2025), in NumPy.

The network computes a vector for each operator of a block. The schedulers `gpg` and `gpg-scored`
use these vectors. The module `serving.learning.gpg` trains the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..latency.base import LatencyModel
from ..latency.contended import ContendedLatency
from ..program.graph import OpGraph
from ..program.layers import LAYER_FEATURES, layer_features
from .endings import Mask, bits

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Weights = Mapping[str, npt.NDArray[np.floating]]
"""The weights and biases of a network's layers, keyed by perceptron and layer: `g1.0.w`, `g1.0.b`,
...
"""

FEATURES = 9
"""Number of features of an operator; see `Block.features`."""
INPUTS = {
    "device": FEATURES,
    "layers": LAYER_FEATURES,
    "both": FEATURES + LAYER_FEATURES,
}
"""For each set of features, how many features of an operator a network reads.

`device` is the set that `Block.features` computes from latencies and the graph. `layers` is the set
that TOP's paper lists: types, shapes and windows. `both` is both sets.
"""
WIDTH = 32
"""Length of the vector (the embedding) of an operator or a state."""
STATE_SCALARS = 5
"""Number of scalars that describe a state beside its embedding; see `Block.state_scalars`."""
ENDING_SCALARS = 4
"""Number of scalars that describe an ending beside its embedding; see `Block.ending_scalars`."""


@dataclass(frozen=True)
class Block:
    """A block to schedule: its operators in topological order, and their use of the device.

    Attributes
    ----------
    ops: (n,) ids of the operators in the graph.
    edges: (m, 2) edges as pairs of positions in `ops`, each once.
    us: (n,) latency of each operator when it runs alone, in microseconds.
    layers: (n, LAYER_FEATURES) features of the operators' types and shapes (`program.layers`); None
        if the graph does not have them.
    cores, memory: (n,) share of the device's cores, and of its bandwidth, that each operator uses
        while it runs; 0 if the latency model does not know the share.
    """

    ops: tuple[int, ...]
    edges: npt.NDArray[np.int64]
    us: Floats
    cores: Floats
    memory: Floats
    layers: Floats | None = None

    @classmethod
    def of(cls, graph: OpGraph, ops: Sequence[int], op_us: Floats, latency: LatencyModel) -> Block:
        """Make a block of some operators of a graph.

        Parameters
        ----------
        ops: operator ids in topological order.
        op_us: (num_ops,) latency of each operator of the graph in microseconds.
        """
        place = {op: i for i, op in enumerate(ops)}
        edges = [(place[u], place[v]) for u in ops for v in graph.successors(u) if v in place]
        picked = list(ops)
        cores = memory = np.zeros(len(ops))
        if isinstance(latency, ContendedLatency):
            cores = np.minimum(latency.op_cores[picked] / latency.cores, 1.0)
            memory = np.minimum(latency.memory_share[picked] / latency.bandwidth, 1.0)
        pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
        layers = None
        if graph.layers is not None:
            layers = layer_features([graph.layers[op] for op in picked])
        return cls(tuple(ops), pairs, op_us[picked], cores, memory, layers)

    def __len__(self) -> int:
        return len(self.ops)

    @cached_property
    def total_us(self) -> float:
        """Latency of all operators run one after the other, in microseconds."""
        return float(self.us.sum())

    @cached_property
    def successors(self) -> list[Mask]:
        """For each operator, the set of operators that read its output."""
        found = [0] * len(self)
        for source, target in self.edges.tolist():
            found[source] |= 1 << target
        return found

    @cached_property
    def reads(self) -> Floats:
        """(n, n) matrix: entry (i, j) is 1 where operator j reads operator i, and 0 elsewhere."""
        found = np.zeros((len(self), len(self)))
        found[self.edges[:, 0], self.edges[:, 1]] = 1.0
        return found

    @cached_property
    def _read_by(self) -> npt.NDArray[np.float32]:
        return np.ascontiguousarray(self.reads.T, dtype=np.float32)

    @cached_property
    def path_us(self) -> Floats:
        """(n,) microseconds of the longest path that ends in each operator and includes it."""
        found: Floats = self.us.copy()
        for op in range(len(self)):
            sources = np.flatnonzero(self.reads[:, op])
            if len(sources):
                found[op] += found[sources].max()
        return found

    @cached_property
    def levels(self) -> list[npt.NDArray[np.int64]]:
        """The operators of each level of the block.

        The level of an operator is the number of operators before it on the longest path that ends
        in it.
        """
        level = np.zeros(len(self), dtype=np.int64)
        for source, target in self.edges.tolist():
            level[target] = max(level[target], level[source] + 1)
        return [np.flatnonzero(level == i) for i in range(int(level.max(initial=-1)) + 1)]

    @cached_property
    def features(self) -> Floats:
        """(n, FEATURES) features of each operator, defined on any graph.

        TOP uses types and shapes (`layers`), which not every graph has. The features here describe
        - the latency: its logarithm relative to the mean, and its share of the longest path;
        - the use of the device: cores and bandwidth;
        - the position: number of inputs, number of readers, longest path to the operator and from
          it;
        - the size of the block.
        """
        path = max(float(self.path_us.max(initial=0.0)), 1e-12)
        from_us = self.us.copy()
        for op in reversed(range(len(self))):
            targets = np.flatnonzero(self.reads[op])
            if len(targets):
                from_us[op] += from_us[targets].max()
        mean = max(self.total_us / max(len(self), 1), 1e-12)
        return np.stack(
            [
                np.log(np.maximum(self.us / mean, 1e-3)), self.us / path, self.cores, self.memory,
                np.minimum(self.reads.sum(0), 8) / 4, np.minimum(self.reads.sum(1), 8) / 4,
                self.path_us / path, from_us / path, np.full(len(self), len(self) / 32),
            ],
            axis=1,
        )  # fmt: skip

    def inputs(self, count: int) -> Floats:
        """(n, count) features of operators, for a network that takes `count` features of each.

        `INPUTS` says which set of features has `count` features.

        Raises
        ------
        InputError: the network takes types and shapes of operators, which the graph does not have.
        """
        if count == INPUTS["device"]:
            return self.features
        if self.layers is None:
            raise InputError(
                "the network takes types and shapes of operators, which this graph does not have; "
                "give the graph `layers`, or a network that was trained with `features='device'`"
            )
        if count == INPUTS["layers"]:
            return self.layers
        return np.concatenate([self.features, self.layers], axis=1)

    def rows(self, masks: Sequence[Mask]) -> Bools:
        """Convert sets of operators to rows of booleans, shape (len(masks), n)."""
        size = (len(self) + 7) // 8
        packed = b"".join(mask.to_bytes(size, "little") for mask in masks)
        shaped = np.frombuffer(packed, dtype=np.uint8).reshape(len(masks), size)
        found = np.unpackbits(shaped, axis=1, count=len(self), bitorder="little")
        rows: Bools = found.astype(bool)
        return rows

    def leaves(self, remaining: Bools) -> Bools:
        """(k, n) the leaves of each state: operators that no other operator of the state reads."""
        found: Bools = remaining & (remaining.astype(np.float32) @ self._read_by == 0)
        return found

    def bounds_us(self, remaining: Bools) -> tuple[Floats, Floats]:
        """Two latency bounds of each of k states, in microseconds, as two arrays of shape (k,).

        The first array holds the latency of the longest path of each state, which no schedule of
        the state can beat. The second array holds the sum of the latencies of the operators of each
        state.
        """
        path = np.where(remaining, self.path_us, 0.0).max(axis=1, initial=0.0)
        return path, remaining @ self.us

    def state_scalars(self, remaining: Bools, leaves: Bools) -> Floats:
        """(k, STATE_SCALARS) scalars that describe each of k states.

        The scalars stand for the state's total latency, its longest path, its use of cores and
        memory, and its number of leaves.
        """
        path, total = self.bounds_us(remaining)
        below = np.maximum(total, 1e-12)
        return np.stack(
            [
                total / max(self.total_us, 1e-12), path / below,
                remaining @ (self.us * self.cores) / below,
                remaining @ (self.us * self.memory) / below,
                np.minimum(leaves.sum(1), 8) / 8,
            ],
            axis=1,
        )  # fmt: skip

    def ending_bounds_us(self, groups: Sequence[Sequence[Mask]]) -> tuple[Floats, Floats]:
        """Two latency bounds of each of k endings, in microseconds, as two arrays of shape (k,).

        The first array holds the latency of the longest group of each ending. The second array
        holds the sum of the latencies of all operators of each ending.
        """
        longest = np.zeros(len(groups))
        total = np.zeros(len(groups))
        known: dict[Mask, float] = {}
        for i, ending in enumerate(groups):
            for group in ending:
                if group not in known:
                    known[group] = float(self.us[bits(group)].sum())
                longest[i] = max(longest[i], known[group])
                total[i] += known[group]
        return longest, total

    def ending_scalars(self, groups: Sequence[Sequence[Mask]], members: Bools) -> Floats:
        """(k, ENDING_SCALARS) scalars of each ending, which describe its use of the device.

        Parameters
        ----------
        groups: the groups of each ending.
        members: (k, n) the operators of each ending.
        """
        longest, total = self.ending_bounds_us(groups)
        below = np.maximum(longest, 1e-12)
        return np.stack(
            [
                longest / np.maximum(total, 1e-12),
                np.minimum(members @ (self.us * self.cores) / below, 8.0),
                np.minimum(members @ (self.us * self.memory) / below, 8.0),
                np.array([len(ending) for ending in groups]) / 8,
            ],
            axis=1,
        )  # fmt: skip


def perceptron(weights: Weights, name: str, rows: Floats) -> Floats:
    """Apply a multilayer perceptron: ReLU after each layer but the last."""
    layer = 0
    while f"{name}.{layer}.w" in weights:
        if layer:
            rows = np.maximum(rows, 0.0)
        rows = rows @ weights[f"{name}.{layer}.w"] + weights[f"{name}.{layer}.b"]
        layer += 1
    return rows


def embeddings(weights: Weights, block: Block) -> Floats:
    """(n, WIDTH) embeddings of the operators by TOP's Equation 5, in topological order.

    e_v = h1(sum of g1(e_u) over the operators u that v reads) + P s_v. The paper adds the features
    s_v themselves. Features and embeddings differ in width, so P maps the features to the width of
    an embedding.
    """
    found = np.zeros((len(block), WIDTH))
    messages = np.zeros((len(block), WIDTH))
    own = perceptron(weights, "p", block.inputs(len(weights["p.0.w"])))
    for ops in block.levels:
        gathered = block.reads[:, ops].T @ messages
        found[ops] = perceptron(weights, "h1", gathered) + own[ops]
        messages[ops] = perceptron(weights, "g1", found[ops])
    return found


def pooled(weights: Weights, block: Block) -> Floats:
    """(n, WIDTH) the result of network g2 for each embedding. TOP's Equation 6 sums these rows."""
    return perceptron(weights, "g2", embeddings(weights, block))


def states(weights: Weights, gathered: Floats) -> Floats:
    """(k, WIDTH) embeddings of states by TOP's Equation 6, z = h2(sum over the leaves of g2(e_v)).

    Parameters
    ----------
    gathered: (k, WIDTH) the sums over the leaves of each state.
    """
    return perceptron(weights, "h2", gathered)


def sigmoid(values: Floats) -> Floats:
    """1 / (1 + exp(-x)) for each x, computed without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * values))
