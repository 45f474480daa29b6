"""Tests copies between the host, the GPU and the caller, and the waits that keep them right.

`runtime/cuda/staging.h` lists each buffer that is shared, with the wait that orders its users. For
each wait, a test runs with the wait and sees the right result, and runs without the wait and sees a
wrong result. The GPU works asynchronously, and a kernel keeps the GPU busy until a gate opens.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from tests.fake_cuda import fake_gpu
from tests.fake_cuda.fake_gpu import DISPATCHES, new_stream
from tests.fake_cuda.random_program import (
    SHAPE,
    effects_of,
    random_program,
    random_schedule,
    reference,
)
from tvm_interop import InputError, Schedule
from tvm_interop._native import cuda as _cuda
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.execution.instance import DeviceInstance
from tvm_interop.plan.make import make_plan
from tvm_interop.program.program import Operator, Program, Value

runtime = fake_gpu.runtime()
OPEN_AFTER_S = 0.05
"""Seconds until the gate opens, which lets the GPU's kernel end. If nothing makes the host wait for
the GPU, the host is done long before."""


def ones(number: float) -> np.ndarray:
    return np.full(SHAPE, number, np.float32)


def doubled(devices: tuple[int, int] = (0, 0), seen: list[float] | None = None) -> CudaInstance:
    """An instance that doubles its input `x` into `y`, and adds weight `w` into `z`.

    Parameters
    ----------
    devices: the GPU of each of the two operators.
    seen: gets the first number of `w` in each run of the second operator.
    """
    program = Program(
        values=[Value(name, SHAPE, "float32") for name in ("x", "w", "y", "z")],
        operators=[Operator("double", "double", (0,), (2,)), Operator("add", "add", (0, 1), (3,))],
        inputs=(0,),
        outputs=(2, 3),
        weights={1: ones(5)},
    )
    schedule = Schedule("by hand", ("double", "add"), streams=[[0], [1]], devices=[*devices])

    def double(x: np.ndarray, y: np.ndarray) -> None:
        y[...] = 2 * x

    def add(x: np.ndarray, w: np.ndarray, z: np.ndarray) -> None:
        if seen is not None:
            seen.append(float(w[0]))
        z[...] = x + w

    kernels = fake_gpu.Kernels({"double": double, "add": add})
    plan = make_plan(program, schedule, device="cuda:0")
    return CudaInstance(plan, kernels, program.weights)


@contextlib.contextmanager
def held_up(stream: Any, device: int = 0) -> Iterator[None]:
    """Context in which a kernel on `stream` waits. The kernel ends after `OPEN_AFTER_S` seconds."""
    gate = threading.Event()
    kernel = fake_gpu.effect(lambda _: gate.wait())
    assert runtime.cudaSetDevice(device) == 0
    assert fake_gpu.launch("gate", stream, kernel) == 0
    assert runtime.cudaSetDevice(0) == 0
    timer = threading.Timer(OPEN_AFTER_S, gate.set)
    timer.start()
    try:
        yield
    finally:
        timer.join()
        assert runtime.cudaStreamSynchronize(stream) == 0


def first_stream(instance: CudaInstance, device: int = 0) -> ctypes.c_void_p:
    return ctypes.c_void_p(_cuda.stream_handle(instance.streams, device))


def number_of(array: np.ndarray) -> float:
    (number,) = set(array.tolist())
    return float(number)


@contextlib.contextmanager
def maybe_without(call: str, is_planted: bool) -> Iterator[None]:
    with fake_gpu.without_waits(call) if is_planted else contextlib.nullcontext():
        yield


planted = pytest.mark.parametrize("is_planted", [False, True], ids=["with", "without"])


@pytest.mark.usefixtures("asynchronous")
class TestWaits:
    @planted
    def test_a_slot_is_written_after_the_copy_that_reads_it(self, is_planted: bool) -> None:
        instance = doubled()
        with held_up(first_stream(instance)):
            instance.write(0, ones(1))
            instance.start()
            with maybe_without("cudaEventSynchronize", is_planted):
                instance.write(0, ones(2))
        assert (number_of(instance.read(2)) == 2) is not is_planted

    @planted
    def test_a_read_waits_for_the_copy(self, is_planted: bool) -> None:
        instance = doubled()
        instance.write(0, ones(1))
        instance.run()
        assert number_of(instance.read(2)) == 2
        instance.write(0, ones(2))
        with held_up(first_stream(instance)):
            instance.start()
            with maybe_without("cudaEventSynchronize", is_planted):
                got = number_of(instance.read(2))
        assert (got == 4) is not is_planted

    @planted
    def test_a_copy_on_another_gpu_waits_for_the_run(self, is_planted: bool) -> None:
        """The first GPU still runs the model when a new input is copied to the second GPU, so the
        copy must wait."""
        instance = doubled((0, 1))
        v = instance.plan.inputs[0]
        instance.write(v, ones(1))
        instance.run()
        with held_up(first_stream(instance)):
            instance.start()
            with maybe_without("cudaStreamWaitEvent", is_planted):
                instance.write(v, ones(2))
                # During this pause the copy to the second GPU ends, unless something makes it wait.
                threading.Event().wait(OPEN_AFTER_S / 2)
        assert (number_of(instance.read(instance.plan.outputs[1])) == 6) is not is_planted

    @planted
    def test_a_run_waits_for_a_copy_on_another_gpu(self, is_planted: bool) -> None:
        instance = doubled((0, 1))
        v = instance.plan.inputs[0]
        instance.write(v, ones(1))
        instance.run()
        with held_up(first_stream(instance, 1), 1):
            with maybe_without("cudaStreamWaitEvent", is_planted):
                instance.write(v, ones(2))
            instance.start()
        assert (number_of(instance.read(instance.plan.outputs[1])) == 7) is not is_planted

    @planted
    def test_a_copy_from_another_gpu_waits_for_the_run(self, is_planted: bool) -> None:
        instance = doubled((0, 1))
        v, out = instance.plan.inputs[0], instance.plan.outputs[1]
        instance.write(v, ones(1))
        instance.run()
        instance.write(v, ones(2))
        with held_up(first_stream(instance)):
            instance.start()
            with maybe_without("cudaStreamWaitEvent", is_planted):
                got = number_of(instance.read(out))
        assert (got == 7) is not is_planted

    @planted
    def test_a_view_is_read_after_the_run(self, is_planted: bool) -> None:
        """Another library takes the output by DLPack and reads it on a stream of its own."""
        instance = doubled()
        instance.write(0, ones(1))
        instance.run()
        instance.write(0, ones(2))
        consumer, got = new_stream(), []
        view = instance.view(2)
        memory = fake_gpu.array_at(instance.tensors[2])
        reads = fake_gpu.effect(lambda _: got.append(number_of(memory)))
        with held_up(first_stream(instance)):
            instance.start()
            with maybe_without("cudaStreamWaitEvent", is_planted):
                capsule = view.__dlpack__(stream=consumer.value)
            assert fake_gpu.launch("reads", consumer, reads) == 0
            assert runtime.cudaStreamSynchronize(consumer) == 0
        del capsule
        assert (got == [4]) is not is_planted

    @planted
    def test_a_tensor_of_the_caller_may_change_after_the_call(self, is_planted: bool) -> None:
        instance = doubled()
        tensor = tvm.runtime.empty(SHAPE, "float32", tvm.cuda(0))
        memory = fake_gpu.array_at(tensor)
        memory[...] = 1
        with held_up(first_stream(instance)):
            with maybe_without("cudaStreamSynchronize", is_planted):
                instance.write(0, tensor)
            memory[...] = 3
        instance.run()
        assert (number_of(instance.read(2)) == 2) is not is_planted

    @planted
    def test_work_on_a_tensor_of_the_caller_ends_first(self, is_planted: bool) -> None:
        """Without the wait, work on the tensor that the caller has put on a stream before would
        overwrite the output."""
        instance = doubled()
        instance.write(0, ones(1))
        instance.run()
        tensor = tvm.runtime.empty(SHAPE, "float32", tvm.cuda(0))
        memory = fake_gpu.array_at(tensor)
        theirs = new_stream()
        fills = fake_gpu.effect(lambda _: memory.fill(9))
        with (
            held_up(theirs),
            tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), theirs.value),
        ):
            assert fake_gpu.launch("fills", theirs, fills) == 0
            with maybe_without("cudaStreamWaitEvent", is_planted):
                instance.copy_to(2, tensor)
            if not is_planted:
                assert number_of(memory) == 2
        assert (number_of(memory) == 2) is not is_planted

    @planted
    def test_a_piece_of_a_loader_is_filled_after_the_copy(self, is_planted: bool) -> None:
        """A loader copies weights through two buffers in pinned memory, of 2 MiB each. A buffer may
        be filled again only when its copy has ended."""
        instance = doubled()
        count = 3 << 19
        block = _cuda.make_memory(0, 4 * count)
        tensor = _cuda.tensor_within(block, 0, (count,), "float32")
        host = np.arange(count, dtype=np.float32)
        loader = _cuda.make_loader(instance.streams)
        with (
            held_up(first_stream(instance)),
            maybe_without("cudaEventSynchronize", is_planted),
        ):
            _cuda.load(loader, tvm_ffi.from_dlpack(host), tensor)
        back = np.empty_like(host)
        _cuda.unload(loader, tensor, tvm_ffi.from_dlpack(back))
        assert np.array_equal(back, host) is not is_planted

    @planted
    def test_pinned_memory_stays_until_the_copy_has_ended(self, is_planted: bool) -> None:
        instance = doubled()
        wrong = 0
        for seed in range(1, 60):
            fake_gpu.set_delays(seed)
            loader = _cuda.make_loader(instance.streams)
            for number in (7, 8):
                _cuda.load(loader, tvm_ffi.from_dlpack(ones(number)), instance.tensors[1])
            with maybe_without("cudaEventSynchronize", is_planted):
                del loader
            wrong += number_of(instance.read(1)) != 8
        assert (wrong == 0) is not is_planted


def test_kernels_are_tried_when_the_weights_are_there(tmp_path: Path) -> None:
    """Kernels must be tried after the weights are copied.

    Otherwise a kernel could read a wrong index from a weight, and access memory outside of a
    tensor.
    """
    seen: list[float] = []
    log = tmp_path / "calls.jsonl"
    fake_gpu.start_log(log)
    instance = doubled(seen=seen)
    fake_gpu.stop_log()
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    names = [call["call"] for call in calls]
    begin, end = names.index("cudaMemcpyAsync"), names.index("launch")
    origin = calls[begin]["stream"]
    between = [call for call in calls[begin:end] if call["call"] == "cudaStreamSynchronize"]
    assert [call["stream"] for call in between] == [origin]
    assert names.index("cudaMemsetAsync") < begin
    assert {call["stream"] for call in calls if call["call"] == "launch"} > {origin}
    assert set(seen) == {5}
    del instance


@pytest.mark.parametrize("dispatch", DISPATCHES)
@pytest.mark.parametrize("devices", [(0,), (0, 1, 2)])
@pytest.mark.usefixtures("asynchronous")
def test_runs_that_nobody_waits_for_keep_their_order(
    dispatch: _cuda.Dispatch, devices: tuple[int, ...]
) -> None:
    for seed in range(15):
        fake_gpu.set_delays(seed + 1)
        program = random_program(seed)
        plan = make_plan(program, random_schedule(program, 4, seed, devices), device="cuda:0")
        kernels = fake_gpu.Kernels(effects_of(program))
        instance = CudaInstance(plan, kernels, program.weights, dispatch=dispatch)
        rng = np.random.default_rng(seed)
        for _ in range(3):
            for _ in range(2):
                x = rng.standard_normal(SHAPE).astype(np.float32)
                instance.write(plan.inputs[0], x)
                instance.start()
            for v, expected in zip(plan.outputs, reference(program, x), strict=True):
                np.testing.assert_array_equal(instance.read(v), expected)


def calls_of(log: Path, body: Callable[[], object]) -> dict[str, int]:
    """How many times `body` calls each function of CUDA."""
    fake_gpu.start_log(log)
    body()
    fake_gpu.stop_log()
    names = [line.partition('"call":"')[2].partition('"')[0] for line in log.open()]
    return {name: names.count(name) for name in names}


def test_the_host_waits_once_for_a_run_and_its_outputs(tmp_path: Path) -> None:
    instance = doubled()
    x = ones(3)

    def once() -> None:
        instance.write(0, x)
        instance.run(wanted=(2, 3))
        assert number_of(instance.read(2)) == 6
        assert number_of(instance.read(3)) == 8

    once()
    calls = calls_of(tmp_path / "calls.jsonl", once)
    assert calls["cudaStreamSynchronize"] == 1
    assert calls["cudaMemcpyAsync"] == 3
    # The module knows that the copies have ended, so the calls of `cudaEventSynchronize` return at
    # once.
    assert calls.get("cudaEventSynchronize", 0) <= 3
    assert not {"cudaMallocHost", "cudaFreeHost", "cudaMalloc", "cudaEventCreate"} & calls.keys()


def test_no_copy_is_of_pageable_memory(tmp_path: Path) -> None:
    log = tmp_path / "calls.jsonl"
    fake_gpu.start_log(log)
    instance = doubled((0, 1))
    instance.write(instance.plan.inputs[0], ones(3))
    instance.run()
    for v in range(len(instance.plan.values)):
        instance.read(v)
    fake_gpu.stop_log()
    blocks = [
        (line["address"], line["address"] + line["nbytes"])
        for call in ("cudaMalloc", "cudaMallocHost")
        for line in fake_gpu.logged(log, call)
    ]
    copies = fake_gpu.logged(log, "cudaMemcpyAsync")
    assert len(copies) >= 6
    for copy in copies:
        for end in ("from", "to"):
            assert any(begin <= copy[end] < stop for begin, stop in blocks), copy


def test_an_output_on_the_gpu_is_not_copied_to_the_host(tmp_path: Path) -> None:
    instance = doubled()
    instance.write(0, ones(3))

    def run() -> None:
        instance.run()
        view = instance.view(2)
        taken = tvm_ffi.from_dlpack(view)
        assert taken.data_ptr() == instance.tensors[2].data_ptr()
        assert number_of(fake_gpu.array_at(taken)) == 6

    assert "cudaMemcpyAsync" not in calls_of(tmp_path / "calls.jsonl", run)


def test_an_instance_has_one_block_and_frees_it(check_log: Callable[..., list[str]]) -> None:
    before = fake_gpu.allocated()
    pinned = fake_gpu.allocated(-1)
    instance = doubled()
    assert fake_gpu.allocated()[1] == before[1] + 1
    assert fake_gpu.allocated(-1)[1] == pinned[1] + 1
    accesses = fake_gpu.accesses_of(instance)
    instance.write(0, ones(1))
    instance.run()
    del instance
    assert check_log(accesses) == []
    assert fake_gpu.allocated() == before
    assert fake_gpu.allocated(-1) == pinned


# The tensor itself.


def test_a_view_tells_what_it_is() -> None:
    instance = doubled((0, 1))
    assert isinstance(instance, DeviceInstance)
    instance.write(instance.plan.inputs[0], ones(3))
    instance.run()
    first, second = (instance.view(v) for v in instance.plan.outputs)
    assert first.__dlpack_device__() == (2, 0)
    assert second.__dlpack_device__() == (2, 1)
    assert repr(second) == "DeviceTensor(float32 of shape (8,) on cuda:1)"
    np.testing.assert_array_equal(np.asarray(first), ones(6))
    assert np.asarray(second, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="is copied into an array"):
        np.array(first, copy=False)


@pytest.mark.parametrize("stream", [None, 1, 2])
def test_the_default_stream_is_meant_if_none_is_named(stream: int | None, tmp_path: Path) -> None:
    instance = doubled()
    view, log = instance.view(2), tmp_path / "calls.jsonl"
    assert calls_of(log, lambda: view.__dlpack__(stream=stream))["cudaStreamWaitEvent"] == 1
    assert [line["stream"] for line in fake_gpu.logged(log, "cudaStreamWaitEvent")] == [0]


def test_a_consumer_that_waits_by_itself(tmp_path: Path) -> None:
    view = doubled().view(2)
    assert calls_of(tmp_path / "calls.jsonl", lambda: view.__dlpack__(stream=-1)) == {}


def test_what_dlpack_forbids_is_refused() -> None:
    view = doubled().view(2)
    for stream in (0, -2, "1"):
        with pytest.raises(InputError, match="`stream` is "):
            view.__dlpack__(stream=stream)  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="no copy is made here"):
        view.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="the tensor is on cuda:0"):
        view.__dlpack__(dl_device=(1, 0))
    assert view.__dlpack__(dl_device=(2, 0), max_version=(1, 0)) is not None


def test_a_tensor_for_an_output_must_fit() -> None:
    instance = doubled((0, 1))
    instance.run()
    elsewhere = tvm.runtime.empty(SHAPE, "float32", tvm.cuda(1))
    with pytest.raises(InputError, match="is on cuda:1, and the output on cuda:0"):
        instance.copy_to(instance.plan.outputs[0], elsewhere)
