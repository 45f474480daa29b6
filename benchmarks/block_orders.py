"""Runs Opara, Nimble and other launch orders on the simulator of thread blocks.

A network has either TVM's kernels, whose blocks, threads, registers and shared memory are in
`results/kernel_demands.json`, or kernels of cuDNN as `paper_kernels` assumes them. The times of all
kernels are computed from data sheets.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm_interop import OpGraph, Schedule, schedule
from tvm_interop.latency.block_device import BlockDevice
from tvm_interop.latency.gpu_blocks import BlockGpu, BlockKernel
from tvm_interop.machine.gpu_traits import largest_share
from tvm_interop.machine.multiprocessors import GPUS
from tvm_interop.program.kernel_demand import KernelDemand
from tvm_interop.program.traits import OperatorTraits
from tvm_interop.scheduling.block_simulation import BlockRun, simulate_blocks

from .block_calibration import GAP_US, Parameters
from .kernel_demands import FLOPS_PER_BYTE, graph_of, traits_of
from .paper_kernels import Work, demand_of, kernel_of, paper_graph

SHEETS = {"a100": (19.5e6, 1555e3, "sm_80"), "rtx2080super": (11.2e6, 496e3, "sm_80")}
"""The GPUs of the paper on Opara: flops and bytes per microsecond, and the architecture for which
the kernels were compiled.

The figures are NVIDIA's for fp32: of the A100 PCIe with 40 GB, and of the RTX 2080 SUPER. The
kernels have not been compiled for sm_75, the architecture of the RTX 2080 SUPER. Blocks and threads
are the same on every architecture. Registers and shared memory are assumed to be those of sm_80."""
GRAPH_LAUNCH_US = 1.0
"""Microseconds from one kernel of a CUDA graph to the next. This is our own assumption."""
ORDERS = 1000
FEWER_ORDERS = {"nasnet_a": 100}
"""The number of random orders of a network that are simulated if 1,000 would take too long."""
SEED = 2023


@dataclass(frozen=True)
class Subject:
    """A network on one GPU.

    Attributes
    ----------
    made_by: `TVM`, or `assumed` for kernels of `paper_kernels`.
    kernels, traits: for each operator, by id, its kernels, and the traits that decide its place in
        Opara's launch order.
    """

    network: str
    gpu: str
    made_by: str
    graph: OpGraph
    kernels: Sequence[Sequence[BlockKernel]]
    traits: Sequence[OperatorTraits]
    on: BlockGpu


@dataclass(frozen=True)
class Orders:
    """The makespans of a network's schedules on one GPU, in microseconds.

    Attributes
    ----------
    made_by: `TVM`, or `assumed` for kernels of `paper_kernels`.
    launch_us: microseconds from one launch to the next.
    least_us: lower bound of the time of any schedule. It is the largest of four times: of the
        longest path, of all launches, of all arithmetic, and of all memory traffic.
    sequential_us: one stream, in order of the ids.
    nimble_us: Nimble's streams, launched by the ids.
    ids_us, paper_us: Opara's streams, launched in the order of the ids, and in the launch order of
        the paper on Opara.
    best_us, median_us, worst_us: the best, the median and the worst time of Opara's streams,
        launched in random orders.
    orders: number of random orders.
    queued: for the paper's order, the share of operators that were ready to start and had to wait
        for free multiprocessors.
    """

    network: str
    gpu: str
    made_by: str
    launch_us: float
    least_us: float
    sequential_us: float
    nimble_us: float
    ids_us: float
    paper_us: float
    best_us: float
    median_us: float
    worst_us: float
    orders: int
    queued: float


def device_of(gpu: str, found: Parameters, launch_us: float) -> BlockDevice:
    """A GPU of the paper on Opara with the efficiency and the cost of a wait fitted on a V100."""
    flops_a_us, bytes_a_us, _ = SHEETS[gpu]
    described = GPUS[gpu]
    return BlockDevice(
        described.arch,
        described.multiprocessors,
        flops_a_us,
        bytes_a_us,
        launch_us,
        GAP_US,
        GAP_US,
        found.efficiency,
    )


def compiled(
    name: str, network: dict[str, Any], gpu: str, found: Parameters, launch_us: float
) -> Subject:
    """A network of `kernel_demands.json`. An operator's launches share its work equally."""
    device = device_of(gpu, found, launch_us)
    traits = traits_of(network, SHEETS[gpu][2])
    kernels = [
        [device.kernel(d, of_op.flops / len(of_op.kernels), of_op.nbytes / len(of_op.kernels))
         for d in of_op.kernels]
        for of_op in traits
    ]  # fmt: skip
    traits = [replace(of_op, demand=largest_share(of_op.kernels, device.arch)) for of_op in traits]
    return Subject(name, gpu, "TVM", graph_of(network), kernels, traits, device.gpu)


