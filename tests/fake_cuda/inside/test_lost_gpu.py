"""Tests the errors of a process that cannot use its GPUs any more, after a failure or a fork."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import textwrap
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout

import numpy as np
import pytest

from tests.fake_cuda import fake_gpu
from tests.fake_cuda.fake_gpu import DISPATCHES
from tests.fake_cuda.random_program import (
    SHAPE,
    effects_of,
    random_program,
    random_schedule,
    reference,
)
from tvm_interop import DeviceError
from tvm_interop._native import cuda as _cuda
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.plan.make import make_plan


def instance_of(seed: int = 2, dispatch: _cuda.Dispatch = "captured") -> CudaInstance:
    program = random_program(seed)
    plan = make_plan(program, random_schedule(program, 3, seed), device="cuda:0")
    kernels = fake_gpu.Kernels(effects_of(program))
    return CudaInstance(plan, kernels, program.weights, dispatch=dispatch)


_PROCESSES = multiprocessing.get_context("forkserver")
"""Starts processes that have imported this file and have not used the GPU."""
_PROCESSES.set_forkserver_preload([__name__])


def said_by(code: str) -> list[str]:
    """Run code in another process, because a failure ends the use of the GPU in its process.

    Returns the lines that the code prints. `says(function)` prints the error that `function`
    raises.
    """
    with ProcessPoolExecutor(1, mp_context=_PROCESSES) as pool:
        return pool.submit(_printed, textwrap.dedent(code)).result()


def _printed(code: str) -> list[str]:
    # Processes that the code forks print into the same file.
    with tempfile.TemporaryFile("w+") as file:
        with redirect_stdout(file):
            exec(code, dict(globals()))
        file.seek(0)
        return file.read().splitlines()


def says(function: Callable[..., object], *args: object) -> None:
    try:
        function(*args)
    except Exception as error:
        print(type(error).__name__, str(error).strip().replace("\n", " "))
    else:
        print("nothing")


RESTART = "the GPU cannot be used any more in this process: start a new process"


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_a_failure_on_the_gpu_ends_its_use(dispatch: str) -> None:
    at_once, run, copy, new, describe = said_by(
        f"""
        instance = instance_of(dispatch="{dispatch}")
        fake_gpu.fail_next("cudaStreamSynchronize", 700)
        says(instance.run)
        says(instance.run)
        says(instance.write, 0, np.ones(SHAPE, np.float32))
        says(instance_of)
        says(_cuda.describe_device, 0)
        del instance
        """
    )
    cause = "`cudaStreamSynchronize` failed: cudaErrorIllegalAddress (cudaErrorIllegalAddress)"
    assert at_once.startswith(f"DeviceError {cause}; {RESTART}")
    for later in (run, copy, new, describe):
        assert later.startswith(f"DeviceError the GPU failed before: {cause}; {RESTART}")


def test_the_operator_that_fails_when_it_is_tried_is_named() -> None:
    at_once, later = said_by(
        """
        fake_gpu.fail_work("op3", 719)
        says(instance_of)
        says(instance_of)
        """
    )
    cause = "operator `op3` failed on the GPU: cudaErrorLaunchFailure"
    assert at_once.startswith(f"DeviceError {cause}; {RESTART}")
    assert later.startswith(f"DeviceError the GPU failed before: {cause}; {RESTART}")


def test_a_kernel_of_a_library_that_fails_when_it_is_tried_names_its_operator() -> None:
    """A library's kernel is tried before its first real run. Planning and launching it succeed, and
    the GPU fails when it runs the kernel."""
    (said,) = said_by(
        """
        from tests.library_cases import CASES, plan_of
        from tvm_interop.machine.kernel_libraries import library_version
        assert library_version("cudnn") is not None
        CudaInstance(plan_of(CASES["conv2d"]), None, {})  # The algorithm is chosen.
        fake_gpu.fail_work("cudnnConvolutionForward", 719)
        says(CudaInstance, plan_of(CASES["conv2d"]), None, {})
        """
    )
    cause = "operator `op` failed on the GPU: cudaErrorLaunchFailure"
    assert said.startswith(f"DeviceError {cause}; {RESTART}")


@pytest.mark.parametrize("dispatch", ["captured", "linked"])
def test_a_failure_while_the_graph_is_made_is_no_reason_to_go_on_without_it(dispatch: str) -> None:
    (said,) = said_by(
        f"""
        fake_gpu.fail_next("cudaGraphInstantiate", 700)
        says(instance_of, 2, "{dispatch}")
        """
    )
    assert said.startswith("DeviceError `cudaGraphInstantiate` failed: cudaErrorIllegalAddress")
    assert RESTART in said


def test_a_failure_that_is_noticed_while_an_error_is_handled() -> None:
    """First a call of CUDA fails. While the host then waits for the work on the GPU, this work
    fails too."""
    at_once, later = said_by(
        """
        instance = instance_of(dispatch="streams")
        fake_gpu.fail_work("op0", 700)
        fake_gpu.fail_next("cudaEventRecord", 2)
        says(instance.run)
        says(instance.run)
        """
    )
    assert "`cudaEventRecord` failed: cudaErrorMemoryAllocation" in at_once
    assert at_once.startswith("DeviceError")
    assert "cudaErrorIllegalAddress" in at_once
    assert RESTART in at_once
    assert later.startswith("DeviceError the GPU failed before")


def test_an_error_of_one_call_ends_nothing() -> None:
    first, second = said_by(
        """
        instance = instance_of(dispatch="streams")
        fake_gpu.fail_next("cudaEventRecord", 2)
        says(instance.run)
        says(instance.run)
        """
    )
    assert first.startswith("ExecutionError")
    assert second == "nothing"


# Forks.


def test_a_forked_process_is_told_that_it_has_no_gpu() -> None:
    program, instance = random_program(2), instance_of()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        for use in (instance.run, instance_of, lambda: _cuda.describe_device(0)):
            try:
                use()
            except DeviceError as error:
                os.write(writing, f"{error}\n".encode())
        del instance  # A forked child leaves the parent's CUDA objects alone.
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = [line for line in pipe.read().splitlines() if line]
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(said) == 3
    for line in said:
        assert "this process was forked after CUDA had started, so it cannot use a GPU" in line
        assert "`spawn`" in line
    x = np.ones(SHAPE, np.float32)
    instance.write(0, x)
    instance.run()  # The parent can still use the GPU.
    np.testing.assert_array_equal(instance.read(program.outputs[0]), reference(program, x)[0])


def test_a_process_that_was_forked_before_our_first_use_of_cuda_is_told_why() -> None:
    (said,) = said_by(
        """
        import ctypes, os, sys
        fake_gpu.runtime().cudaGetDeviceCount(ctypes.byref(ctypes.c_int()))  # Another library.
        child = os.fork()
        if child == 0:
            says(_cuda.device_count)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        """
    )
    assert said.startswith("DeviceError no GPU here: cudaErrorInitializationError")
    assert "forked" in said
