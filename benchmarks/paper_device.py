"""Devices that exist on paper only: their prices are the same everywhere, and cost no measuring.

Operators take what a launch, their arithmetic and their bytes take by a data sheet; those that run
at once share cores and bandwidth as `tvm_interop.simulation.Contention` says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from tvm_interop import OpGraph
from tvm_interop.latency import LatencyModel, StageBatch
from tvm_interop.models import catalog
from tvm_interop.models.describe import node_flops, value_shapes
from tvm_interop.models.units import schedule_units
from tvm_interop.scheduling import OperatorTraits
from tvm_interop.simulation import Contention

_FLOAT_BYTES = 4
_CHUNK = 1 << 16
"""Stages simulated at once: enough to be fast, few enough to stay in memory."""


@dataclass(frozen=True)
class Datasheet:
    """A device in figures.

    Attributes
    ----------
    flops_a_us, bytes_a_us: of the whole device.
    launch_us: what the smallest operator takes.
    cores: a CPU's cores or a GPU's multiprocessors.
    values_a_core: an operator keeps a core busy for every so many values that it writes.
    bandwidth: how many operators that only move bytes run at once at full speed.
    """

    flops_a_us: float
    bytes_a_us: float
    launch_us: float
    cores: int
    values_a_core: float
    bandwidth: float


V100 = Datasheet(15.7e6, 900e3, 3.0, 80, 2048, 1.0)
"""The GPU of the IOS paper, by NVIDIA's figures for the Tesla V100 SXM2: fp32, HBM2, the threads
that a multiprocessor holds. The launch is ours to choose."""
TWO_CORES = Datasheet(200e3, 20e3, 0.5, 2, math.inf, 1.5)
"""Two cores of a CPU with AVX-512; an operator runs on one of them."""


class PaperDevice(LatencyModel):
    """Prices operators and stages by simulation.

    A stage takes what `tvm_interop.simulation.simulate` says of its groups on a stream each, every
    group's operators in order; here for many stages at once.

    Attributes
    ----------
    op_us: (num_ops,) microseconds of each operator alone.
    contention: how those that run at once slow each other down; waits are free.
    """

    def __init__(self, op_us: Sequence[float] | npt.ArrayLike, contention: Contention) -> None:
        self.op_us = np.asarray(op_us, dtype=np.float64)
        self.contention = contention
        num_ops = len(self.op_us)
        cores, share = contention.op_cores, contention.memory_share
        self._op_cores = np.ones(num_ops) if cores is None else np.asarray(cores)
        self._memory_share = np.zeros(num_ops) if share is None else np.asarray(share)

    def op(self, op: int) -> float:
        return float(self.op_us[op])

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        batch = StageBatch.from_stages(stages)
        firsts = range(0, len(batch), _CHUNK)
        chunks = [self._simulate(batch, first, min(first + _CHUNK, len(batch))) for first in firsts]
        return np.concatenate([np.empty(0), *chunks])

    def _simulate(self, batch: StageBatch, first: int, last: int) -> npt.NDArray[np.float64]:
        """Run stages `first` to `last` side by side, each on a clock of its own."""
        at, end = _groups_of(batch, first, last)
        running = at < end
        left_us = np.where(running, self.op_us[_ops_at(batch, at)], 0.0)
        took_us = np.zeros(len(at))
        while running.any():
            ops = _ops_at(batch, at)
            share = np.where(running, self._memory_share[ops], 0.0)
            cores = np.where(running, self._op_cores[ops], 0.0)
            compute = np.maximum(1.0, cores.sum(axis=1) / self.contention.cores)
            memory = np.maximum(1.0, share.sum(axis=1) / self.contention.bandwidth)
            slowdown = (1 - share) * compute[:, None] + share * memory[:, None]
            ends_in_us = np.where(running, left_us * slowdown, np.inf)
            step_us = ends_in_us.min(axis=1)
            step_us[np.isinf(step_us)] = 0.0  # Stages that are through.
            ended = running & (ends_in_us <= step_us[:, None])
            took_us += step_us
            at += ended
            running = at < end
            next_us = np.where(running, self.op_us[_ops_at(batch, at)], 0.0)
            left_us = np.where(ended, next_us, left_us - step_us[:, None] / slowdown)
        return took_us


def _groups_of(
    batch: StageBatch, first: int, last: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where the groups of stages begin and end in `batch.ops`, shape (stages, most groups).

    Stages of fewer groups are filled up with empty ones.
    """
    bounds = np.concatenate([[0], batch.stage_ends])[first : last + 1]
    num_groups = np.diff(bounds)
    stage = np.repeat(np.arange(last - first), num_groups)
    slot = np.arange(bounds[0], bounds[-1]) - np.repeat(bounds[:-1], num_groups)
    group_begins = np.concatenate([[0], batch.group_ends[:-1]])
    begin = np.zeros((last - first, int(num_groups.max(initial=0))), dtype=np.int64)
    end = np.zeros_like(begin)
    begin[stage, slot] = group_begins[bounds[0] : bounds[-1]]
    end[stage, slot] = batch.group_ends[bounds[0] : bounds[-1]]
    return begin, end


def _ops_at(batch: StageBatch, at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The operators there; any one where a group is through."""
    return batch.ops[np.minimum(at, len(batch.ops) - 1)]


@dataclass(frozen=True)
class PaperNetwork:
    """A network's schedule units on the device.

    Attributes
    ----------
    traits: what each operator computes and moves.
    """

    name: str
    graph: OpGraph
    latency: PaperDevice
    traits: tuple[OperatorTraits, ...]


def paper_network(name: str, sheet: Datasheet = V100) -> PaperNetwork:
    """The network `name`, one of `models.list()`, at its own size and batch 1."""
    model = catalog.skeleton(name)
    shapes = value_shapes(model)
    units = schedule_units(model)
    nodes = {node.name or node.output[0]: node for node in model.graph.node}
    work = [_work([nodes[member] for member in members], shapes) for members in units.members]
    flops, nbytes, values = np.array(work, dtype=np.float64).T
    cores = np.clip(np.ceil(values / sheet.values_a_core), 1, sheet.cores)
    compute_us = flops / (sheet.flops_a_us * cores / sheet.cores)
    memory_us = nbytes / sheet.bytes_a_us
    op_us = sheet.launch_us + compute_us + memory_us
    contention = Contention(
        cores=sheet.cores,
        bandwidth=sheet.bandwidth,
        op_cores=cores.tolist(),
        memory_share=(memory_us / op_us).tolist(),
    )
    traits = tuple(OperatorTraits(f, b) for f, b in zip(flops, nbytes, strict=True))
    return PaperNetwork(
        name, OpGraph(units.names, units.edges), PaperDevice(op_us, contention), traits
    )


def _work(
    nodes: Sequence[onnx.NodeProto], shapes: dict[str, tuple[int, ...]]
) -> tuple[int, int, int]:
    """Flops of a unit, bytes it reads and writes, and how many values it writes."""
    made = {value for node in nodes for value in node.output}
    read = {value for node in nodes for value in node.input if value}
    values_in = sum(math.prod(shapes[value]) for value in read - made)
    # What other units read of it is hardly ever what its own operators do.
    values_out = sum(math.prod(shapes[value]) for value in made - read)
    flops = sum(node_flops(node, shapes) for node in nodes)
    return flops, _FLOAT_BYTES * (values_in + values_out), values_out
