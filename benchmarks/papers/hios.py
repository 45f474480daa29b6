"""HIOS: two convolutions on an A40 (section II), and examples of its algorithms (section IV)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm_interop import LatencyTable, OpGraph, Schedule, schedule
from tvm_interop.latency.block_device import BlockDevice
from tvm_interop.latency.described import COPY_US, DEVICES
from tvm_interop.latency.transfers import Link
from tvm_interop.machine.multiprocessors import GPUS
from tvm_interop.scheduling.block_simulation import simulate_blocks
from tvm_interop.scheduling.on_gpus import GpuPrices, with_windows

from ..block_calibration import GAP_US, Parameters
from ..paper_kernels import Work, kernel_of
from .record import Chart, Check, Record, Table, above, equal
from .registry import experiment
from .sources import made, read

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
_CHANNELS, _KERNEL, _FLOAT_BYTES = 48, 5, 4


@dataclass(frozen=True)
class Sheet:
    """A GPU of section II by its data sheet.

    Attributes
    ----------
    arch, multiprocessors: as in `Gpu`.
    flops_a_us, bytes_a_us: fp32 operations and bytes of memory traffic per microsecond.
    link: the connection to the other GPU.
    """

    arch: str
    multiprocessors: int
    flops_a_us: float
    bytes_a_us: float
    link: Link


def _a40() -> Sheet:
    described, gpu = DEVICES["a40"], GPUS["a40"]
    assert described.link is not None
    return Sheet(
        gpu.arch, gpu.multiprocessors, described.flops_a_us, described.bytes_a_us, described.link
    )


SHEETS = {
    "A40, NVLink": _a40(),
    "RTX A5500, NVLink": Sheet("sm_86", 80, 34.1e6, 768e3, Link(56.25e3, COPY_US)),
    "V100S, PCIe 3": Sheet("sm_70", 80, 16.4e6, 1134e3, Link(15.75e3, COPY_US)),
}
"""The platforms of Fig. 2. The figures are those of NVIDIA's data sheets. The bridge of an A5500
carries 112.5 GB/s in both directions together, as an A40's. PCIe 3 with 16 lanes carries 15.75 GB/s
in one direction. The fixed microseconds of a transfer are our own assumption, the same for all."""


@experiment("hios", "Figure 1", "two convolutions side by side on one GPU", seconds=2)
def figure_1() -> Record:
    """Simulates two convolutions block by block, side by side and one after the other."""
    sheet = SHEETS["A40, NVLink"]
    ratios = [_sequential_over_parallel(size, sheet) for size in SIZES]
    checks = []
    for size, ratio in zip(SIZES, ratios, strict=True):
        what = f"time one after the other over time side by side, {size}x{size}"
        # The paper measured parallel execution to be slower from 128x128 on. A ratio of exactly 1
        # counts as slower, so that equal times do not count as faster.
        checks.append(above(what, ratio, 1.0) if size <= 64 else Check(what, None, ratio, most=1.0))
    return Record(
        "Two 5x5 convolutions of 48 channels run faster side by side than one after the other if "
        "the image has up to 64x64 pixels, and slower from 128x128 on.",
        "an A40, simulated block by block",
        checks,
        why="The simulated multiprocessors lose nothing by working on two kernels at once, since "
        "there are no caches and no switches of context in the simulator. So side by side is "
        "never slower, and the half-empty last wave of one convolution is filled by the other.",
        remarks="The paper does not give the number of output channels. We assume 48. "
        + _on_two_cores(),
        charts=[
            Chart("HIOS, Figure 1", "lines", [f"{size}" for size in SIZES],
                  {"A40, simulated": ratios}, "time in turn over time side by side")
        ],
    )  # fmt: skip


def _on_two_cores() -> str:
    """Two convolutions on two CPU cores, measured by `benchmarks.streams_or_parts`."""
    rows = read("streams_or_parts")["quiet"]
    faster = sum(row["ratio"] < 1 for row in rows)
    return (
        f"On two CPU cores, two 3x3 convolutions side by side were faster than both divided over "
        f"both cores in {faster} of {len(rows)} sizes. {made('streams_or_parts')}"
    )


def _device(sheet: Sheet) -> BlockDevice:
    """The GPU with the efficiency and the launch time that were fitted on a V100."""
    found = _fitted()
    return BlockDevice(
        sheet.arch, sheet.multiprocessors, sheet.flops_a_us, sheet.bytes_a_us, found.launch_us,
        GAP_US, found.wait_us, found.efficiency,
    )  # fmt: skip


def _fitted() -> Parameters:
    return Parameters(**read("block_simulation")["parameters"])


def _conv(size: int, sheet: Sheet) -> Any:
    """The convolution of section II on images of `size` x `size`, as `paper_kernels` assumes it."""
    found = _fitted()
    values = size * size * _CHANNELS
    flops = 2.0 * values * _CHANNELS * _KERNEL**2
    nbytes = _FLOAT_BYTES * (2 * values + _CHANNELS**2 * _KERNEL**2)
    work = Work("product", size * size, _CHANNELS, flops, nbytes)
    return kernel_of(work, _device(sheet), found.tile, found.depthwise)


def _sequential_over_parallel(size: int, sheet: Sheet) -> float:
    graph = OpGraph.from_edges(["a", "b"], [])
    kernels = [[_conv(size, sheet)]] * 2
    us = [
        simulate_blocks(
            graph, Schedule("by hand", graph.names, streams=streams), kernels, _device(sheet).gpu
        ).makespan_us
        for streams in ([(0, 1)], [(0,), (1,)])
    ]
    return us[0] / us[1]


@experiment("hios", "Figure 2", "transfer of an input beside its convolution", seconds=2)
def figure_2() -> Record:
    """Computes the time of a transfer from the link's speed, and simulates the convolution."""
    shares = {
        name: [_transfer_over_compute(size, sheet) for size in SIZES]
        for name, sheet in SHEETS.items()
    }
    slow = shares["V100S, PCIe 3"]
    checks = [
        above(f"V100S over {name}, {size}x{size}: transfer over compute",
              slow[i] / shares[name][i], 1.0)
        for name in shares if name != "V100S, PCIe 3"
        for i, size in enumerate(SIZES)
    ]  # fmt: skip
    checks.append(
        above("A40, most of all sizes: transfer over compute", max(shares["A40, NVLink"]), 0.1)
    )
    return Record(
        "The transfer of a convolution's input between two GPUs is not negligible beside the "
        "convolution. A40s and A5500s with NVLink have a lower ratio of transfer to computation "
        "than V100Ss with PCIe 3.",
        "data sheets of the three GPUs, the convolution simulated block by block",
        checks,
        why="A transfer of a small image takes the same fixed time over both kinds of links here, "
        "and the convolution takes longer on a V100S. So with small images the V100S has the "
        "lower ratio. The fixed time of PCIe is longer than that of NVLink in reality; data sheets "
        "do not say by how much.",
        tables=[
            Table("Transfer over compute", ["", *(f"{size}x{size}" for size in SIZES)],
                  [[name, *(f"{share:.3f}" for share in row)] for name, row in shares.items()])
        ],
        charts=[
            Chart("HIOS, Figure 2", "lines", [str(size) for size in SIZES], shares,
                  "transfer over compute")
        ],
    )  # fmt: skip


