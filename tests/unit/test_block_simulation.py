"""Tests the simulator of thread blocks: cases by hand, laws of conservation, and refusals."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graphs import layered
from tvm_interop.errors import ScheduleError
from tvm_interop.latency.gpu_blocks import RESOURCES, BlockGpu, BlockKernel
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import OperatorTraits, Schedule, Stage, schedule
from tvm_interop.scheduling.block_simulation import BlockRun, simulate_blocks

SMALL = (16, 16, 16, 16)
WHOLE = (1, 1, 1, 1)
"""Limits of two kernels: a multiprocessor holds 16 blocks of the first, and one block of the
second."""


def kernel(
    blocks: int, us: float, most: tuple[int, ...] = SMALL, busy: float = 0, nbytes: float = 0
) -> BlockKernel:
    return BlockKernel(blocks, most, us, busy, nbytes)  # type: ignore[arg-type]


def side_by_side(gpu: BlockGpu, *kernels: BlockKernel) -> list[tuple[float, float]]:
    """Return when each kernel starts and ends, rounded to nine digits after the point.

    The kernels are independent. Each has a stream of its own, and they are launched in this order.
    """
    graph = OpGraph.from_edges(len(kernels), [])
    streams = tuple((op,) for op in range(len(kernels)))
    made = Schedule("mine", graph.names, streams=streams, launch_order=sum(streams, ()))
    run = simulate_blocks(graph, made, [[one] for one in kernels], gpu)
    return [(round(start, 9), round(end, 9)) for _, _, start, end in run.timeline]


def test_one_wave_and_two() -> None:
    gpu = BlockGpu(4)
    assert side_by_side(gpu, kernel(4, 10, WHOLE)) == [(0, 10)]
    assert side_by_side(gpu, kernel(5, 10, WHOLE)) == [(0, 20)]
    assert side_by_side(gpu, kernel(64, 10)) == [(0, 10)]
    assert side_by_side(gpu, kernel(65, 10)) == [(0, 20)]


@pytest.mark.parametrize("resource", range(len(RESOURCES)))
def test_two_kernels_share_a_multiprocessor_by_each_resource(resource: int) -> None:
    def takes_a_third_of(which: int) -> BlockKernel:
        return kernel(2, 10, tuple(3 if i == which else 16 for i in range(len(RESOURCES))))

    one = BlockGpu(1)
    # Each kernel has two blocks. The first kernel's blocks take two thirds of `resource`, so one
    # block of the second kernel has to wait.
    same = side_by_side(one, takes_a_third_of(resource), takes_a_third_of(resource))
    assert same == [(0, 10), (0, 20)]
    # If the kernels need different resources, all four blocks fit.
    other = (resource + 1) % len(RESOURCES)
    apart = side_by_side(one, takes_a_third_of(resource), takes_a_third_of(other))
    assert apart == [(0, 10), (0, 10)]


def test_a_multiprocessor_holds_as_many_blocks_as_the_limits_say() -> None:
    for most in range(1, 33):
        full = kernel(3 * most, 10, (32, most, 32, 32))
        assert side_by_side(BlockGpu(3), full) == [(0, 10)]
        assert side_by_side(BlockGpu(3), replace(full, blocks=3 * most + 1)) == [(0, 20)]


def test_a_large_kernel_at_the_front_holds_up_a_small_one() -> None:
    gpu = BlockGpu(2)
    first, large, small = kernel(1, 10, WHOLE), kernel(2, 10, WHOLE), kernel(1, 1)
    # The large kernel's second block waits until the first kernel ends. The small kernel is
    # launched after the large kernel, so it waits until this block starts, although the small
    # kernel needs only a sixteenth of a multiprocessor for 1 us.
    assert side_by_side(gpu, first, large, small) == [(0, 10), (0, 20), (10, 11)]
    assert side_by_side(gpu, first, small, large) == [(0, 10), (0, 1), (1, 20)]


def test_a_block_goes_where_most_room_is() -> None:
    gpu = BlockGpu(2)
    # The first kernel fills half of multiprocessor 0. Two blocks of the second kernel go to
    # multiprocessor 1, and a third block to either.
    half, quarters = kernel(1, 10, (2, 2, 2, 2), busy=1), kernel(2, 10, (4, 4, 4, 4), busy=0.5)
    assert side_by_side(gpu, half, quarters) == [(0, 10), (0, 10)]
    # If the second kernel has three blocks, one of them runs beside the first kernel on
    # multiprocessor 0. Together they ask for 1.5 times the arithmetic that the multiprocessor can
    # do.
    assert side_by_side(gpu, half, replace(quarters, blocks=3)) == [(0, 15), (0, 15)]


def test_blocks_share_arithmetic() -> None:
    one = BlockGpu(1)
    assert side_by_side(one, kernel(2, 10, busy=0.5)) == [(0, 10)]
    assert side_by_side(one, kernel(2, 10, busy=0.75)) == [(0, 15)]
    # Both kernels run at half speed. The first ends after 8 us. The second then has 6 of its 10 us
    # of work left.
    assert side_by_side(one, kernel(1, 4, busy=1), kernel(1, 10, busy=1)) == [(0, 8), (0, 14)]


def test_blocks_share_bandwidth() -> None:
    gpu = BlockGpu(2, bytes_a_us=100)
    copies = kernel(1, 10, nbytes=1000)
    assert side_by_side(gpu, copies) == [(0, 10)]
    assert side_by_side(gpu, copies, copies) == [(0, 20), (0, 20)]
    # The second kernel asks for 10 bytes/us, less than half of the bandwidth, and is not slowed
    # down. The first kernel gets the other 90 bytes/us until 10 us. After 10 us it has 100 bytes
    # left, and gets all of the 100 bytes/us.
    assert side_by_side(gpu, copies, kernel(1, 10, nbytes=100)) == [(0, 11), (0, 10)]


def test_overlapping_arithmetic_with_memory_traffic_pays() -> None:
    """Section 2.3 of the paper on Opara: a copy is disturbed most by another copy."""
    gpu = BlockGpu(1, bytes_a_us=100)
    copies, computes = kernel(1, 10, nbytes=1000), kernel(1, 10, busy=1)
    assert side_by_side(gpu, copies, computes) == [(0, 10), (0, 10)]
    assert side_by_side(gpu, copies, copies)[1] == (0, 20)
    assert side_by_side(gpu, computes, computes)[1] == (0, 20)


def test_blocks_on_few_multiprocessors_stay_there() -> None:
    """Both blocks of the wide kernel begin on the one multiprocessor that is free, and stay there.
    So this run takes longer than the same kernels one after the other."""
    gpu = BlockGpu(2)
    short, wide = kernel(1, 1, WHOLE), kernel(2, 10, (2, 2, 2, 2), busy=1)
    assert side_by_side(gpu, wide) == [(0, 10)]
    assert side_by_side(gpu, short, wide) == [(0, 1), (0, 20)]


def test_blocks_of_one_kernel_at_different_points_stay_apart() -> None:
    # Both multiprocessors are half full, so each gets a block of the last kernel. The block beside
    # the second kernel runs at half speed until 8 us. From then on, only the last kernel runs.
    idle, computes = kernel(1, 8, (2, 2, 2, 2)), kernel(1, 4, (2, 2, 2, 2), busy=1)
    ends = side_by_side(BlockGpu(2), idle, computes, kernel(2, 10, busy=1))
    assert ends == [(0, 8), (0, 8), (0, 14)]


def test_launches_dominate() -> None:
    gpu = BlockGpu(4, launch_us=5)
    assert side_by_side(gpu, *[kernel(1, 1)] * 3) == [(5, 6), (10, 11), (15, 16)]


def test_kernels_that_are_ready_at_once_go_in_launch_order() -> None:
    graph = OpGraph.from_edges(3, [(0, 1), (0, 2)])
    kernels = [[kernel(1, 10, WHOLE)], [kernel(1, 3, WHOLE)], [kernel(1, 4, WHOLE)]]
    for order, starts in (((0, 1, 2), (10, 13)), ((0, 2, 1), (14, 10))):
        made = Schedule("mine", graph.names, streams=((0, 1), (2,)), launch_order=order)
        rows = {row[0]: row for row in simulate_blocks(graph, made, kernels, BlockGpu(1)).timeline}
        assert (rows[1][2], rows[2][2]) == starts


def test_a_gap_on_a_stream_and_a_wait_between_streams_take_time() -> None:
    graph = OpGraph.from_edges(2, [(0, 1)])
    kernels, gpu = [[kernel(1, 10)], [kernel(1, 10)]], BlockGpu(1, gap_us=1, wait_us=3)
    apart = Schedule("mine", graph.names, streams=((0,), (1,)))
    assert simulate_blocks(graph, apart, kernels, gpu).makespan_us == 23
    together = Schedule("mine", graph.names, streams=((0, 1),))
    assert simulate_blocks(graph, together, kernels, gpu).makespan_us == 21


def test_an_operator_of_several_kernels_and_one_of_none() -> None:
    graph = OpGraph.from_edges(3, [(0, 1), (1, 2)])
    made = Schedule("mine", graph.names, streams=((0, 1, 2),))
    kernels = [[kernel(1, 10), kernel(1, 5)], [], [kernel(1, 1)]]
    run = simulate_blocks(graph, made, kernels, BlockGpu(1, launch_us=2))
    assert run == BlockRun(18, ((0, 0, 2, 17), (1, 0, 17, 17), (2, 0, 17, 18)))
    # With gaps, the run takes two gaps longer: one between the first operator's kernels, and one
    # before the last operator.
    run = simulate_blocks(graph, made, kernels, BlockGpu(1, launch_us=2, gap_us=1))
    assert run.makespan_us == 18 + 2


def test_a_barrier_holds_a_stage_back() -> None:
    graph = OpGraph.from_edges(3, [])
    kernels = [[kernel(1, 1)], [kernel(1, 10)], [kernel(1, 1)]]
    for barrier, starts_us in ((True, 10), (False, 1)):
        stages = (Stage(((0,), (1,)), (0, 1)), Stage(((2,),), (0,), barrier=barrier))
        made = Schedule("mine", graph.names, stages=stages)
        rows = {row[0]: row for row in simulate_blocks(graph, made, kernels, BlockGpu(9)).timeline}
        assert rows[2][2] == starts_us


KERNELS = st.builds(
    kernel,
    blocks=st.integers(1, 60),
    us=st.floats(0.5, 20),
    most=st.tuples(*[st.integers(1, 6)] * len(RESOURCES)),
    busy=st.floats(0, 1),
    nbytes=st.floats(0, 500),
)
GPUS = st.builds(
    BlockGpu,
    st.integers(1, 8),
    bytes_a_us=st.floats(20, 500),
    launch_us=st.floats(0, 5),
    gap_us=st.floats(0, 2),
    wait_us=st.floats(0, 2),
)


def drawn(data: st.DataObject, kernels: st.SearchStrategy[BlockKernel]) -> Any:
    """A random graph, a kernel for each operator, a schedule by Opara, and a GPU."""
    graph = layered(data.draw(st.integers(1, 12)), data.draw(st.integers(0, 999)))
    of_ops = [[data.draw(kernels)] for _ in range(graph.num_ops)]
    rng = random.Random(data.draw(st.integers(0, 999)))
    traits = [OperatorTraits(demand=rng.random(), memory_bound=False) for _ in of_ops]
    return graph, of_ops, schedule(graph, "opara", traits=traits), data.draw(GPUS)


def alone_us(one: BlockKernel, gpu: BlockGpu) -> float:
    return side_by_side(replace(gpu, launch_us=0.0), one)[0][1]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_work_and_order_are_conserved(data: st.DataObject) -> None:
    graph, kernels, made, gpu = drawn(data, KERNELS)
    run = simulate_blocks(graph, made, kernels, gpu)
    rows = {op: (stream, start, end) for op, stream, start, end in run.timeline}
    assert sorted(rows) == list(range(graph.num_ops))
    flat = [one for of_op in kernels for one in of_op]
    slack = 1 + 1e-6
    # Each operator starts after the operators that it reads, and takes at least as long as its
    # waves of blocks.
    for op, (stream, start, end) in rows.items():
        for source in graph.predecessors(op):
            passes_us = gpu.gap_us if rows[source][0] == stream else gpu.wait_us
            assert start * slack >= rows[source][2] + passes_us
        waves = math.ceil(flat[op].blocks / (min(flat[op].most) * gpu.multiprocessors))
        assert (end - start) * slack >= waves * flat[op].block_us
    # The run takes at least as long as the longest path, all launches, all arithmetic, and all
    # traffic.
    path_us = [0.0] * graph.num_ops
    for op in graph.topological_order():
        before = max((path_us[source] for source in graph.predecessors(op)), default=0.0)
        path_us[op] = before + flat[op].block_us
    arithmetic_us = sum(one.blocks * one.block_us * one.busy for one in flat)
    least = max(
        *path_us,
        graph.num_ops * gpu.launch_us,
        arithmetic_us / gpu.multiprocessors,
        sum(one.blocks * one.nbytes for one in flat) / gpu.bytes_a_us,
    )
    assert run.makespan_us * slack >= least


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_it_takes_no_longer_than_one_after_the_other(data: st.DataObject) -> None:
    """Each multiprocessor holds one block here, so kernels share only the bandwidth."""
    graph, kernels, made, gpu = drawn(data, KERNELS.map(lambda one: replace(one, most=WHOLE)))
    run = simulate_blocks(graph, made, kernels, gpu)
    sequential_us = sum(alone_us(one, gpu) for of_op in kernels for one in of_op)
    overhead_us = graph.num_ops * (gpu.launch_us + max(gpu.gap_us, gpu.wait_us))
    assert run.makespan_us <= (sequential_us + overhead_us) * (1 + 1e-6)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_on_one_stream_it_is_the_sum(data: st.DataObject) -> None:
    graph, kernels, _, gpu = drawn(data, KERNELS)
    gpu = replace(gpu, launch_us=0.0)
    run = simulate_blocks(graph, schedule(graph, "sequential"), kernels, gpu)
    sum_us = sum(alone_us(one, gpu) for of_op in kernels for one in of_op)
    assert run.makespan_us == pytest.approx(sum_us + (graph.num_ops - 1) * gpu.gap_us)


# Every run of the test draws the same cases (`derandomize`). In other cases, two multiprocessors
# may hold equal blocks that began at different times. Both are then right places for the next
# block, and the two simulations that this test compares may choose different ones.
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_alike_multiprocessors_are_simulated_as_one_without_a_difference(
    data: st.DataObject,
) -> None:
    # A multiprocessor holds a prime number of a kernel's blocks, another prime for each kernel. So
    # multiprocessors with different blocks are never equally full.
    primes = data.draw(st.lists(st.sampled_from((2, 3, 5, 7, 11)), min_size=1, unique=True))
    kernels = [replace(data.draw(KERNELS), most=(prime,) * 4) for prime in primes]
    gpu = replace(data.draw(GPUS), launch_us=0.0)
    ends_us = [end for _, end in side_by_side(gpu, *kernels)]
    assert ends_us == pytest.approx(by_single_blocks(gpu, kernels))


def by_single_blocks(gpu: BlockGpu, kernels: list[BlockKernel]) -> list[float]:
    """Return when each of these independent kernels ends, by a simulation of every single block.

    The simulation holds a multiprocessor as a list of blocks. It holds a block as a list of two
    numbers: the index of the block's kernel, and the fraction of the block's work that is left.
    """
    everywhere: list[list[list[float]]] = [[] for _ in range(gpu.multiprocessors)]
    waiting = [one.blocks for one in kernels]
    ends_us = [0.0] * len(kernels)
    now_us = 0.0

    def fullness(blocks: list[list[float]]) -> float:
        return sum(1 / kernels[int(number)].most[0] for number, _ in blocks)

    while True:
        for number, one in enumerate(kernels):
            while waiting[number]:
                least = min(everywhere, key=fullness)
                if fullness(least) + 1 / one.most[0] > 1 + 1e-9:
                    break
                least.append([number, 1.0])
                waiting[number] -= 1
            if waiting[number]:
                break
        running = [(block, blocks) for blocks in everywhere for block in blocks]
        if not running:
            return ends_us
        rates = []
        for block, blocks in running:
            load = sum(kernels[int(number)].busy for number, _ in blocks)
            rates.append(1 / kernels[int(block[0])].block_us / max(1, load))
        asks = [kernels[int(b[0])].nbytes * r for (b, _), r in zip(running, rates, strict=True)]
        left, count = gpu.bytes_a_us, len(asks)
        for place in sorted(range(len(asks)), key=asks.__getitem__):
            if asks[place] > left / count:
                rates[place] *= left / count / asks[place]
            left -= min(asks[place], left / count)
            count -= 1
        step_us = min(block[1] / rate for (block, _), rate in zip(running, rates, strict=True))
        now_us += step_us
        for (block, blocks), rate in zip(running, rates, strict=True):
            block[1] -= rate * step_us
            if block[1] <= 1e-9:
                blocks.remove(block)
                ends_us[int(block[0])] = now_us


PAIR = OpGraph.from_edges(["a", "b"], [])
APART = Schedule("mine", PAIR.names, streams=((0,), (1,)))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"blocks": 0}, "operator `b` has 0 blocks; it must have 1 or more"),
        ({"most": (1, 1)}, "give one for each of blocks, threads, registers, shared memory"),
        ({"most": (8, 8, 0, 8)}, "`b` cannot run, because a multiprocessor holds 0 of its blocks "
                                 "by registers"),
        ({"block_us": 0.0}, "operator `b` takes 0.0 us; it must be 1e-06 to 1e.15"),
        ({"block_us": math.nan}, "takes nan us"),
        ({"busy": 1.5}, "keeps 1.5 of a multiprocessor busy; it must be 0 to 1"),
        ({"nbytes": -1.0}, "moves -1.0 bytes; it must be 0 to 1e.15"),
    ],
)  # fmt: skip
def test_an_impossible_kernel_is_refused(wrong: dict[str, Any], says: str) -> None:
    kernels = [[kernel(1, 1)], [replace(kernel(1, 1), **wrong)]]
    with pytest.raises(ScheduleError, match=says):
        simulate_blocks(PAIR, APART, kernels, BlockGpu(1))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"multiprocessors": 0}, "a GPU has 0 multiprocessors; give 1 or more"),
        ({"bytes_a_us": 0.0}, "`bytes_a_us` is 0.0; it must be 1e-06 to 1e.15, or inf"),
        ({"launch_us": -1.0}, "`launch_us` is -1.0; it must be 0 to 1e.15 microseconds"),
        ({"gap_us": math.nan}, "`gap_us` is nan; it must be 0 to"),
        ({"wait_us": math.inf}, "`wait_us` is inf; it must be 0 to"),
    ],
)
def test_an_impossible_gpu_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        BlockGpu(**{"multiprocessors": 1, **wrong})


def test_schedules_that_it_cannot_simulate_are_refused() -> None:
    kernels, gpu = [[kernel(1, 1)]] * 2, BlockGpu(1)
    with pytest.raises(ScheduleError, match="describes 1 operators, but the graph has 2"):
        simulate_blocks(PAIR, APART, kernels[:1], gpu)
    merged = Schedule("mine", PAIR.names, stages=(Stage(((0,), (1,)), (0, 1), kind="merge"),))
    with pytest.raises(ScheduleError, match="merged stage cannot be simulated block by block"):
        simulate_blocks(PAIR, merged, kernels, gpu)
    with pytest.raises(ScheduleError, match="over 2 GPUs, but this simulation has one"):
        simulate_blocks(PAIR, replace(APART, devices=(0, 1)), kernels, gpu)
