"""Tests the limit of the workspaces of library kernels, and the errors for kernels that fail late.

In the fake cuDNN, algorithm 0 needs no workspace, 1 needs 1 MiB, 7 needs 2 MiB and 4 needs 1 GiB.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tvm_interop
from tests.fake_cuda import fake_gpu
from tests.fake_cuda.fake_gpu import DISPATCHES
from tests.library_cases import conv2d, matmul, numbers, plan_of, reference
from tvm_interop import ArtifactError, ExecutionError, InputError, Schedule
from tvm_interop._native import cuda as _cuda
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.machine.kernel_libraries import library_version
from tvm_interop.plan.make import make_plan
from tvm_interop.program.library_op import LibraryOp
from tvm_interop.program.program import Operator, Program, Value

MIB = 1 << 20
NOT_SUPPORTED, ALLOC_FAILED, EXECUTION_FAILED = 3000, 4003, 5000
"""Statuses of cuDNN."""


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    for library in ("cudnn", "cublaslt"):
        assert library_version(library) is not None


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    before = tvm_interop.workspace_limit()
    yield
    tvm_interop.set_workspace_limit(before)


def conv(width: int) -> LibraryOp:
    """A convolution of a shape that no other test uses.

    So the process does not remember an algorithm for it yet.
    """
    return conv2d((1, 3, 2, 50 + width), (2, 3, 3, 3), (1, 2, 2, 50 + width))


def instance_of(op: LibraryOp, dispatch: _cuda.Dispatch = "captured") -> CudaInstance:
    return CudaInstance(plan_of(op), None, {}, dispatch=dispatch)


def algorithm_of(op: LibraryOp) -> str:
    (told,) = instance_of(op).implementations.values()
    return told


def test_the_default_is_64_mib() -> None:
    assert tvm_interop.workspace_limit() == 64 * MIB
    with fake_gpu.algorithm_times(dict.fromkeys((0, 1, 7), 1.0)):
        # Algorithm 4 would be the fastest, and needs 1 GiB.
        assert algorithm_of(conv(0)) == "algorithm 1"


def test_a_slower_algorithm_runs_if_the_fastest_needs_too_much() -> None:
    with fake_gpu.algorithm_times({0: 2.0, 1: 1.0}):
        assert algorithm_of(conv(1)) == "algorithm 7"
        tvm_interop.set_workspace_limit(2 * MIB - 1)
        assert algorithm_of(conv(1)) == "algorithm 1"
        tvm_interop.set_workspace_limit(MIB - 1)
        assert algorithm_of(conv(1)) == "algorithm 0"


def test_products_keep_to_the_limit_too(tmp_path: Path) -> None:
    """In the fake cuBLASLt, algorithm 0 needs a workspace of 64 KiB, and algorithm 1 needs none."""
    op, log = matmul((3, 77), (77, 4)), tmp_path / "calls.jsonl"
    for most, algorithm in ((1 << 16, 0), ((1 << 16) - 1, 1)):
        tvm_interop.set_workspace_limit(most)
        instance_of(op)
        fake_gpu.start_log(log)
        instance_of(op)
        fake_gpu.stop_log()
        assert {line["algorithm"] for line in fake_gpu.logged(log, "launch")} == {algorithm}


def test_an_operator_without_an_algorithm_within_the_limit_is_refused() -> None:
    tvm_interop.set_workspace_limit(4095)
    with fake_gpu.larger_workspaces(4096), pytest.raises(ArtifactError) as raised:
        instance_of(conv(2))
    assert "operator `op`: its algorithms need a workspace of 4096 bytes or more" in str(raised)
    assert "4095 are allowed: raise the limit with tvm_interop.set_workspace_limit" in str(raised)


def test_memory_stays_within_the_limit_and_comes_back() -> None:
    """The plan has two streams, and each has a workspace of its own."""
    ops = [conv(3), conv(4)]
    program = Program(
        values=[
            Value(f"v{i}", shape, "float32")
            for i, shape in enumerate(shape for op in ops for shape in op.shapes)
        ],
        operators=[
            Operator(f"op{i}", "", (3 * i, 3 * i + 1), (3 * i + 2,), op, "cudnn")
            for i, op in enumerate(ops)
        ],
        inputs=(0, 1, 3, 4),
        outputs=(2, 5),
    )
    schedule = Schedule("by hand", ("op0", "op1"), streams=[[0], [1]])
    plan = make_plan(program, schedule, device="cuda:0")
    own = sum(value.nbytes + 256 for value in plan.values)
    gc.collect()
    before = fake_gpu.allocated()
    for most, used in ((64 * MIB, 4 * MIB), (MIB, 2 * MIB), (0, 0)):
        tvm_interop.set_workspace_limit(most)
        with fake_gpu.algorithm_times({0: 2.0, 1: 1.0}):
            instance = CudaInstance(plan, None, {})
        taken = fake_gpu.allocated()[0] - before[0]
        assert used <= taken <= used + own
        assert taken <= 2 * most + own
        del instance
        gc.collect()
        assert fake_gpu.allocated() == before


@pytest.mark.parametrize("nbytes", [-1, 1.5, "64"])
def test_a_limit_is_a_whole_number(nbytes: object) -> None:
    with pytest.raises(InputError, match="`nbytes` is "):
        tvm_interop.set_workspace_limit(nbytes)  # type: ignore[arg-type]


def test_an_algorithm_that_is_always_refused_is_left_out_and_named() -> None:
    for width, status, name in (
        (20, NOT_SUPPORTED, "NOT_SUPPORTED"),
        (21, ALLOC_FAILED, "ALLOC_FAILED"),
        (22, EXECUTION_FAILED, "EXECUTION_FAILED"),
    ):
        op = conv(width)
        with fake_gpu.late_refusals({1: status}):
            assert algorithm_of(op) == (
                "algorithm 0; refused: algorithm 1 (`cudnnConvolutionForward` failed: "
                f"CUDNN_STATUS_{name})"
            )
            arrays = numbers(op)
            instance = instance_of(op)
            for v, array in enumerate(arrays):
                instance.write(v, array)
            instance.run()
        np.testing.assert_allclose(instance.read(2), reference(op, arrays), 1e-4, 1e-4)


def test_an_operator_whose_algorithms_are_all_refused_is_named() -> None:
    everything = dict.fromkeys((0, 1, 4, 7), ALLOC_FAILED)
    with (
        fake_gpu.late_refusals(everything),
        pytest.raises(ArtifactError, match=r"operator `op`: .* failed: CUDNN_STATUS_ALLOC_FAILED"),
    ):
        instance_of(conv(5))
    with (
        fake_gpu.late_refusals(dict.fromkeys((0, 1), 3)),
        pytest.raises(ArtifactError, match=r"operator `op`: .* failed: CUBLAS_STATUS_ALLOC_FAILED"),
    ):
        instance_of(matmul((3, 79), (79, 4)))


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_an_operator_that_fails_after_it_was_chosen_is_named(dispatch: _cuda.Dispatch) -> None:
    """An algorithm may be chosen and fail later, for example if other programs take the memory."""
    for op, status, name in (
        (conv(6), ALLOC_FAILED, "cudnnConvolutionForward` failed: CUDNN_STATUS_ALLOC_FAILED"),
        (conv(6), EXECUTION_FAILED, "cudnnConvolutionForward` failed: CUDNN_STATUS_EXECUTION_"),
        (matmul((3, 81), (81, 4)), 13, "cublasLtMatmul` failed: CUBLAS_STATUS_EXECUTION_FAILED"),
        (matmul((3, 81), (81, 4)), 15, "cublasLtMatmul` failed: CUBLAS_STATUS_NOT_SUPPORTED"),
    ):
        instance = instance_of(op, dispatch)
        with (
            fake_gpu.late_refusals(dict.fromkeys((0, 1), status)),
            pytest.raises(ExecutionError, match=f"operator `op` failed: `{name}"),
        ):
            instance_of(op, dispatch)
        instance.run()  # Other instances still run after a refusal.


def test_an_operator_that_is_refused_in_a_run_is_named() -> None:
    instance = instance_of(conv(7), "streams")
    with (
        fake_gpu.late_refusals({1: EXECUTION_FAILED}),
        pytest.raises(ExecutionError, match="operator `op` failed: `cudnnConvolutionForward"),
    ):
        instance.run()
    instance.run()