def _transfer_over_compute(size: int, sheet: Sheet) -> float:
    graph = OpGraph.from_edges(["a"], [])
    device = _device(sheet)
    compute_us = simulate_blocks(
        graph, Schedule("by hand", graph.names, streams=[(0,)]), [[_conv(size, sheet)]], device.gpu
    ).makespan_us - device.launch_us  # fmt: skip
    return sheet.link.copy_us(_FLOAT_BYTES * size * size * _CHANNELS) / compute_us


FIGURE_4 = OpGraph.from_edges(
    8, [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5), (4, 6), (5, 7), (6, 7)]
)
FIGURE_4_OPS, FIGURE_4_EDGES = (3, 4, 2, 1, 1, 4, 2, 3), (1, 2, 1, 1, 2, 1, 1, 1, 2)
FIGURE_5 = OpGraph.from_edges(7, [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 6), (3, 4), (5, 6)])
FIGURE_5_OPS, FIGURE_5_EDGES = (4, 5, 3, 3, 5, 1, 1), (3, 1, 1, 3, 3, 3, 1, 2)
_WEIGHTS = (
    "The weights of the figure are not in the paper's text. Ours agree with every number of the "
    "text, so a wrong algorithm would be seen, and a wrong weight would not."
)


@experiment("hios", "Figure 4", "an example of Algorithm 1", seconds=1)
def figure_4() -> Record:
    """Maps the paths of Algorithm 1 one by one, and tries all 256 mappings."""
    latency = LatencyTable(
        FIGURE_4_OPS, transfers=dict(zip(FIGURE_4.edges, FIGURE_4_EDGES, strict=True))
    )
    found = schedule(FIGURE_4, "hios-lp", latency, gpus=2, intra="none")
    second, third = [2, 4], [6]
    partly = {op: 0 for op in range(8) if op not in (*second, *third)}
    best = {**partly, **dict.fromkeys(second, 1)}
    optimum = min(
        _makespan(dict(enumerate(gpus)), latency)
        for gpus in itertools.product((0, 1), repeat=FIGURE_4.num_ops)
    )
    checks = [
        equal("latency with the second path on GPU 1", 18,
              _makespan({**partly, **dict.fromkeys(second, 0)}, latency)),
        equal("latency with the second path on GPU 2", 16, _makespan(best, latency)),
        equal("latency with the third path on GPU 1", 18, _makespan({**best, 6: 0}, latency)),
        equal("latency with the third path on GPU 2", 16, _makespan({**best, 6: 1}, latency)),
        equal("latency of HIOS-LP's schedule", 16, found.simulate(FIGURE_4, latency)),
        equal("least latency of all 256 mappings", 16, optimum),
    ]  # fmt: skip
    return Record(
        "HIOS-LP maps three paths of eight operators to two GPUs. The second path gives a latency "
        "of 18 or 16, the third one too, and the result of 16 is the optimum.",
        "none, because the example is computed by hand",
        checks,
        why="An algorithm or the example has changed.",
        remarks=f"{_WEIGHTS} Figures 3 and 6 are drawings without numbers in the text.",
    )  # fmt: skip


