"""Shows on the clock of the fake GPU how measurements can be biased, and that ours are not.

The fake GPU's clock counts the host's time to launch work, and the GPU's time to begin a graph and
each of its nodes. Work of different streams overlaps. Each kernel takes a microsecond, plus the
time that a test adds.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.fake_cuda import fake_gpu
from tests.fake_cuda.fake_gpu import new_event, new_stream
from tests.library_cases import conv2d, plan_of
from tests.nets import inception_like
from tvm_interop import Schedule
from tvm_interop._native import cuda as _cuda
from tvm_interop.compiler.api import CompileOptions
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.machine.kernel_libraries import library_version
from tvm_interop.measure.measured import MeasuredLatency
from tvm_interop.program.library_op import LibraryOp

LAUNCH_US, START_US, NODE_US, NODE_LAUNCH_US = 3.0, 6.0, 0.5, 0.9
runtime = fake_gpu.runtime()


@pytest.fixture(autouse=True)
def costs() -> Iterator[None]:
    """The approximate costs of launches, graphs and nodes on a large GPU."""
    with ExitStack() as stack:
        stack.enter_context(fake_gpu.launch_time(LAUNCH_US))
        stack.enter_context(fake_gpu.graph_start(START_US))
        stack.enter_context(fake_gpu.node_times(NODE_US))
        yield


def between_events_us(stream: ctypes.c_void_p, work: Callable[[], object]) -> float:
    """The GPU's time for `work` on an idle stream, between two events."""
    began, ended, ms = new_event(), new_event(), ctypes.c_float()
    assert runtime.cudaStreamSynchronize(stream) == 0
    assert runtime.cudaEventRecord(began, stream) == 0
    work()
    assert runtime.cudaEventRecord(ended, stream) == 0
    assert runtime.cudaStreamSynchronize(stream) == 0
    assert runtime.cudaEventElapsedTime(ctypes.byref(ms), began, ended) == 0
    return ms.value * 1e3


# The clock itself.


def test_a_launch_costs_the_host_more_than_a_short_kernel_costs_the_gpu() -> None:
    stream = new_stream()

    def launch(times: int) -> Callable[[], object]:
        return lambda: [fake_gpu.launch("k", stream) for _ in range(times)]

    assert between_events_us(stream, lambda: None) == 0
    assert between_events_us(stream, launch(1)) == pytest.approx(LAUNCH_US + 1)
    assert between_events_us(stream, launch(10)) == pytest.approx(10 * LAUNCH_US + 1)


def test_streams_overlap_and_waits_order_them() -> None:
    first, second, done, ms = new_stream(), new_stream(), new_event(), ctypes.c_float()
    with fake_gpu.launch_time(0.0):
        began, at_once, after = new_event(), new_event(), new_event()
        runtime.cudaEventRecord(began, first)
        for _ in range(10):
            fake_gpu.launch("k", first)
        runtime.cudaEventRecord(done, first)
        fake_gpu.launch("k", second)
        runtime.cudaEventRecord(at_once, second)
        runtime.cudaStreamWaitEvent(second, done, 0)
        fake_gpu.launch("k", second)
        runtime.cudaEventRecord(after, second)
    for event, us in ((done, 10), (at_once, 1), (after, 11)):
        assert runtime.cudaEventSynchronize(event) == 0
        assert runtime.cudaEventElapsedTime(ctypes.byref(ms), began, event) == 0
        assert ms.value * 1e3 == pytest.approx(us, abs=1e-3)


def graph_of(streams: list[ctypes.c_void_p], nodes: int) -> ctypes.c_void_p:
    """A graph with `nodes` kernels on each of several streams."""
    fork, graph, made = new_event(2), ctypes.c_void_p(), ctypes.c_void_p()
    assert runtime.cudaStreamBeginCapture(streams[0], 1) == 0
    runtime.cudaEventRecord(fork, streams[0])
    for stream in streams[1:]:
        runtime.cudaStreamWaitEvent(stream, fork, 0)
    for stream in streams:
        for _ in range(nodes):
            fake_gpu.launch("k", stream)
    for stream in streams[1:]:
        joined = new_event(2)
        runtime.cudaEventRecord(joined, stream)
        runtime.cudaStreamWaitEvent(streams[0], joined, 0)
    assert runtime.cudaStreamEndCapture(streams[0], ctypes.byref(graph)) == 0
    assert runtime.cudaGraphInstantiate(ctypes.byref(made), graph, ctypes.c_ulonglong(0)) == 0
    return made


@pytest.mark.parametrize("branches", [1, 3])
def test_branches_of_a_graph_overlap_and_each_node_costs(branches: int) -> None:
    streams = [new_stream() for _ in range(branches)]
    graph = graph_of(streams, 4)
    with fake_gpu.node_times(NODE_US, NODE_LAUNCH_US):
        took = between_events_us(streams[0], lambda: runtime.cudaGraphLaunch(graph, streams[0]))
    of_host = LAUNCH_US + 4 * branches * NODE_LAUNCH_US
    assert took == pytest.approx(of_host + START_US + 4 * (1 + NODE_US))


