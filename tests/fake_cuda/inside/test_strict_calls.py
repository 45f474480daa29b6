"""The fake CUDA refuses launches that CUDA refuses, and it does not forget errors."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_cuda import fake_gpu
from tests.fake_cuda.fake_gpu import new_event, new_stream

runtime, driver = fake_gpu.runtime(), fake_gpu.driver()

SOURCE = """
extern "C" __global__ void plain(float* x) { x[threadIdx.x] *= 2; }
extern "C" __global__ void __launch_bounds__(256) bounded(float* x) { x[threadIdx.x] *= 2; }
extern "C" __global__ void shared(float* x) {
  __shared__ float tile[1024];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = tile[1023 - threadIdx.x];
}
"""


class Config(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint),
    )


@pytest.fixture(scope="module")
def fatbin(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compiled(tmp_path_factory.mktemp("kernels"), "sm_90")


def compiled(folder: Path, arch: str) -> bytes:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    source, fatbin = folder / "kernels.cu", folder / "kernels.fatbin"
    source.write_text(SOURCE)
    subprocess.run([nvcc, "--fatbin", f"-arch={arch}", source, "-o", fatbin], check=True)
    return fatbin.read_bytes()


def load(fatbin: bytes) -> ctypes.c_void_p:
    module = ctypes.c_void_p()
    assert driver.cuModuleLoadData(ctypes.byref(module), fatbin) == 0
    return module


def function(module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
    found = ctypes.c_void_p()
    assert driver.cuModuleGetFunction(ctypes.byref(found), module, name.encode()) == 0
    return found


def launch(
    kernel: ctypes.c_void_p,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    shared_bytes: int = 0,
    stream: ctypes.c_void_p | None = None,
) -> int:
    on = (stream or new_stream()).value
    config = Config((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), shared_bytes, on)
    return int(driver.cuLaunchKernelEx(ctypes.byref(config), kernel, None, None))


# Modules and launches.


def test_a_module_needs_code_for_the_gpu(tmp_path: Path, fatbin: bytes) -> None:
    module = ctypes.c_void_p()
    older = compiled(tmp_path, "sm_80")
    assert driver.cuModuleLoadData(ctypes.byref(module), older) == 209
    assert driver.cuModuleLoadData(ctypes.byref(module), b"\0" * 64) == 200
    assert driver.cuModuleLoadData(ctypes.byref(module), fatbin) == 0


def test_a_kernel_is_found_by_its_name(fatbin: bytes) -> None:
    module, found = load(fatbin), ctypes.c_void_p()
    assert driver.cuModuleGetFunction(ctypes.byref(found), module, b"plane") == 500
    assert driver.cuModuleGetFunction(ctypes.byref(found), module, b"plain") == 0


@pytest.mark.parametrize(
    ("grid", "block", "status"),
    [
        ((1, 1, 1), (1024, 1, 1), 0),
        ((1, 1, 1), (1025, 1, 1), 1),
        ((1, 1, 1), (32, 33, 1), 1),
        ((1, 1, 1), (1, 1, 65), 1),
        ((1, 1, 1), (0, 1, 1), 1),
        ((0, 1, 1), (32, 1, 1), 1),
        ((65536, 65535, 65535), (1, 1, 1), 0),
        ((1, 65536, 1), (1, 1, 1), 1),
        ((1, 1, 65536), (1, 1, 1), 1),
    ],
)
def test_the_limits_of_grids_and_blocks(
    grid: tuple[int, int, int], block: tuple[int, int, int], status: int, fatbin: bytes
) -> None:
    assert launch(function(load(fatbin), "plain"), grid, block) == status


def test_a_kernel_keeps_to_its_launch_bounds(fatbin: bytes) -> None:
    bounded = function(load(fatbin), "bounded")
    assert launch(bounded, block=(256, 1, 1)) == 0
    assert launch(bounded, block=(257, 1, 1)) == 1


def test_much_shared_memory_must_be_allowed(fatbin: bytes) -> None:
    most_dynamic_shared_bytes = 8
    plain, shared = (function(load(fatbin), name) for name in ("plain", "shared"))
    assert launch(plain, shared_bytes=48 << 10) == 0
    assert launch(plain, shared_bytes=(48 << 10) + 1) == 1
    assert launch(shared, shared_bytes=44 << 10) == 0
    assert launch(shared, shared_bytes=(44 << 10) + 1) == 1  # The kernel `shared` declares 4 KiB.
    assert driver.cuFuncSetAttribute(plain, most_dynamic_shared_bytes, 228 << 10) == 1
    assert driver.cuFuncSetAttribute(plain, most_dynamic_shared_bytes, 100 << 10) == 0
    assert launch(plain, shared_bytes=100 << 10) == 0
    assert launch(plain, shared_bytes=(100 << 10) + 1) == 1


# Devices.


def test_each_thread_has_its_current_gpu() -> None:
    seen: list[int] = []
    assert runtime.cudaSetDevice(2) == 0
    thread = threading.Thread(target=lambda: seen.append(fake_gpu.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]
    assert fake_gpu.current_device() == 2
    runtime.cudaSetDevice(0)


def test_a_kernel_runs_on_the_current_gpu(fatbin: bytes) -> None:
    runtime.cudaSetDevice(1)
    there = new_stream()
    on_gpu_1 = function(load(fatbin), "plain")
    assert launch(on_gpu_1, stream=there) == 0
    runtime.cudaSetDevice(0)
    assert launch(on_gpu_1, stream=there) == 400
    assert fake_gpu.launch("kernel", there) == 400
    assert launch(on_gpu_1) == 400  # `on_gpu_1` was loaded for GPU 1.


# Errors.


def test_an_error_stays_until_it_is_asked_for() -> None:
    runtime.cudaGetLastError()
    assert runtime.cudaSetDevice(7) == 101
    assert runtime.cudaSetDevice(0) == 0
    assert runtime.cudaPeekAtLastError() == 101
    other: list[int] = []
    thread = threading.Thread(target=lambda: other.append(runtime.cudaPeekAtLastError()))
    thread.start()
    thread.join()
    assert other == [0]
    assert runtime.cudaGetLastError() == 101
    assert runtime.cudaGetLastError() == 0


@pytest.fixture
def broken_later() -> Iterator[ctypes.c_void_p]:
    """A stream with a launched kernel that will fail on the GPU."""
    stream = new_stream()
    fake_gpu.fail_work("bad", 700)
    assert fake_gpu.launch("bad", stream) == 0
    yield stream
    fake_gpu.repair()


def test_a_failure_of_a_kernel_is_noticed_late_and_stays(broken_later: ctypes.c_void_p) -> None:
    assert fake_gpu.launch("good", broken_later) == 0
    assert runtime.cudaStreamSynchronize(broken_later) == 700
    for _ in range(2):
        assert runtime.cudaGetLastError() == 700
        assert fake_gpu.launch("good", broken_later) == 700
        assert runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1)) == 700
        assert runtime.cudaStreamSynchronize(new_stream_or_none()) == 700
        assert driver.cuInit(0) == 700


def new_stream_or_none() -> ctypes.c_void_p:
    stream = ctypes.c_void_p()
    assert runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 700
    return stream


def test_the_gpu_does_no_work_after_a_failure(broken_later: ctypes.c_void_p) -> None:
    ran: list[int] = []
    effect = fake_gpu.effect(ran.append)
    assert fake_gpu.launch("good", broken_later, effect) == 0
    assert runtime.cudaStreamSynchronize(broken_later) == 700
    assert ran == []


def test_a_forked_process_has_lost_the_gpu() -> None:
    stream, event = new_stream(), new_event()
    child = os.fork()
    if child == 0:
        statuses = {
            runtime.cudaGetDeviceCount(ctypes.byref(ctypes.c_int())),
            runtime.cudaStreamSynchronize(stream),
            runtime.cudaEventRecord(event, stream),
            driver.cuInit(0),
        }
        os._exit(0 if statuses == {3} else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert runtime.cudaStreamSynchronize(stream) == 0


# Copies.


def test_a_copy_goes_where_its_kind_says() -> None:
    stream, memory, host = new_stream(), ctypes.c_void_p(), (ctypes.c_char * 64)()
    assert runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(64)) == 0
    to_device, to_host, within = 1, 2, 3

    def copy(to: object, source: object, nbytes: int, kind: int) -> int:
        return int(runtime.cudaMemcpyAsync(to, source, ctypes.c_size_t(nbytes), kind, stream))

    assert copy(memory, host, 64, to_device) == 0
    assert copy(host, memory, 64, to_host) == 0
    assert copy(memory, host, 64, to_host) == 1
    assert copy(host, memory, 64, to_device) == 1
    assert copy(memory, host, 64, within) == 1
    assert copy(memory, host, 65, to_device) == 1  # The memory has only 64 bytes.
    assert runtime.cudaMemsetAsync(memory, 0, ctypes.c_size_t(65), stream) == 1
    assert runtime.cudaStreamSynchronize(stream) == 0


def test_new_memory_is_not_filled_with_zeros() -> None:
    memory = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(64)) == 0
    assert ctypes.string_at(memory, 64) == b"\xcb" * 64


# Times.


@pytest.mark.parametrize("us", [0.0, 10.0])
def test_the_gpu_waits_for_calls_of_the_host(us: float) -> None:
    """A kernel takes one microsecond, and the call that launches it takes `us`."""
    stream, before, after, ms = new_stream(), new_event(), new_event(), ctypes.c_float()
    with fake_gpu.launch_time(us):
        runtime.cudaEventRecord(before, stream)
        for _ in range(3):
            assert fake_gpu.launch("kernel", stream) == 0
        runtime.cudaEventRecord(after, stream)
    assert runtime.cudaStreamSynchronize(stream) == 0
    assert runtime.cudaEventElapsedTime(ctypes.byref(ms), before, after) == 0
    assert ms.value * 1e3 == pytest.approx(3 * max(us, 1) + (1 if us else 0), abs=0.01)
