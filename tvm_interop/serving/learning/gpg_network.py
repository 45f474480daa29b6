"""The networks of GPG in PyTorch, for training. `scheduling.gpg_network` runs them in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ...scheduling.gpg_network import ENDING_SCALARS, INPUTS, STATE_SCALARS, WIDTH, Block


def perceptron(*widths: int) -> nn.Sequential:
    """Create linear layers of the given widths, with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class GraphNetwork(nn.Module):  # type: ignore[misc]
    """The graph network of TOP's paper, and its heads (the networks that read its result).

    The head of `gpg` is the policy mu. The heads of `gpg-scored` predict the latency of a stage and
    the makespan of the remaining operators.
    """

    def __init__(self, variant: str, features: str = "device") -> None:
        super().__init__()
        self.inputs = INPUTS[features]
        self.p = nn.Sequential(nn.Linear(self.inputs, WIDTH))
        for name in ("g1", "h1", "g2", "h2"):
            setattr(self, name, perceptron(WIDTH, 64, WIDTH))
        if variant == "gpg":
            self.mu = perceptron(WIDTH, 500, 128, 1)
        else:
            self.stage = perceptron(WIDTH + ENDING_SCALARS, 64, 32, 1)
            self.rest = perceptron(WIDTH + STATE_SCALARS, 64, 32, 1)

    def summands(self, union: Union) -> Any:
        """Return the output of network g2 for each operator's embedding: (operators, WIDTH)."""
        own = self.p(union.inputs(self.inputs))
        messages = own.new_zeros((0, WIDTH))
        found = []
        for ops, sources, targets in union.levels:
            gathered = own.new_zeros((len(ops), WIDTH))
            gathered = gathered.index_add(0, targets, messages[sources])
            embedded = self.h1(gathered) + own[ops]
            messages = torch.cat([messages, self.g1(embedded)])
            found.append(embedded)
        return self.g2(torch.cat(found)[union.place])

    def weights(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return the weights in the format of `scheduling.gpg_network`."""
        found = {}
        for name, net in self.named_children():
            for i, layer in enumerate(m for m in net if isinstance(m, nn.Linear)):
                found[f"{name}.{i}.w"] = layer.weight.detach().numpy().T.astype(np.float64)
                found[f"{name}.{i}.b"] = layer.bias.detach().numpy().astype(np.float64)
        return found


class Union:
    """Several blocks in one graph, without edges between blocks. Operators are sorted by level.

    A level holds operators that do not depend on each other. The graph network evaluates all
    operators of a level together.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.firsts = np.cumsum([0, *map(len, blocks)])
        self._blocks = blocks
        depth = max(len(block.levels) for block in blocks)
        by_level = [
            np.concatenate(
                [
                    block.levels[level] + first
                    for block, first in zip(blocks, self.firsts, strict=False)
                    if level < len(block.levels)
                ]
            )
            for level in range(depth)
        ]
        order = np.concatenate(by_level)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        self.place = torch.from_numpy(place)
        edges = np.concatenate(
            [block.edges + first for block, first in zip(blocks, self.firsts, strict=False)]
        )
        level_of = np.empty(len(order), dtype=np.int64)
        for level, ops in enumerate(by_level):
            level_of[ops] = level
        self.levels = []
        begin = 0
        for level, ops in enumerate(by_level):
            here = edges[level_of[edges[:, 1]] == level]
            self.levels.append(
                (
                    torch.from_numpy(ops),
                    torch.from_numpy(place[here[:, 0]]),
                    torch.from_numpy(place[here[:, 1]] - begin),
                )
            )
            begin += len(ops)

    def inputs(self, count: int) -> Any:
        """Return the inputs of a network for all operators, see `Block.inputs`."""
        return floats(np.concatenate([block.inputs(count) for block in self._blocks]))

    def spread(self, rows: Sequence[npt.NDArray[Any]]) -> Any:
        """Return the rows of all blocks as one matrix, with a column for each operator of a block.

        A row of one block holds zeros in the columns of the other blocks' operators.

        Parameters
        ----------
        rows: for each block, an array of (rows, operators of the block).
        """
        found = np.zeros((sum(map(len, rows)), self.firsts[-1]), dtype=np.float32)
        at = 0
        for i, block_rows in enumerate(rows):
            found[at : at + len(block_rows), self.firsts[i] : self.firsts[i + 1]] = block_rows
            at += len(block_rows)
        return torch.from_numpy(found)


def floats(values: Any) -> Any:
    """Return numbers as a float32 tensor."""
    return torch.as_tensor(np.asarray(values, dtype=np.float32))