def _makespan(gpu_of: dict[int, int], latency: LatencyTable) -> float:
    """The latency of Fig. 4's operators in `gpu_of`. A GPU runs them one by one, by priority."""
    left = {op: i for i, op in enumerate(sorted(gpu_of))}
    edges = [(left[u], left[v]) for u, v in FIGURE_4.edges if u in left and v in left]
    transfers = [latency.transfer(u, v) for u, v in FIGURE_4.edges if u in left and v in left]
    graph = OpGraph.from_edges(len(left), edges)
    table = LatencyTable(
        [FIGURE_4_OPS[op] for op in left], transfers=dict(zip(edges, transfers, strict=True))
    )
    stages = [[[i] for op, i in left.items() if gpu_of[op] == gpu] for gpu in (0, 1)]
    by_hand = Schedule.from_gpu_stages("by hand", graph.names, [g for g in stages if g])
    return by_hand.simulate(graph, table)


class _Figure5(LatencyTable):
    """The latencies of Fig. 5, and of the two stages of two operators that the text gives."""

    def __init__(self) -> None:
        super().__init__(
            FIGURE_5_OPS, transfers=dict(zip(FIGURE_5.edges, FIGURE_5_EDGES, strict=True))
        )

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        ops = sorted(op for group in groups for op in group)
        together = {(1, 3): 7.0, (4, 6): 5.0}
        return together.get(tuple(ops), sum(map(self.op, ops)))


@experiment("hios", "Figure 5", "an example of Algorithm 2", seconds=1)
def figure_5() -> Record:
    """Groups operators of the figure's schedule into stages (Algorithm 2's windows)."""
    prices = GpuPrices(FIGURE_5, _Figure5())
    orders = [[0, 1, 3, 4, 6], [2, 5]]
    _, before = with_windows(prices, orders, 2, "none")
    stages, after = with_windows(prices, orders, 2, "windows")
    grouped = [tuple(stage) for gpu in stages for stage in gpu if len(stage) > 1]
    return Record(
        "With windows of two operators, Algorithm 2 groups v2 with v4 and v5 with v7, and improves "
        "the latency from 18 to 16.",
        "none, because the example is computed by hand",
        [
            equal("latency before", 18, before),
            equal("latency after", 16, after),
            equal("groups", 2, len(grouped)),
            equal("groups that are v2 with v4, or v5 with v7", 2,
                  sum(group in ((1, 3), (4, 6)) for group in grouped)),
        ],
        why="An algorithm or the example has changed.",
        remarks=_WEIGHTS,
    )  # fmt: skip
