"""Descriptions of served models and of the device, as the simulator and the policies need them."""

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
    """A device that several instances share, with the overheads of its host.

    Let k operators run at the same time. Compared with operators that run alone, their arithmetic
    then takes max(1, sum of their cores / `cores`) times as long, and their memory traffic takes
    max(1, sum of their memory shares / `bandwidth`) times as long. The slowdown of an operator is
    the mean of these two factors, weighted by its memory share, times 1 + `interference` * (k - 1).
    Without interference this is the model of `scheduling.simulation.Contention`, in which more
    concurrency never lowers throughput.

    Attributes
    ----------
    cores: number of cores of the device, as in `Contention`; inf for no limit.
    bandwidth: number of memory-bound operators that run at full speed at the same time.
    wait_us: microseconds that a wait across streams costs the waiting stream.
    interference: slowdown, as a fraction, that each concurrently running operator adds to every
        other operator.
    barrier_us: microseconds that the host needs to notice the end of a stage, for schedules with
        barriers.
    launch_us: microseconds that the single host thread needs to launch an operator. 0 if the
        latencies of the operators include the launch, as latencies of `DeviceDescription` do.
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
        """Convert a device description, such as one in the module `devices`, to this class."""
        return cls(device.cores, device.bandwidth, interference)

    def with_interference(self, interference: float) -> ServingDevice:
        """Return a copy of the device with another interference."""
        return replace(self, interference=interference)

    @property
    def packed(self) -> bytes:
        """The fields as float64 bytes, in the layout that the native functions expect."""
        figures = (self.cores, self.bandwidth, self.interference)
        return np.array([*figures, self.wait_us, self.barrier_us, self.launch_us]).tobytes()


@dataclass(frozen=True)
class OperatorCosts:
    """For each operator of a model: its latency and its use of the device when it runs alone.

    Attributes
    ----------
    op_us: (num_ops,) latency of each operator in microseconds.
    op_cores: (num_ops,) number of cores that each operator keeps busy.
    memory_share: (num_ops,) share of its time that each operator waits for memory, from 0 to 1.
    """

    op_us: npt.NDArray[np.float64]
    op_cores: npt.NDArray[np.float64]
    memory_share: npt.NDArray[np.float64]

    @classmethod
    def of(cls, latency: LatencyModel, graph: OpGraph) -> OperatorCosts:
        """Return the costs that a latency model gives.

        If the latency model does not know the cores of operators, each operator is assumed to use
        one core and no memory bandwidth.
        """
        op_us = op_latencies(latency, graph.names)
        if isinstance(latency, ContendedLatency):
            return cls(op_us, latency.op_cores, latency.memory_share)
        return cls(op_us, np.ones(graph.num_ops), np.zeros(graph.num_ops))

    def check(self, graph: OpGraph, model: str) -> None:
        """Check the length and the values of each array.

        Raises
        ------
        InputError: an array does not have one number per operator, or a number is out of range; the
            message names the operator.
        """
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
    """A served model: its graph, the costs of its operators, and its division into blocks.

    Attributes
    ----------
    name: name of the model.
    graph: operator graph of the model.
    costs: costs of the operators for each batch size; batch size 1 is required.
    blocks: division of the model into a chain of blocks, each a tuple of operators. By default
        `OpGraph.blocks` of the graph.
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
                f"model `{self.name}` has costs for the batch sizes {sorted(self.costs)}; "
                "batch sizes must be whole numbers above 0, and 1 must be among them"
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
                    f"operator `{self.graph.names[target]}` of model `{self.name}` reads an "
                    "operator of a later block; the blocks must form a chain"
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
        """Create a model with costs from latency models.

        `latency` gives the costs at batch size 1. `batches` gives the costs at other batch sizes.
        """
        by_batch = {1: latency, **(batches or {})}
        costs = {batch: OperatorCosts.of(prices, graph) for batch, prices in by_batch.items()}
        return cls(name, graph, costs, tuple(tuple(block) for block in blocks))

    def slower(self, times: float) -> ServedModel:
        """Return the model with the latency of each operator multiplied by `times`."""
        costs = {batch: replace(c, op_us=c.op_us * times) for batch, c in self.costs.items()}
        return replace(self, costs=costs)

    def divided(self, count: int) -> ServedModel:
        """Return the model with neighbouring blocks joined into at most `count` blocks.

        The division makes the latency of the slowest block as low as possible. The first new block
        joins as many neighbouring blocks as fit into this latency, then the second new block does,
        and so on.
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