def assumed(name: str, gpu: str, found: Parameters, launch_us: float, batch: int = 1) -> Subject:
    """A network with the IOS paper's operators, and the kernels that cuDNN is assumed to run."""
    device = device_of(gpu, found, launch_us)
    units = paper_graph(name, batch=batch)

    def traits(work: Sequence[Work]) -> OperatorTraits:
        launches = tuple(demand_of(each, found.tile) for each in work)
        flops, nbytes = sum(each.flops for each in work), sum(each.nbytes for each in work)
        return OperatorTraits(flops, nbytes, largest_share(launches, device.arch), kernels=launches)

    return Subject(
        name,
        gpu,
        "assumed",
        units.graph,
        [[kernel_of(each, device, found.tile, found.depthwise) for each in w] for w in units.work],
        [traits(work) for work in units.work],
        device.gpu,
    )


def orders_of(subject: Subject, count: int = ORDERS) -> Orders:
    """Simulate a network in each kind of launch order, and in `count` random orders."""
    graph, kernels, gpu = subject.graph, subject.kernels, subject.on

    def us(made: Schedule) -> float:
        return simulate_blocks(graph, made, kernels, gpu).makespan_us

    ids = tuple(graph.topological_order())
    place = [ids.index(op) for op in range(graph.num_ops)]
    paper = schedule(graph, "opara", traits=subject.traits, flops_per_byte=FLOPS_PER_BYTE)
    nimble = schedule(graph, "nimble")
    rng = random.Random(f"{SEED} {subject.network}")
    drawn = sorted(us(along(graph, random_priorities(graph, rng))) for _ in range(count))
    run = simulate_blocks(graph, paper, kernels, gpu)
    return Orders(
        subject.network,
        subject.gpu,
        subject.made_by,
        gpu.launch_us,
        least_us(graph, kernels, gpu),
        us(Schedule("by ids", graph.names, streams=(ids,))),
        us(replace(nimble, launch_order=ids)),
        us(along(graph, place)),
        run.makespan_us,
        drawn[0],
        drawn[len(drawn) // 2],
        drawn[-1],
        count,
        queued_share(graph, run, kernels, gpu),
    )


def along(graph: OpGraph, priorities: Sequence[float]) -> Schedule:
    """Opara's streams, launched by priority: the ready operator of least priority comes next.

    Algorithm 2 of the paper on Opara gives the order of `along` in one case: no operator is bound
    by memory, and the priorities are the operators' demands for resources.
    """
    traits = [OperatorTraits(demand=float(p), memory_bound=False) for p in priorities]
    return schedule(graph, "opara", traits=traits)


def random_priorities(graph: OpGraph, rng: random.Random) -> list[float]:
    return [rng.random() for _ in range(graph.num_ops)]


def least_us(graph: OpGraph, kernels: Sequence[Sequence[BlockKernel]], gpu: BlockGpu) -> float:
    """A lower bound of the time of any schedule."""
    path_us = [0.0] * graph.num_ops
    for op in graph.topological_order():
        before = max((path_us[source] for source in graph.predecessors(op)), default=0.0)
        path_us[op] = before + sum(kernel.block_us for kernel in kernels[op])
    flat = [kernel for of_op in kernels for kernel in of_op]
    arithmetic_us = sum(k.blocks * k.block_us * k.busy for k in flat) / gpu.multiprocessors
    traffic_us = sum(k.blocks * k.nbytes for k in flat) / gpu.bytes_a_us
    return max(*path_us, len(flat) * gpu.launch_us, arithmetic_us, traffic_us)


def queued_share(
    graph: OpGraph, run: BlockRun, kernels: Sequence[Sequence[BlockKernel]], gpu: BlockGpu
) -> float:
    """The share of operators that could have started earlier, by their inputs, stream and
    launch."""
    end_us: dict[int, float] = {}
    stream_end_us: dict[int, float] = {}
    queued, launched = 0, 0
    for op, stream, start, end in run.timeline:
        ready_us = (launched + 1) * gpu.launch_us
        if stream in stream_end_us:
            ready_us = max(ready_us, stream_end_us[stream] + gpu.gap_us)
        for source in graph.predecessors(op):
            ready_us = max(ready_us, end_us[source] + gpu.wait_us)
        queued += bool(kernels[op]) and start > ready_us + 1e-6 * end
        launched += len(kernels[op])
        end_us[op] = stream_end_us[stream] = end
    return queued / graph.num_ops


@dataclass(frozen=True)
class Overlap:
    """A case of Fig. 3 of the paper on Opara (a few operators and their order), on one GPU.

    Attributes
    ----------
    ids_us: microseconds if the operators are launched in the order of `case`.
    paper_us: microseconds in the order of the paper's Algorithm 2.
    best_us: microseconds in the best of all orders.
    published: the share of the time that the paper's order saved on an A100, compared with the
        order of `case`.
    """

    case: str
    gpu: str
    ids_us: float
    paper_us: float
    best_us: float
    published: float


def fig_3(found: Parameters) -> list[Overlap]:
    """Both cases of Fig. 3, as section 2.3 of the paper describes them in words.

    The operators are independent, each on a stream of its own. The graphs and tensors of the figure
    are not known. Here the convolution is GoogLeNet's second 3x3 convolution as TVM's kernel
    computes it. The ReLU and the addition work on its output, one thread block for 1,024 values.
    """
    conv = KernelDemand("conv", 294, 128, 64, 6912)
    blocks = -(-_VALUES // 1024)
    relu = KernelDemand("relu", blocks, 1024, 10)
    add = KernelDemand("add", blocks, 1024, 12)
    work = {
        "convolution": (conv, 694_235_136, 3_654_400),
        "ReLU": (relu, _VALUES, 8 * _VALUES),
        "addition": (add, _VALUES, 12 * _VALUES),
    }
    cases = (
        (("ReLU", "ReLU", "convolution"), 0.136),
        (("convolution",) * 2 + ("addition",), 0.127),
    )
    return [
        _overlap(gpu, case, [work[name] for name in case], published, found)
        for gpu in SHEETS
        for case, published in cases
    ]


_VALUES = 192 * 56 * 56
"""Values of the output of GoogLeNet's second 3x3 convolution."""


def _overlap(
    gpu: str,
    case: Sequence[str],
    work: Sequence[tuple[KernelDemand, float, float]],
    published: float,
    found: Parameters,
) -> Overlap:
    device = device_of(gpu, found, GRAPH_LAUNCH_US)
    graph = OpGraph.from_edges(len(case), [])
    kernels = [[device.kernel(*each)] for each in work]
    traits = [
        OperatorTraits(flops, nbytes, largest_share((demand,), device.arch))
        for demand, flops, nbytes in work
    ]
    paper = schedule(graph, "opara", traits=traits, flops_per_byte=FLOPS_PER_BYTE)
    took_us = {
        order: simulate_blocks(
            graph, replace(paper, launch_order=order), kernels, device.gpu
        ).makespan_us
        for order in itertools.permutations(range(len(case)))
    }
    in_order = tuple(range(len(case)))
    assert paper.launch_order is not None
    return Overlap(
        ", ".join(case),
        gpu,
        took_us[in_order],
        took_us[paper.launch_order],
        min(took_us.values()),
        published,
    )