# Choosing the algorithm of a library's kernel.

SHORT_TWICE, LONG_ONCE = "algorithm 0", "algorithm 1, fused"


def new_conv(width: int) -> LibraryOp:
    """A convolution with a bias. Algorithm 1 launches one kernel for it, and algorithm 0 launches
    two."""
    return conv2d((1, 2, 3, width), (2, 2, 3, 3), (1, 2, 3, width), has_bias=True)


def test_the_old_choice_of_algorithms_was_that_of_the_host() -> None:
    """Launches on an idle stream are timed between two events.

    Then one call seems faster than two.
    """
    for library in ("cudnn", "cublaslt"):
        assert library_version(library) is not None
    op = new_conv(6001)
    slow = {1: 2e-3, 7: 1.0}  # Algorithm 1 takes 3 us; the two kernels of algorithm 0 take 2 us.
    stream = new_stream()
    old = {}
    for name, kernels, extra_us in ((LONG_ONCE, 1, 2.0), (SHORT_TWICE, 2, 0.0)):
        calls = [lambda: fake_gpu.launch("k", stream)] * kernels
        took = between_events_us(stream, lambda calls=calls: [call() for call in calls])
        old[name] = took + extra_us
    in_graph = {LONG_ONCE: NODE_US + 3, SHORT_TWICE: 2 * (NODE_US + 1)}
    assert min(old, key=old.__getitem__) == LONG_ONCE
    assert min(in_graph, key=in_graph.__getitem__) == SHORT_TWICE
    with fake_gpu.algorithm_times(slow):
        (today,) = CudaInstance(plan_of(op), None, {}).implementations.values()
    assert today == SHORT_TWICE


# Prices of stages.

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    options = CompileOptions("cuda", providers=["tvm"], latency_db=":memory:", streams=3)
    return Compilation(inception_like(), options)


@pytest.fixture
def model(compilation: Compilation) -> MeasuredLatency:
    program = compilation.program
    timer = compilation._lowered.stage_timer(program, 3, 1)
    return MeasuredLatency(program, {op.kernel: op.kernel for op in program.operators}, timer)


def old_price_us(compilation: Compilation, groups: list[list[int]]) -> float:
    """The time to launch a stage's graph once on an idle GPU, minus the time of an empty graph."""
    timer = compilation._lowered.stage_timer(compilation.program, 3, 1)
    streams = [*groups, *[[] for _ in range(3 - len(groups))]]
    once = timer._executor(streams, 1)
    empty = timer._executor([[], [], []], 1)
    _cuda.time(once, 1)
    return (_cuda.time(once, 1) - _cuda.time(empty, 1)) * 1e6


def time_of_network_us(compilation: Compilation, schedule: Schedule) -> float:
    """The time of a whole network in one graph, in runs that follow each other."""
    plan = compilation.plan(schedule)
    weights, kernels = compilation.program.weights, compilation.loaded_kernels
    instance = CudaInstance(plan, kernels, weights)
    assert instance.dispatch == "captured"
    return instance.time(1) * 1e6


@needs_nvcc
def test_prices_of_stages_add_up_to_the_network(
    compilation: Compilation, model: MeasuredLatency
) -> None:
    names = tuple(op.name for op in compilation.program.operators)
    ops = range(len(names))
    in_turn = Schedule("by hand", names, streams=[[*ops]])
    true_us = time_of_network_us(compilation, in_turn)
    today_us = sum(model.op(op) for op in ops)
    assert LAUNCH_US + START_US + today_us == pytest.approx(true_us, abs=0.05)
    old_us = sum(old_price_us(compilation, [[op]]) for op in ops)
    # If a single launch of a graph is timed, the latency of each operator includes the start of a
    # graph.
    assert old_us == pytest.approx(today_us + len(names) * START_US, abs=0.05)


@needs_nvcc
def test_the_old_prices_made_stages_look_too_good(
    compilation: Compilation, model: MeasuredLatency
) -> None:
    """Each stage's graph is timed by a single launch, as this package did earlier.

    Three operators side by side in one stage are compared with the same operators in three stages.
    """
    groups = [[0], [1], [2]]
    truth = model.stage(groups) / sum(model.op(op) for op in range(3))
    assert truth == pytest.approx(1 / 3, abs=0.02)  # They overlap.
    one_after_another = model.stage([[0, 1, 2]]) / sum(model.op(op) for op in range(3))
    assert one_after_another == pytest.approx(1, abs=0.02)
    single = sum(old_price_us(compilation, [[op]]) for op in range(3))
    old = old_price_us(compilation, [[0, 1, 2]]) / single
    # If single launches of graphs are timed, the same work looks much faster as one stage than as
    # three.
    assert old < 0.6
