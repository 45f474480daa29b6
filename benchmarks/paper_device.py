"""Devices that exist on paper only: their prices are the same everywhere, and cost no measuring.

Operators take what a launch, their arithmetic and their bytes take by a data sheet; those that run
at once share cores and bandwidth as `tvm_interop.scheduling.simulation.Contention` says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from tvm_interop import OpGraph
from tvm_interop.latency.contended import ContendedLatency
from tvm_interop.latency.described import DEVICES, DeviceDescription, described_latency
from tvm_interop.models import catalog
from tvm_interop.models.describe import node_flops, value_shapes
from tvm_interop.models.units import schedule_units
from tvm_interop.scheduling import OperatorTraits

_FLOAT_BYTES = 4
V100 = DEVICES["v100"]
"""The GPU of the IOS paper."""
TWO_CORES = DeviceDescription(200e3, 20e3, 0.5, 2, math.inf, 1.5)
"""Two cores of a CPU with AVX-512; an operator runs on one of them."""


@dataclass(frozen=True)
class PaperNetwork:
    """A network's schedule units on the device.

    Attributes
    ----------
    traits: what each operator computes and moves.
    """

    name: str
    graph: OpGraph
    latency: ContendedLatency
    traits: tuple[OperatorTraits, ...]


def paper_network(
    name: str, sheet: DeviceDescription = V100, image_size: int | None = None
) -> PaperNetwork:
    """The network `name`, one of `models.list()`, at batch 1; by default at its own image size."""
    graph, work = network_work(name, image_size)
    flops, nbytes, values = work.T
    transfers = sheet.link.transfers(graph) if sheet.link else None
    latency = described_latency(sheet, flops, nbytes, values, transfers)
    traits = tuple(OperatorTraits(f, b) for f, b in zip(flops, nbytes, strict=True))
    return PaperNetwork(name, graph, latency, traits)


def network_work(
    name: str, image_size: int | None = None, batch: int = 1
) -> tuple[OpGraph, npt.NDArray[np.float64]]:
    """The schedule units of a network; of each the flops, bytes moved and values written."""
    model = catalog.skeleton(name, batch, image_size)
    shapes = value_shapes(model)
    units = schedule_units(model)
    nodes = {node.name or node.output[0]: node for node in model.graph.node}
    work = [_work([nodes[member] for member in members], shapes) for members in units.members]
    # A unit writes one tensor, which all of its readers need whole.
    edge_bytes = [_FLOAT_BYTES * int(work[u][2]) for u, _ in units.edges]
    return OpGraph(units.names, units.edges, edge_bytes), np.array(work, dtype=np.float64)


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
