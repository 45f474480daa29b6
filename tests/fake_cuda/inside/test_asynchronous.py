"""Runs plans on the asynchronous fake CUDA: a thread for each stream, and random delays.

`tests/cpp/cuda_async_test.cc` also runs random plans on the asynchronous fake CUDA. Its kernels are
in C++, so ThreadSanitizer sees their accesses.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.damage import change_operator
from tests.fake_cuda import fake_gpu
from tests.fake_cuda.fake_gpu import DISPATCHES, new_event, new_stream
from tests.fake_cuda.random_program import (
    SHAPE,
    effects_of,
    random_program,
    random_schedule,
    reference,
)
from tvm_interop._native import cuda as _cuda
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.program.program import Program

GPUS = ((0,), (0, 1), (0, 1, 2))
runtime = fake_gpu.runtime()

pytestmark = pytest.mark.usefixtures("asynchronous")


def planned(seed: int) -> tuple[Program, Plan]:
    program = random_program(seed, num_ops=8 + seed % 9)
    schedule = random_schedule(program, 1 + seed % 4, seed, GPUS[seed % 3])
    return program, make_plan(program, schedule, device="cuda:0")


def is_right(program: Program, plan: Plan, dispatch: _cuda.Dispatch, seed: int) -> bool:
    """Whether two runs of `plan` give the same bits as its operators run one by one, in order."""
    fake_gpu.set_delays(seed + 1)
    kernels = fake_gpu.Kernels(effects_of(program))
    instance = CudaInstance(plan, kernels, program.weights, dispatch=dispatch)
    assert instance.dispatch == dispatch
    rng = np.random.default_rng(seed)
    right = True
    for _ in range(2):
        x = rng.standard_normal(SHAPE).astype(np.float32)
        instance.write(plan.inputs[0], x)
        instance.run()
        for v, expected in zip(plan.outputs, reference(program, x), strict=True):
            right &= np.array_equal(instance.read(v), expected)
    return right


# Each of 100 plans runs in each of the dispatch modes, so 300 schedules run in all.
@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_random_plans_give_the_same_bits(dispatch: _cuda.Dispatch) -> None:
    for seed in range(100):
        assert is_right(*planned(seed), dispatch, seed), seed


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_a_missing_wait_gives_other_bits(dispatch: _cuda.Dispatch) -> None:
    wrong = 0
    for seed in range(60):
        program, plan = planned(seed)
        waiting = [op.name for op in plan.operators if op.waits]
        if not waiting:
            continue
        broken = change_operator(plan, waiting[seed % len(waiting)], waits=())
        wrong += not is_right(program, broken, dispatch, seed)
    assert wrong


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_the_times_of_a_profile_keep_the_order_of_the_plan(dispatch: _cuda.Dispatch) -> None:
    for seed in range(0, 60, 3):  # Random plans with these seeds run on one GPU.
        program, plan = planned(seed)
        fake_gpu.set_delays(seed + 1)
        kernels = fake_gpu.Kernels(effects_of(program))
        instance = CudaInstance(plan, kernels, program.weights, dispatch=dispatch)
        rows = {row.op: row for row in instance.profile()}
        last: dict[int, int] = {}
        for op, each in enumerate(plan.operators):
            earlier = [*each.waits, *([last[each.stream]] if each.stream in last else [])]
            assert all(rows[op].start_us >= rows[e].end_us for e in earlier)
            last[each.stream] = op


# The tests from here on test the fake GPU itself.


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    opened = threading.Event()
    yield opened
    opened.set()


def waits_for(gate: threading.Event) -> object:
    """A kernel that ends when `gate` opens."""
    return fake_gpu.effect(lambda _: gate.wait())


def test_calls_return_before_the_work_is_done(gate: threading.Event) -> None:
    stream, before, after, ms = new_stream(), new_event(), new_event(), ctypes.c_float()
    kernel = waits_for(gate)
    runtime.cudaEventRecord(before, stream)
    assert fake_gpu.launch("waits", stream, kernel) == 0
    runtime.cudaEventRecord(after, stream)
    assert runtime.cudaEventElapsedTime(ctypes.byref(ms), before, after) == 600
    gate.set()
    assert runtime.cudaEventSynchronize(after) == 0
    assert runtime.cudaEventElapsedTime(ctypes.byref(ms), before, after) == 0
    assert ms.value > 0


def test_only_events_order_streams(gate: threading.Event) -> None:
    first, second, event, ran = new_stream(), new_stream(), new_event(), threading.Event()
    kernel, notes = waits_for(gate), fake_gpu.effect(lambda _: ran.set())
    fake_gpu.launch("waits", first, kernel)
    fake_gpu.launch("notes", second, notes)
    assert runtime.cudaStreamSynchronize(second) == 0
    assert ran.is_set()
    ran.clear()
    runtime.cudaEventRecord(event, first)
    runtime.cudaStreamWaitEvent(second, event, 0)
    fake_gpu.launch("notes", second, notes)
    assert not ran.wait(0.05)
    gate.set()
    assert ran.wait(10)
    assert runtime.cudaStreamSynchronize(second) == 0


def test_the_default_stream_waits_for_blocking_streams(gate: threading.Event) -> None:
    blocking, ran = new_stream(flags=0), threading.Event()
    kernel, notes = waits_for(gate), fake_gpu.effect(lambda _: ran.set())
    fake_gpu.launch("waits", blocking, kernel)
    fake_gpu.launch("notes", None, notes)
    assert not ran.wait(0.05)
    gate.set()
    assert ran.wait(10)
    assert runtime.cudaStreamSynchronize(None) == 0


def test_a_destroyed_stream_ends_its_work_first(gate: threading.Event) -> None:
    stream, ran = new_stream(), threading.Event()
    kernel, notes = waits_for(gate), fake_gpu.effect(lambda _: ran.set())
    fake_gpu.launch("waits", stream, kernel)
    fake_gpu.launch("notes", stream, notes)
    assert runtime.cudaStreamDestroy(stream) == 0
    gate.set()
    assert ran.wait(10)


def copied(pinned: bool, gate: threading.Event) -> set[int]:
    """The numbers that arrive on the GPU if the host overwrites the source right after the call
    that starts the copy."""
    stream, device, seen = new_stream(), ctypes.c_void_p(), set()
    host = ctypes.c_void_p()
    pageable = (ctypes.c_char * 1)()
    runtime.cudaMalloc(ctypes.byref(device), ctypes.c_size_t(1))
    runtime.cudaMallocHost(ctypes.byref(host), ctypes.c_size_t(1))
    source = host.value if pinned else ctypes.addressof(pageable)
    assert source is not None
    for _ in range(20):
        gate.clear()
        kernel = waits_for(gate)
        ctypes.memset(source, 1, 1)
        fake_gpu.launch("waits", stream, kernel)
        copy: Callable[..., int] = runtime.cudaMemcpyAsync
        assert copy(device, ctypes.c_void_p(source), ctypes.c_size_t(1), 1, stream) == 0
        ctypes.memset(source, 2, 1)
        gate.set()
        assert runtime.cudaStreamSynchronize(stream) == 0
        seen.add(ctypes.string_at(device, 1)[0])
    return seen


def test_pinned_memory_is_read_after_the_call(gate: threading.Event) -> None:
    assert copied(True, gate) == {2}


def test_pageable_memory_may_be_read_at_once_or_later(gate: threading.Event) -> None:
    assert copied(False, gate) == {1, 2}
