"""Tests how stages are timed on a GPU that takes time to begin a graph.

Each piece of work takes the fake GPU a microsecond. Operators on different streams overlap.
"""

from __future__ import annotations

import gc
import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fake_cuda import fake_gpu
from tests.nets import inception_like
from tvm_interop.compiler.api import CompileOptions
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.measure import cuda_timer
from tvm_interop.measure.measured import MeasuredLatency
from tvm_interop.measure.stage_timer import Rounds

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")

START_US = 20.0


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    options = CompileOptions("cuda", providers=["tvm"], latency_db=":memory:", streams=3)
    return Compilation(inception_like(), options)


@pytest.fixture
def model(compilation: Compilation) -> Iterator[MeasuredLatency]:
    program = compilation.program
    timer = compilation._lowered.stage_timer(program, 3, 1)
    with fake_gpu.graph_start(START_US):
        yield MeasuredLatency(program, {op.kernel: op.kernel for op in program.operators}, timer)


def test_the_start_of_a_graph_is_no_part_of_a_stage(model: MeasuredLatency) -> None:
    """A schedule runs as one graph, so the GPU's time to start a graph occurs only once in it.

    If the latency of each stage included the time to start a graph, schedules with fewer stages
    would seem faster than they are.
    """
    two, three = [[0], [1]], [[0], [1], [2]]
    assert model.op(0) == pytest.approx(1, abs=0.01)
    assert model.stage(two) == pytest.approx(1, abs=0.01)
    assert model.stage(three) == pytest.approx(1, abs=0.01)
    in_turn = sum(model.op(op) for op in (0, 1, 2))
    assert model.stage([[0, 1, 2]]) == pytest.approx(in_turn, abs=0.02)


def test_long_stages_are_repeated_less_often(
    model: MeasuredLatency, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    executor = cuda_timer.CudaStageTimer._executor

    def noted(self: cuda_timer.CudaStageTimer, streams: list[list[int]], times: int) -> object:
        made.append(times)
        return executor(self, streams, times)

    monkeypatch.setattr(cuda_timer.CudaStageTimer, "_executor", noted)
    monkeypatch.setattr(cuda_timer, "_LONG_US", START_US + 1.5)
    assert model.stages([[[0]], [[0, 1]]]) == pytest.approx([1, 2], abs=0.01)
    # The first of the three stages that were measured is the empty stage.
    assert made == [1, 4, 8, 1, 4, 8, 1, 2]


def test_a_wait_is_what_the_second_stream_adds(model: MeasuredLatency) -> None:
    assert model.wait_us() == pytest.approx(0, abs=0.01)  # Waits take no time here.


def test_a_repetition_begins_when_the_one_before_has_ended(compilation: Compilation) -> None:
    timer = compilation._lowered.stage_timer(compilation.program, 3, 1)
    _, once = timer._operators.bind([[0, 1], [2], []])
    _, thrice = timer._operators.bind_in_a_row([[0, 1], [2], []], 3)
    assert [op.name for op in thrice] == 3 * [op.name for op in once]
    # The first operator on each stream waits for the last operators of all other streams.
    assert [list(op.waits) for op in thrice] == [[], [], [], [2], [], [1], [5], [], [4]]
    assert timer._operators.bind_in_a_row([[], [], []], 3)[1] == []


def test_tensors_lie_in_one_block(compilation: Compilation, tmp_path: Path) -> None:
    """A timer of stages allocates the memory of all tensors with one call. Each allocation may wait
    for the GPU, so there must be only one."""
    program = compilation.program
    timer = compilation._lowered.stage_timer(program, 3, 1)
    log = tmp_path / "calls.jsonl"
    fake_gpu.start_log(log)
    made = {v for op in program.operators for v in op.outputs}
    read = {v for op in program.operators for v in op.inputs}
    tensors = [timer._operators._tensor(v, frozenset()) for v in read]
    tensors += [timer._operators._tensor(v, frozenset({v})) for v in made]
    fake_gpu.stop_log()
    assert len(fake_gpu.logged(log, "cudaMalloc")) == 1
    assert len(fake_gpu.logged(log, "cudaMallocHost")) == 1
    assert len(fake_gpu.logged(log, "cudaMemcpyAsync")) >= len(tensors) > 20
    for call in ("cudaStreamCreate", "cudaMemsetAsync", "cudaStreamSynchronize", "cudaFree"):
        assert fake_gpu.logged(log, call) == []
    begins = sorted((fake_gpu.address_of(tensor), nbytes_of(tensor)) for tensor in tensors)
    for (begin, nbytes), (after, _) in itertools.pairwise(begins):
        assert begin + nbytes <= after
    del tensors, timer
    gc.collect()


def nbytes_of(tensor: Any) -> int:
    return int(np.prod(tensor.shape)) * np.dtype(str(tensor.dtype)).itemsize


def test_a_run_that_was_held_up_changes_no_price() -> None:
    chain = cuda_timer._Chain(4, None, None)
    chain.add([8e-6, 9e-6, 50e-6], [16e-6, 17e-6, 18e-6])
    assert chain.latencies_s(1) == pytest.approx([1.875e-6])
    chain.add([8e-6], [12e-6, 60e-6])
    assert chain.latencies_s(4) == pytest.approx([2.25e-6, 2.5e-6, 1e-6, 13e-6])
    assert chain.latencies_s(1) == []


def test_no_run_of_a_stage_is_thrown_away(
    compilation: Compilation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request asks for one time of each stage, and runs each graph three times. The two
    runs that are left serve the next request."""
    ran: list[tuple[int, int]] = []
    run = cuda_timer._cuda.measure_interleaved

    def noted(graphs: Sequence[Any], warmup: int, repeats: int, seed: int) -> list[list[float]]:
        ran.append((len(graphs), repeats))
        return run(graphs, warmup, repeats, seed)

    monkeypatch.setattr(cuda_timer._cuda, "measure_interleaved", noted)
    timer = compilation._lowered.stage_timer(compilation.program, 3, 1)

    def measure(rounds: Rounds) -> list[int]:
        of_two = rounds([[[0], [], []], [[0, 1], [], []]])
        asked: list[tuple[list[int], int]] = [([0, 1], 1), ([0, 1], 2), ([1], 2), ([0, 1], 5)]
        return [len(times) for indices, repeats in asked for times in of_two(indices, repeats)]

    assert list(timer.do([measure])) == [[1, 1, 2, 2, 2, 5, 5]]
    assert ran == [(4, 3), (2, 2), (4, 5)]
