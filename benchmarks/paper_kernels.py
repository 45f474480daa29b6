"""The kernels of the networks of the paper on IOS, on a simulated GPU with thread blocks.

The paper ran cuDNN's kernels. Only their work is known: flops, bytes and the sizes of the matrix
product. This module assumes their thread blocks:
- A convolution or matrix product computes tiles of `tile` by `tile` values, one tile a block. A
  block has 256 threads with 128 registers each. Its shared memory holds tiles of both inputs for
  two pipeline stages.
- A depthwise convolution computes one value a thread. Its blocks compute at a share `depthwise` of
  the speed of other kernels. The rest of the arithmetic speed is free for other blocks.
- Any other operator moves bytes, one value a thread. A ReLU behind a convolution is part of its
  kernel. Any other ReLU is a kernel of its own, and so is each further term of a sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from tvm_interop import OpGraph
from tvm_interop.latency.block_device import BlockDevice
from tvm_interop.latency.block_latency import BlockLatency
from tvm_interop.latency.gpu_blocks import BlockKernel
from tvm_interop.latency.merged_convs import ConvShape, MergingConvs
from tvm_interop.models import catalog
from tvm_interop.models.describe import node_flops, value_shapes
from tvm_interop.models.units import schedule_units
from tvm_interop.program.kernel_demand import KernelDemand

_FLOAT_BYTES = 4
_PRODUCT_THREADS, _PRODUCT_REGISTERS, _SUMMED = 256, 128, 8
_THREADS, _REGISTERS = 256, 32
_PRODUCTS = ("Conv", "Gemm", "MatMul")


@dataclass(frozen=True)
class Work:
    """The work of one kernel: its computation and its memory traffic.

    Attributes
    ----------
    kind: `product`, `depthwise` or `bytes`.
    rows, columns: height and width of the matrix that a product writes. For other kinds, `rows` is
        the number of values that it writes, and `columns` is 1.
    """

    kind: str
    rows: int
    columns: int
    flops: float
    nbytes: float


@dataclass(frozen=True)
class PaperGraph:
    """The schedule units of a network, which are its operators as the IOS paper counts them.

    Attributes
    ----------
    work: the kernels of each unit, in order.
    convs: the units that are one convolution, perhaps with a ReLU behind it, by id.
    """

    name: str
    graph: OpGraph
    work: tuple[tuple[Work, ...], ...]
    convs: dict[int, ConvShape]


def paper_graph(name: str, image_size: int | None = None, batch: int = 1) -> PaperGraph:
    """A network of `models.list()`.

    Parameters
    ----------
    image_size: height and width of the image in pixels; None for the network's own size.
    batch: number of images.
    """
    model = catalog.skeleton(name, batch, image_size)
    shapes = value_shapes(model)
    units = schedule_units(model)
    nodes = {node.name or node.output[0]: node for node in model.graph.node}
    members = [[nodes[member] for member in of_unit] for of_unit in units.members]
    convs = {i: _conv_shape(of_unit, shapes) for i, of_unit in enumerate(members)}
    return PaperGraph(
        name,
        OpGraph(units.names, units.edges),
        tuple(_work(of_unit, shapes) for of_unit in members),
        {i: conv for i, conv in convs.items() if conv is not None},
    )


def demand_of(work: Work, tile: int) -> KernelDemand:
    """The resources of a multiprocessor that a kernel is assumed to need to do `work`."""
    if work.kind == "product":
        blocks = -(-work.rows // tile) * -(-work.columns // tile)
        shared = 2 * 2 * tile * _SUMMED * _FLOAT_BYTES
        return KernelDemand(
            work.kind, blocks, _PRODUCT_THREADS, _PRODUCT_REGISTERS, shared, assumed=True
        )
    blocks = -(-work.rows // _THREADS)
    return KernelDemand(work.kind, blocks, _THREADS, _REGISTERS, assumed=True)


def kernel_of(work: Work, device: BlockDevice, tile: int, depthwise: float) -> BlockKernel:
    """A kernel for `work` on a device; the head of the file explains `tile` and `depthwise`."""
    efficiency = depthwise if work.kind == "depthwise" else 1.0
    return device.kernel(demand_of(work, tile), work.flops, work.nbytes, efficiency)


def paper_latency(
    found: PaperGraph, device: BlockDevice, tile: int, depthwise: float
) -> MergingConvs:
    """The latencies of a network's operators, stages and merged convolutions on a device."""
    kernels = [
        [kernel_of(work, device, tile, depthwise) for work in of_unit] for of_unit in found.work
    ]
    base = BlockLatency(kernels, device.gpu)

    def price(conv: ConvShape) -> float:
        work = [_conv_work(conv)]
        if conv.images > 1:
            # The merged output has the results of all convolutions, interleaved image by image. So
            # another kernel has to copy the results out.
            work.append(Work("bytes", conv.values, 1, 0, 2 * _FLOAT_BYTES * conv.values))
        return base.kernels_us([[[kernel_of(each, device, tile, depthwise) for each in work]]])

    return MergingConvs(base, found.convs, price)


