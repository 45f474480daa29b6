"""Tests latencies of operators, stages and merged convolutions, from simulated thread blocks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.paper_device import network_work, paper_network_with_merges
from benchmarks.paper_kernels import paper_graph
from tvm_interop import models, schedule
from tvm_interop.compiler.merging import OperatorMerges
from tvm_interop.errors import ScheduleError
from tvm_interop.frontend import load_model
from tvm_interop.latency import LatencyTable
from tvm_interop.latency.block_device import BlockDevice
from tvm_interop.latency.block_latency import BlockLatency
from tvm_interop.latency.gpu_blocks import BlockGpu, BlockKernel
from tvm_interop.latency.merged_convs import ConvShape, MergingConvs, merged_conv
from tvm_interop.machine.multiprocessors import MULTIPROCESSORS, residency
from tvm_interop.program.graph import OpGraph
from tvm_interop.program.kernel_demand import KernelDemand
from tvm_interop.scheduling import Schedule
from tvm_interop.scheduling.block_simulation import simulate_blocks

DEVICE = BlockDevice("sm_80", 10, 10_000, 5_000, 2, 1, 3, efficiency=0.5, thread_bytes_a_us=1)
DEMAND = KernelDemand("k", blocks=4, threads=128, registers=32)


def test_the_time_of_a_block_is_its_arithmetic_or_its_traffic() -> None:
    # A multiprocessor reaches 500 flops/us, and a block with half of its threads reaches half.
    computes = DEVICE.kernel(DEMAND, flops=4_000, nbytes=512)
    assert computes.block_us == 0.5 + 1_000 / 250
    assert computes.busy == 0.5 * 4 / 4.5
    assert computes.nbytes == 128
    # 128 threads move 128 bytes/us.
    copies = DEVICE.kernel(DEMAND, flops=100, nbytes=4 * 1280)
    assert copies.block_us == 0.5 + 10
    assert copies.busy == pytest.approx(0.5 * 0.1 / 10.5)
    # A kernel at a quarter of the speed takes four times as long for the same work.
    slow = DEVICE.kernel(DEMAND, flops=4_000, nbytes=512, efficiency=0.25)
    assert slow.block_us == 0.5 + 16
    assert slow.busy * slow.block_us == pytest.approx(computes.busy * computes.block_us)


@pytest.mark.parametrize("arch", MULTIPROCESSORS)
def test_a_kernel_fits_as_often_as_residency_says(arch: str) -> None:
    device = replace(DEVICE, arch=arch)
    for threads in (32, 96, 128, 256, 512):
        for registers in (16, 40, 72, 128):
            for shared in (0, 6_912, 40_000):
                demand = KernelDemand("k", 1, threads, registers, shared)
                kernel = device.kernel(demand, 1, 1)
                assert min(kernel.most) == residency(demand, arch).blocks


@pytest.mark.parametrize("wrong", [{"flops": -1.0}, {"nbytes": math.nan}])
def test_impossible_work_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ScheduleError, match=f"`{next(iter(wrong))}` of the kernel `k` is"):
        DEVICE.kernel(DEMAND, **{"flops": 1.0, "nbytes": 1.0, **wrong})


def test_an_impossible_device_is_refused() -> None:
    with pytest.raises(ScheduleError, match="`busy_threads` is 0; it must be a number above 0"):
        replace(DEVICE, busy_threads=0)
    with pytest.raises(ScheduleError, match="the efficiency of the kernel `k` is 0; it must be"):
        DEVICE.kernel(DEMAND, 1, 1, efficiency=0)


def a_kernel(us: float) -> BlockKernel:
    return BlockKernel(1, (1, 1, 1, 1), us)


def test_the_price_of_a_stage() -> None:
    kernels = [[a_kernel(10)], [a_kernel(4), a_kernel(5)], [a_kernel(1)] * 9, []]
    gpu = BlockGpu(4, launch_us=2, gap_us=1, wait_us=3)
    latency = BlockLatency(kernels, gpu)
    assert latency.op(0) == 10 + 1
    assert latency.op(1) == 4 + 1 + 5 + 1
    assert latency.op(2) == 9 * 2
    assert latency.op(3) == 0
    assert latency.stage([[0, 1]]) == 11 + 11
    # The second group's first kernel is launched 2 us later. Fork and join take 3 us each.
    assert latency.stage([[0], [1]]) == 2 + 11 + 2 * 3
    assert latency.stages([[[0]], [[0], [1]], []]).tolist() == [11, 19, 0]


def test_a_stage_without_overheads_takes_as_long_as_in_the_simulator() -> None:
    kernels = [
        [BlockKernel(9, (2, 3, 4, 5), 10, 0.4, 80)],
        [a_kernel(12), a_kernel(1)],
        [a_kernel(3)],
    ]
    gpu = BlockGpu(4, 50)
    graph = OpGraph.from_edges(3, [(0, 1)])
    made = Schedule("mine", graph.names, streams=((0, 1), (2,)), launch_order=(0, 2, 1))
    price = BlockLatency(kernels, gpu).stage([[0, 1], [2]])
    assert price == simulate_blocks(graph, made, kernels, gpu).makespan_us


def test_a_kernel_that_cannot_run_is_refused() -> None:
    with pytest.raises(ScheduleError, match="a kernel of operator 1 has 0 blocks"):
        BlockLatency([[], [replace(a_kernel(1), blocks=0)]], BlockGpu(1))


CONV = ConvShape("x", (8, 6), 16, 32, (1, 1), (0, 0, 0, 0), (1, 1), "relu")


def same(window: int, **fields: object) -> ConvShape:
    """A convolution with a square window, padded so that the image keeps its size."""
    pad = window // 2
    return replace(CONV, window=(window, window), padding=(pad,) * 4, **fields)  # type: ignore[arg-type]


def test_the_work_of_a_convolution() -> None:
    assert same(3).output == (8, 6)
    assert same(3).values == 32 * 48
    assert same(3).flops == 2 * 32 * 48 * 16 * 9
    assert CONV.nbytes == 4 * (16 * 48 + 32 * 17 + 32 * 48)
    assert replace(same(3), strides=(2, 2)).output == (4, 3)


def test_the_merged_convolution_is_wider() -> None:
    merged = merged_conv([CONV, same(3, channels=8)])
    assert merged == same(3, channels=40)
    wide = replace(CONV, window=(1, 3), padding=(0, 1, 0, 1))
    tall = replace(CONV, window=(3, 1), padding=(1, 0, 1, 0))
    assert merged_conv([wide, tall]) == same(3, channels=64)


@pytest.mark.parametrize(
    "convs",
    [
        [],
        [CONV],
        [CONV, replace(CONV, data="y")],
        [CONV, replace(CONV, activation="")],
        [CONV, replace(CONV, strides=(2, 2))],
        # Without padding, the second convolution's result is smaller.
        [CONV, replace(CONV, window=(3, 3))],
        # A window of 3 at offset 2 does not fit into a window of 3.
        [
            replace(CONV, window=(3, 3), padding=(2, 1, 0, 1)),
            replace(CONV, window=(3, 3), padding=(0, 1, 2, 1)),
        ],
    ],
)
def test_what_cannot_be_merged(convs: list[ConvShape]) -> None:
    assert merged_conv(convs) is None


def test_a_model_with_merges_keeps_its_other_prices() -> None:
    base = LatencyTable([5, 6, 7], transfers={(0, 1): 4.0})
    latency = MergingConvs(base, {0: CONV, 2: same(3)}, lambda conv: conv.channels / 8)
    assert [latency.op(op) for op in range(3)] == [5, 6, 7]
    assert latency.stage([[0], [1, 2]]) == 13
    assert latency.transfer(0, 1) == 4
    assert latency.mergeable() == [[0, 2]]
    assert latency.merges([[0, 2], [0, 1]]).tolist() == [8, math.inf]


def test_ios_merges_what_is_cheaper_merged() -> None:
    graph = OpGraph.from_edges(3, [(0, 1), (0, 2)])
    base = LatencyTable([5, 6, 7])
    for merged_us, kinds in ((9.0, ["concurrent", "merge"]), (14.0, ["concurrent"] * 3)):
        latency = MergingConvs(base, {1: CONV, 2: same(3)}, lambda _, us=merged_us: us)
        made = schedule(graph, "ios-merge", latency)
        assert [stage.kind for stage in made.stages] == kinds
    both = schedule(graph, "ios-both", MergingConvs(base, {1: CONV, 2: same(3)}, lambda _: 6.5))
    assert both.makespan == 5 + 6.5


def test_the_same_convolutions_can_be_merged_as_in_a_compilation() -> None:
    network = paper_graph("squeezenet", image_size=64)
    latency = MergingConvs(LatencyTable(np.ones(network.graph.num_ops)), network.convs, float)
    names = network.graph.names
    ours = {frozenset(names[op] for op in ops) for ops in latency.mergeable()}
    model = models.build("squeezenet", image_size=64)
    compiled = OperatorMerges(load_model(model, None), names)
    assert ours == {frozenset(names[op] for op in ops) for ops in compiled.sets}
    assert len(ours) == 12
    for ops in latency.mergeable():
        merged_us = MergingConvs(LatencyTable([]), network.convs, lambda _: 1.0).merges([ops])[0]
        assert compiled.can_merge(ops) == math.isfinite(merged_us)


def test_the_device_without_blocks_prices_merges_too() -> None:
    network, latency = paper_network_with_merges("squeezenet")
    makespans = {
        form: schedule(network.graph, form, latency).simulate(network.graph, latency)
        for form in ("sequential", "ios-merge", "ios-parallel", "ios-both")
    }
    assert makespans["ios-merge"] < makespans["sequential"]
    assert makespans["ios-both"] < makespans["ios-parallel"] < makespans["sequential"]
    # A merged operator of one convolution takes as long as the convolution.
    op, conv = next(iter(paper_graph("squeezenet").convs.items()))
    alone = MergingConvs(network.latency, {op: conv, -1: replace(conv, channels=0)}, latency._price)
    assert alone.merges([[op, -1]])[0] == pytest.approx(network.latency.op(op))


@pytest.mark.parametrize("name", ["squeezenet", "nasnet_a"])
def test_the_kernels_of_a_network_do_its_work(name: str) -> None:
    found = paper_graph(name, image_size=64)
    _, work = network_work(name, image_size=64)
    for op, kernels in enumerate(found.work):
        assert sum(kernel.flops for kernel in kernels) == work[op][0]
        # The kernels of one operator pass tensors to each other through memory, so they move at
        # least the bytes of the operator's inputs and outputs.
        assert sum(kernel.nbytes for kernel in kernels) >= work[op][1]
    for op, conv in found.convs.items():
        (kernel,) = (each for each in found.work[op] if each.kind == "product")
        assert (conv.flops, conv.nbytes) == (kernel.flops, kernel.nbytes)
        assert conv.values == kernel.rows * kernel.columns
