"""The models that are served, and the device that serves them, in figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..latency.base import LatencyModel, op_latencies
from ..latency.contended import ContendedLatency
from ..latency.described import DeviceDescription
from ..plain_data import is_finite, is_whole
from ..program.graph import OpGraph


@dataclass(frozen=True)
class ServingDevice:
    """A device that several instances share, and what its host adds.

    While some operators run, arithmetic takes max(1, the cores they keep busy / `cores`) times as
    long as alone and memory traffic max(1, their memory shares together / `bandwidth`) times; an
    operator is slowed down by the mean of the two, weighed by its memory share, and by
    1 + `interference` * (k - 1) where k operators run. Without interference this is
    `scheduling.simulation.Contention`, in which more at once never lowers throughput.

    Attributes
    ----------
    cores, bandwidth, wait_us: as in `Contention`.
    interference: what each further running operator costs all others, as a share.
    barrier_us: what the host takes to notice that a stage has ended, of schedules with barriers.
    launch_us: what the one host thread takes to launch an operator. 0 where the operators'
        latencies have it in them, as those of `DeviceDescription` do.
    """

    cores: float = math.inf
    bandwidth: float = math.inf
    interference: float = 0.0
    wait_us: float = 0.0
    barrier_us: float = 0.0
    launch_us: float = 0.0

    def __post_init__(self) -> None:
        for name in ("cores", "bandwidth"):
            value = getattr(self, name)
            if not (value == math.inf or is_finite(value)) or value <= 0:
                raise InputError(
                    f"`{name}` is {value!r}; it must be a number above 0, or inf for no limit"
                )
        for name in ("interference", "wait_us", "barrier_us", "launch_us"):
            value = getattr(self, name)
            if not is_finite(value) or value < 0:
                raise InputError(f"`{name}` is {value!r}; it must be a number, 0 or more")

    @classmethod
    def described(cls, device: DeviceDescription, interference: float = 0.0) -> ServingDevice:
        """The device of a data sheet."""
        return cls(device.cores, device.bandwidth, interference)

    def with_interference(self, interference: float) -> ServingDevice:
        """The same device but for that."""
        return replace(self, interference=interference)

    @property
    def packed(self) -> bytes:
        """As the native functions take it."""
        figures = (self.cores, self.bandwidth, self.interference)
        return np.array([*figures, self.wait_us, self.barrier_us, self.launch_us]).tobytes()


@dataclass(frozen=True)
class OperatorCosts:
    """What the operators of a model ask of the device, each alone.

    Attributes
    ----------
    op_us: (num_ops,) microseconds.
    op_cores: (num_ops,) how many cores each keeps busy.
    memory_share: (num_ops,) the share of its time that each waits for memory, from 0 to 1.
    """

    op_us: npt.NDArray[np.float64]
    op_cores: npt.NDArray[np.float64]
    memory_share: npt.NDArray[np.float64]

    @classmethod
    def of(cls, latency: LatencyModel, graph: OpGraph) -> OperatorCosts:
        """The costs by a latency model; without cores in it, each operator counts as using one."""
        op_us = op_latencies(latency, graph.names)
        if isinstance(latency, ContendedLatency):
            return cls(op_us, latency.op_cores, latency.memory_share)
        return cls(op_us, np.ones(graph.num_ops), np.zeros(graph.num_ops))

    def check(self, graph: OpGraph, model: str) -> None:
        """Refuse columns of another length or with numbers of no use, naming the operator."""
        for name, most in (("op_us", math.inf), ("op_cores", math.inf), ("memory_share", 1.0)):
            column = np.asarray(getattr(self, name), dtype=np.float64)
            if column.shape != (graph.num_ops,):
                raise InputError(
                    f"`{name}` of model `{model}` has shape {column.shape}; give one number for "
                    f"each of its {graph.num_ops} operators"
                )
            for op in np.flatnonzero(~(np.isfinite(column) & (column >= 0) & (column <= most))):
                raise InputError(
                    f"`{name}` of operator `{graph.names[op]}` of model `{model}` is {column[op]}; "
                    f"it must be from 0 to {most}"
                )


@dataclass(frozen=True)
class ServedModel:
    """A model that is served.

    Attributes
    ----------
    name: of the model.
    graph: its operators.
    costs: what they ask of the device, by batch size; 1 is needed.
    blocks: the model as a chain of blocks, each a tuple of operators; by default those of
        `OpGraph.blocks`.
    """

    name: str
    graph: OpGraph
    costs: Mapping[int, OperatorCosts]
    blocks: tuple[tuple[int, ...], ...] = field(default=())

    def __post_init__(self) -> None:
        if self.graph.num_ops == 0:
            raise InputError(f"model `{self.name}` has no operators; there is nothing to serve")
        if 1 not in self.costs or not all(is_whole(b) and b > 0 for b in self.costs):
            raise InputError(
                f"model `{self.name}` has costs for batches of {sorted(self.costs)}; give whole "
                "numbers above 0, and 1 among them"
            )
        for costs in self.costs.values():
            costs.check(self.graph, self.name)
        if not self.blocks:
            object.__setattr__(self, "blocks", self.graph.blocks())
        block_of = {op: i for i, block in enumerate(self.blocks) for op in block}
        if sorted(op for block in self.blocks for op in block) != list(range(self.graph.num_ops)):
            raise InputError(
                f"the blocks of model `{self.name}` do not hold each of its operators once"
            )
        for source, target in self.graph.edges:
            if block_of[source] > block_of[target]:
                raise InputError(
                    f"operator `{self.graph.names[target]}` of model `{self.name}` reads one of a "
                    "later block; the blocks must form a chain"
                )

    @classmethod
    def priced(
        cls,
        name: str,
        graph: OpGraph,
        latency: LatencyModel,
        batches: Mapping[int, LatencyModel] | None = None,
        blocks: Sequence[Sequence[int]] = (),
    ) -> ServedModel:
        """A model with the prices of `latency` at batch 1, and of `batches` at others."""
        by_batch = {1: latency, **(batches or {})}
        costs = {batch: OperatorCosts.of(prices, graph) for batch, prices in by_batch.items()}
        return cls(name, graph, costs, tuple(tuple(block) for block in blocks))

    def slower(self, times: float) -> ServedModel:
        """The same model with operators that take so many times as long."""
        costs = {batch: replace(c, op_us=c.op_us * times) for batch, c in self.costs.items()}
        return replace(self, costs=costs)

    def divided(self, count: int) -> ServedModel:
        """The same model, its blocks joined into at most `count` blocks of about equal time.

        The longest of them is as short as it can be; ties: the first ones are as long as fits.
        """
        if not is_whole(count) or count < 1:
            raise InputError(f"a model cannot be divided into {count!r} blocks; give 1 or more")
        op_us = self.costs[1].op_us
        block_us = [float(op_us[list(block)].sum()) for block in self.blocks]
        sums = {
            sum(block_us[i:j]) for i in range(len(block_us)) for j in range(i, len(block_us) + 1)
        }
        for most_us in sorted(sums):
            if most_us < max(block_us):
                continue
            cells: list[list[int]] = []
            filled_us = math.inf
            for us, block in zip(block_us, self.blocks, strict=True):
                if filled_us + us > most_us * (1 + 1e-12):
                    cells.append([])
                    filled_us = 0.0
                cells[-1] += block
                filled_us += us
            if len(cells) <= count:
                return replace(self, blocks=tuple(map(tuple, cells)))
        return self
