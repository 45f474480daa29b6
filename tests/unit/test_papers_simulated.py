"""Tests the searches on simulated GPUs that the experiments of the papers share."""

from __future__ import annotations

import math

import pytest

from benchmarks.block_calibration import device
from benchmarks.paper_kernels import Work, kernel_of, paper_graph
from benchmarks.papers.simulated import (
    LIMITS,
    made_us,
    parameters,
    searched,
    stages_us,
    subject,
)
from tvm_interop import operator_graph, schedule
from tvm_interop.latency.block_latency import BlockLatency
from tvm_interop.latency.merged_convs import ConvShape, merged_conv


@pytest.mark.parametrize("scheduler", ["ios", "ios-both"])
def test_a_search_block_by_block_finds_what_a_search_of_the_whole_finds(scheduler: str) -> None:
    network = subject("squeezenet")
    found = searched(network, scheduler)
    whole = schedule(network.graph, scheduler, network.latency, **LIMITS)
    assert whole.makespan is not None
    assert found.us == pytest.approx(whole.makespan)
    assert stages_us(found, network.latency) == pytest.approx(found.us)
    ran = sorted(op for _, groups in found.stages for group in groups for op in group)
    assert ran == [*range(network.graph.num_ops)]
    assert found.us < made_us(network, "sequential")


def test_the_cells_of_nasnet_are_blocks_in_order() -> None:
    network = subject("nasnet_a")
    place = {op: i for i, ops in enumerate(network.blocks) for op in ops}
    assert sorted(place) == [*range(network.graph.num_ops)]
    assert all(place[u] <= place[v] for u in place for v in network.graph.successors(u))
    assert len(network.blocks) > len(operator_graph("nasnet_a").blocks())


def test_a_schedule_for_a_batch_is_no_slower_there_than_another() -> None:
    one, many = subject("squeezenet"), subject("squeezenet", batch=8)
    own, other = searched(many, "ios-both"), searched(one, "ios-both")
    assert own.us <= stages_us(other, many.latency) * (1 + 1e-9)
    assert own.us > other.us


def test_work_grows_with_the_batch() -> None:
    one, four = paper_graph("squeezenet"), paper_graph("squeezenet", batch=4)
    for first, later in zip(one.work, four.work, strict=True):
        assert [4 * w.flops for w in first] == [w.flops for w in later]
        assert [w.columns for w in first] == [w.columns for w in later]
    convs = [four.convs[op] for op in one.convs]
    assert [conv.flops for conv in convs] == [4 * conv.flops for conv in one.convs.values()]


def test_a_convolution_of_several_images_reads_its_weights_once() -> None:
    one = ConvShape("x", (8, 8), 16, 32, (1, 1), (0, 0, 0, 0), (1, 1))
    three = ConvShape("x", (8, 8), 16, 32, (1, 1), (0, 0, 0, 0), (1, 1), images=3)
    weights = 4 * 32 * (1 + 16)
    assert three.nbytes - weights == 3 * (one.nbytes - weights)
    assert merged_conv([one, three]) is None
    merged = merged_conv([three, three])
    assert merged is not None
    assert (merged.channels, merged.images) == (64, 3)


def test_a_merged_convolution_of_several_images_is_copied_apart() -> None:
    network, found = subject("squeezenet", batch=2), parameters()
    pair = network.latency.mergeable()[0][:2]
    merged = merged_conv([paper_graph("squeezenet", batch=2).convs[op] for op in pair])
    assert merged is not None
    rows = merged.images * math.prod(merged.output)
    work = Work("product", rows, merged.channels, merged.flops, merged.nbytes)
    gpu = device(found)
    alone = BlockLatency([[kernel_of(work, gpu, found.tile, found.depthwise)]], gpu.gpu)
    assert network.latency.merges([pair])[0] > alone.op(0)