def _work(nodes: Sequence[onnx.NodeProto], shapes: dict[str, tuple[int, ...]]) -> tuple[Work, ...]:
    products = {node.output[0] for node in nodes if node.op_type in _PRODUCTS}
    found: list[Work] = []
    for node in nodes:
        if node.op_type == "Relu" and node.input[0] in products:
            continue
        found += _work_of_node(node, shapes)
    return tuple(found)


def _work_of_node(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> list[Work]:
    output = shapes[node.output[0]]
    values = math.prod(output)
    read = [math.prod(shapes[value]) for value in node.input if value]
    if node.op_type == "Sum":
        # cuDNN adds two tensors at a time, so a sum of n tensors takes n - 1 kernels.
        return [Work("bytes", values, 1, values, 3 * _FLOAT_BYTES * values)] * (len(read) - 1)
    nbytes = _FLOAT_BYTES * (sum(read) + values)
    if node.op_type not in _PRODUCTS:
        return [Work("bytes", values, 1, 0, nbytes)]
    flops = node_flops(node, shapes)
    if _attribute(node, "group", [1])[0] > 1:
        return [Work("depthwise", values, 1, flops, nbytes)]
    if node.op_type == "Conv":
        return [Work("product", output[0] * math.prod(output[2:]), output[1], flops, nbytes)]
    return [Work("product", math.prod(output[:-1]), output[-1], flops, nbytes)]


def _conv_work(conv: ConvShape) -> Work:
    rows = conv.images * math.prod(conv.output)
    return Work("product", rows, conv.channels, conv.flops, conv.nbytes)


def _conv_shape(
    nodes: Sequence[onnx.NodeProto], shapes: dict[str, tuple[int, ...]]
) -> ConvShape | None:
    """The unit's convolution; None if the unit has more than a convolution and a ReLU behind it."""
    kinds = [node.op_type for node in nodes]
    if kinds not in (["Conv"], ["Conv", "Relu"]):
        return None
    node = nodes[0]
    if _attribute(node, "group", [1])[0] > 1 or max(_attribute(node, "dilations", [1])) > 1:
        return None
    weight, data = shapes[node.input[1]], shapes[node.input[0]]
    top, left, bottom, right = _attribute(node, "pads", [0, 0, 0, 0])
    down, across = _attribute(node, "strides", [1, 1])
    return ConvShape(
        node.input[0],
        (data[2], data[3]),
        data[1],
        weight[0],
        (weight[2], weight[3]),
        (top, left, bottom, right),
        (down, across),
        "relu" if len(nodes) > 1 else "",
        data[0],
    )


def _attribute(node: onnx.NodeProto, name: str, default: list[int]) -> list[int]:
    for attribute in node.attribute:
        if attribute.name == name:
            return list(attribute.ints) or [attribute.i]
    return default
