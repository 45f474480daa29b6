"""Simulated devices with latencies computed from data sheets.

The simulated latencies are the same on every machine and need no measurements. The latency of an
operator is made up of its launch, its arithmetic and its memory traffic. Operators that run at the
same time share cores and bandwidth as `tvm_interop.scheduling.simulation.Contention` describes.
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
from tvm_interop.latency.merged_convs import ConvShape, MergingConvs
from tvm_interop.models import catalog
from tvm_interop.models.describe import node_flops, value_shapes
from tvm_interop.models.layers import layer_of_nodes
from tvm_interop.models.units import schedule_units
from tvm_interop.scheduling import OperatorTraits

from .paper_kernels import paper_graph

_FLOAT_BYTES = 4
V100 = DEVICES["v100"]
"""The GPU of the IOS paper."""
TWO_CORES = DeviceDescription(200e3, 20e3, 0.5, 2, math.inf, 1.5)
"""A device of two CPU cores with AVX-512. Each operator runs on one core."""


@dataclass(frozen=True)
class PaperNetwork:
    """A network of the IOS paper's operators (schedule units) and its simulated latencies.

    Attributes
    ----------
    traits: floating-point operations and bytes of each schedule unit.
    """

    name: str
    graph: OpGraph
    latency: ContendedLatency
    traits: tuple[OperatorTraits, ...]


def paper_network(
    name: str, sheet: DeviceDescription = V100, image_size: int | None = None
) -> PaperNetwork:
    """A network at batch 1 on a simulated device.

    Parameters
    ----------
    name: one of `models.list()`.
    sheet: data sheet of the device.
    image_size: height and width of the image in pixels; None for the network's own size.
    """
    graph, work = network_work(name, image_size)
    flops, nbytes, values = work.T
    transfers = sheet.link.transfers(graph) if sheet.link else None
    latency = described_latency(sheet, flops, nbytes, values, transfers)
    traits = tuple(OperatorTraits(f, b) for f, b in zip(flops, nbytes, strict=True))
    return PaperNetwork(name, graph, latency, traits)


def paper_network_with_merges(
    name: str, sheet: DeviceDescription = V100, image_size: int | None = None
) -> tuple[PaperNetwork, MergingConvs]:
    """A network on a simulated device, and its latencies, including those of merged convolutions.

    The latency of a merged convolution follows the same rule as any operator's. The merged
    convolution writes more values, so it keeps more cores busy, and it reads its input only once.

    The parameters are as in `paper_network`.
    """
    network = paper_network(name, sheet, image_size)

    def price(conv: ConvShape) -> float:
        return described_latency(sheet, [conv.flops], [conv.nbytes], [conv.values]).op(0)

    convs = paper_graph(name, image_size).convs
    return network, MergingConvs(network.latency, convs, price)


def network_work(
    name: str, image_size: int | None = None, batch: int = 1
) -> tuple[OpGraph, npt.NDArray[np.float64]]:
    """A network as a graph of schedule units (operators grouped as in IOS), and each unit's work.

    The work is an array of shape (units, 3): floating-point operations, bytes read and written, and
    values written.
    """
    model = catalog.skeleton(name, batch, image_size)
    shapes = value_shapes(model)
    units = schedule_units(model)
    nodes = {node.name or node.output[0]: node for node in model.graph.node}
    work = [_work([nodes[member] for member in members], shapes) for members in units.members]
    # A unit writes one tensor, which all of its readers need whole.
    edge_bytes = [_FLOAT_BYTES * int(work[u][2]) for u, _ in units.edges]
    weights = frozenset(tensor.name for tensor in model.graph.initializer)
    layers = [
        layer_of_nodes([nodes[member] for member in members], name, shapes, weights)
        for name, members in zip(units.names, units.members, strict=True)
    ]
    return OpGraph(units.names, units.edges, edge_bytes, layers), np.array(work, dtype=np.float64)


def _work(
    nodes: Sequence[onnx.NodeProto], shapes: dict[str, tuple[int, ...]]
) -> tuple[int, int, int]:
    """Floating-point operations of a unit, bytes it reads and writes, and values it writes."""
    made = {value for node in nodes for value in node.output}
    read = {value for node in nodes for value in node.input if value}
    values_in = sum(math.prod(shapes[value]) for value in read - made)
    # A tensor that another operator of the unit reads is not counted as written to memory. Other
    # units hardly ever read such a tensor.
    values_out = sum(math.prod(shapes[value]) for value in made - read)
    flops = sum(node_flops(node, shapes) for node in nodes)
    return flops, _FLOAT_BYTES * (values_in + values_out), values_out
