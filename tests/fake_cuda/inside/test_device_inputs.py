"""Tests inputs that lie on a GPU: tensors of TVM, and of libraries that speak DLPack."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from tests.fake_cuda import fake_gpu
from tests.fake_cuda.fake_gpu import new_event, new_stream
from tests.fake_cuda.random_program import (
    SHAPE,
    effects_of,
    random_program,
    random_schedule,
    reference,
)
from tvm_interop import InputError
from tvm_interop._native import cuda as _cuda
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.execution.inputs import as_input
from tvm_interop.plan.make import make_plan
from tvm_interop.program.program import Program

runtime = fake_gpu.runtime()


def instance_of(program: Program, devices: tuple[int, ...] = (0,)) -> CudaInstance:
    plan = make_plan(program, random_schedule(program, 3, 5, devices), device="cuda:0")
    return CudaInstance(plan, fake_gpu.Kernels(effects_of(program)), program.weights)


def run_on(instance: CudaInstance, x: Any) -> list[np.ndarray]:
    """Set the input as `GraphModule` does, run, and return the outputs."""
    v = instance.plan.inputs[0]
    instance.write(v, as_input(x, instance.plan.values[v], instance))
    instance.run()
    return [instance.read(v) for v in instance.plan.outputs]


@pytest.mark.parametrize("devices", [(0,), (0, 1)])
def test_a_tensor_of_tvm(devices: tuple[int, ...]) -> None:
    program = random_program(5)
    instance = instance_of(program, devices)
    for seed in range(2):
        x = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)
        got = run_on(instance, tvm.runtime.tensor(x, device=tvm.cuda(0)))
        for found, expected in zip(got, reference(program, x), strict=True):
            np.testing.assert_array_equal(found, expected)


class Foreign:
    """A tensor of another library. That library's work on it is done on a stream of its own.

    DLPack requires that `__dlpack__` lets the consumer's stream wait for the producer's stream.
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor, self.stream, self.asked_for = tensor, new_stream(), 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return tuple(self.tensor.__dlpack_device__())

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> object:
        if stream is not None:
            self.asked_for = stream
            event = new_event()
            assert runtime.cudaEventRecord(event, self.stream) == 0
            assert runtime.cudaStreamWaitEvent(ctypes.c_void_p(stream), event, 0) == 0
        return self.tensor.__dlpack__()


@pytest.mark.usefixtures("asynchronous")
def test_work_of_another_library_is_waited_for() -> None:
    program = random_program(5)
    instance = instance_of(program)
    x = np.full(SHAPE, 3, np.float32)
    foreign = Foreign(tvm.runtime.empty(SHAPE, "float32", tvm.cuda(0)))
    array = fake_gpu.array_at(foreign.tensor)
    gate = threading.Event()

    def fill(_: int) -> None:
        gate.wait()
        array[...] = x

    effect = fake_gpu.effect(fill)
    assert fake_gpu.launch("fill", foreign.stream, effect) == 0
    threading.Timer(0.05, gate.set).start()
    for found, expected in zip(run_on(instance, foreign), reference(program, x), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert foreign.asked_for == _cuda.stream_handle(instance.streams, 0) > 2


@pytest.mark.usefixtures("asynchronous")
def test_work_of_tvm_is_waited_for() -> None:
    """TVM's tensors ignore the stream that DLPack passes, so we must wait for TVM's own stream."""
    program = random_program(5)
    instance = instance_of(program)
    x = np.full(SHAPE, 3, np.float32)
    tensor = tvm.runtime.empty(SHAPE, "float32", tvm.cuda(0))
    array = fake_gpu.array_at(tensor)
    gate = threading.Event()

    def fill(_: int) -> None:
        gate.wait()
        array[...] = x

    effect = fake_gpu.effect(fill)
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), new_stream().value):
        assert fake_gpu.launch("fill", fake_gpu.current_stream(), effect) == 0
        threading.Timer(0.05, gate.set).start()
        got = run_on(instance, tensor)
    for found, expected in zip(got, reference(program, x), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_tensors_that_do_not_fit_are_refused() -> None:
    instance = instance_of(random_program(5))
    on_gpu = {"device": tvm.cuda(0)}
    with pytest.raises(InputError, match=r"input `x` must be float32 of shape \(8,\), got float32"):
        run_on(instance, tvm.runtime.tensor(np.zeros(9, np.float32), **on_gpu))
    with pytest.raises(InputError, match=r"input `x` must be float32 .*, got int32 of shape \(8,"):
        run_on(instance, tvm.runtime.tensor(np.zeros(8, np.int32), **on_gpu))
    elsewhere = tvm.runtime.tensor(np.zeros(8, np.float32), device=tvm.cuda(1))
    with pytest.raises(InputError, match="is on cuda:1, and the module runs on cuda:0: copy"):
        run_on(instance, elsewhere)


def test_a_module_on_the_cpu_says_that_it_reads_no_gpu() -> None:
    instance = instance_of(random_program(5))
    instance.dlpack_device_type = 1  # type: ignore[misc]
    with pytest.raises(InputError, match="or a tensor in the host's memory"):
        run_on(instance, tvm.runtime.tensor(np.zeros(8, np.float32), device=tvm.cuda(0)))
