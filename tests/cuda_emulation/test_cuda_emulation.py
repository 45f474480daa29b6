"""Executes CUDA kernels on the CPU, and finds faults that are planted in their source."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tvm import s_tir, te

from tests import nets
from tests.cuda_emulation import __main__ as command
from tests.cuda_emulation.compare import ARCHS, Kernel, Verdict, check_kernel, kernels_of
from tests.cuda_emulation.device_code import DeviceCode, Launch, device_code
from tests.cuda_emulation.emulated_kernel import EmulatedKernel, build_program
from tvm_interop import models
from tvm_interop.kernels.build_cuda import cuda_target
from tvm_interop.kernels.cuda_schedule import schedule_kernel
from tvm_interop.kernels.loops import SCHEDULED

BARRIER = "__syncthreads();"


def made(name: str, *tensors: Any) -> Kernel:
    """The kernel that computes the last of `tensors`, scheduled for a GPU."""
    function = te.create_prim_func(list(tensors)).with_attr("global_symbol", name)
    scheduled = schedule_kernel(function, cuda_target(ARCHS), name)
    types = [str(tensor.dtype) for tensor in tensors]
    return Kernel(name, function, scheduled, tuple(types[:-1]), tuple(types[-1:]))


@functools.cache
def row_sums() -> Kernel:
    """Sums over all threads of a block: shuffles, and a barrier between warps."""
    x = te.placeholder((3, 1000), "float32", name="x")
    k = te.reduce_axis((0, 1000), name="k")
    return made("row_sums", x, te.compute((3,), lambda i: te.sum(x[i, k], axis=k), name="y"))


@functools.cache
def product(transposed: bool = False) -> Kernel:
    """A matrix product: tiles in shared memory, with barriers before and after they are filled."""
    x = te.placeholder((40, 40), "float32", name="x")
    w = te.placeholder((40, 40), "float32", name="w")
    k = te.reduce_axis((0, 40), name="k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(x[i, k] * (w[j, k] if transposed else w[k, j]), axis=k)

    return made("product", x, w, te.compute((40, 40), element, name="y"))


@functools.cache
def code_of(kernel: Kernel) -> DeviceCode:
    return device_code(kernel.name, kernel.scheduled, ARCHS)


def without_barrier(code: DeviceCode, number: int) -> DeviceCode:
    """The code without barrier number `number`, counted from 0."""
    parts = code.source.split(BARRIER)
    parts[number : number + 2] = [parts[number] + parts[number + 1]]
    return dataclasses.replace(code, source=BARRIER.join(parts))


def with_launch(code: DeviceCode, **changes: Any) -> DeviceCode:
    (launch,) = code.launches
    return dataclasses.replace(code, launches=(dataclasses.replace(launch, **changes),))


@pytest.mark.parametrize("make", [row_sums, product])
def test_right_kernels(make: Callable[[], Kernel]) -> None:
    verdict = check_kernel(make())
    assert not verdict.fault
    assert not verdict.not_executed
    assert verdict.error < 1e-5


@pytest.mark.parametrize(("make", "number"), [(row_sums, 0), (product, 0), (product, 1)])
def test_a_missing_barrier_is_found(make: Callable[[], Kernel], number: int) -> None:
    kernel = make()
    planted = without_barrier(code_of(kernel), number)
    assert "a barrier is missing" in check_kernel(kernel, planted).fault


def test_a_barrier_for_some_threads_is_found() -> None:
    kernel = row_sums()
    code = code_of(kernel)
    source = code.source.replace(BARRIER, f"if (threadIdx.x < 100) {BARRIER}", 1)
    fault = check_kernel(kernel, dataclasses.replace(code, source=source)).fault
    assert "kernel `row_sums_kernel`" in fault
    assert re.search(r"not all threads reach a barrier: 100 of \d+ threads", fault)


@pytest.mark.parametrize("sanitize", [True, False])
def test_an_index_off_by_one_in_shared_memory_is_found(sanitize: bool) -> None:
    kernel = row_sums()
    code = code_of(kernel)
    written = re.search(r"red_buf_staging\w*\[(.*)\] = ", code.source)
    assert written is not None
    begin, end = written.span(1)
    source = f"{code.source[:begin]}{written[1]} + 1{code.source[end:]}"
    planted = dataclasses.replace(code, source=source)
    fault = check_kernel(kernel, planted, sanitize=sanitize).fault
    assert ("out of bounds" if sanitize else "reverse order") in fault


def test_a_wrong_launch_is_found() -> None:
    kernel = row_sums()
    code = code_of(kernel)
    (launch,) = code.launches
    fewer = check_kernel(kernel, with_launch(code, grid=(2, 1, 1))).fault
    assert "output 0 is wrong" in fewer
    more = check_kernel(kernel, with_launch(code, grid=(4, 1, 1))).fault
    assert "AddressSanitizer: heap-buffer-overflow, in `" in more
    assert "x_ptr" in more
    half = check_kernel(kernel, with_launch(code, block=(launch.block[0] // 2, 1, 1))).fault
    assert half
    many = check_kernel(kernel, with_launch(code, block=(launch.block[0] * 2, 1, 1))).fault
    assert "threads a block, and takes 1 to" in many


def test_memory_of_the_host_in_a_launch_is_found() -> None:
    """Plants this fault: a separate kernel sets the initial values of sums, but in its own local
    memory."""
    x = te.placeholder((8, 16), "float32", name="x")
    k = te.reduce_axis((0, 16), name="k")
    y = te.compute((8,), lambda i: te.sum(x[i, k], axis=k), name="y")
    function = te.create_prim_func([x, y]).with_attr("global_symbol", "sums")
    schedule = s_tir.Schedule(function)
    summed = schedule.get_sblock("y")
    written = schedule.cache_write(summed, 0, "local")
    block, thread = schedule.split(schedule.get_loops(written)[0], [None, 8])
    schedule.bind(block, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.compute_at(summed, thread)
    schedule.decompose_reduction(summed, block)
    kernel = Kernel("sums", function, schedule.mod["main"], ("float32",), ("float32",))
    assert "memory that the host has allocated" in check_kernel(kernel).fault


def test_a_write_to_an_input_is_found() -> None:
    kernel = row_sums()
    code = code_of(kernel)
    place = code.source.rindex("}")
    source = f"{code.source[:place]}  x_ptr[0] = 7.0f;\n{code.source[place:]}"
    fault = check_kernel(kernel, dataclasses.replace(code, source=source)).fault
    assert "writes to input 0" in fault


def test_wrong_numbers_are_found() -> None:
    transposed = code_of(product(transposed=True))
    assert "output 0 is wrong" in check_kernel(product(), transposed).fault


def test_other_uses_of_tensor_cores_are_not_executed() -> None:
    kernel = row_sums()
    code = code_of(kernel)
    source = code.source.replace(BARRIER, f"{BARRIER} wgmma_fence();", 1)
    verdict = check_kernel(kernel, dataclasses.replace(code, source=source))
    assert "tensor cores" in verdict.not_executed
    assert "not executed: row_sums: it uses tensor cores" in command.summary([verdict])


# Tensor cores.


@functools.cache
def half_product() -> Kernel:
    """A product of float16 matrices that are large enough for tensor cores."""
    x = te.placeholder((128, 128), "float16", name="x")
    w = te.placeholder((128, 128), "float16", name="w")
    k = te.reduce_axis((0, 128), name="k")
    summed = te.compute((128, 128), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="y")
    return made("half_product", x, w, summed)


def planted_in(kernel: Kernel, pattern: str, replacement: str) -> Verdict:
    """Plant a fault in a kernel, and return the verdict on the kernel.

    The first match of `pattern` in the kernel's source becomes `replacement`.
    """
    code = code_of(kernel)
    source, count = re.subn(pattern, replacement, code.source, count=1)
    assert count == 1, code.source
    return check_kernel(kernel, dataclasses.replace(code, source=source))


@pytest.mark.slow
def test_a_product_on_tensor_cores() -> None:
    assert "wmma::mma_sync" in code_of(half_product()).source
    verdict = check_kernel(half_product())
    assert not verdict.fault
    assert not verdict.not_executed
    assert verdict.error < 1e-2


@pytest.mark.slow
def test_a_missing_product_on_tensor_cores_is_found() -> None:
    fault = planted_in(half_product(), r"nvcuda::wmma::mma_sync\(.*\);", ";").fault
    assert "output 0 is wrong" in fault or "reverse order" in fault


@pytest.mark.slow
def test_a_wrong_stride_of_a_matrix_is_found() -> None:
    pattern = r"(nvcuda::wmma::load_matrix_sync\(.*, )(\d+)\);"
    fault = planted_in(half_product(), pattern, r"\g<1>\g<2> - 8);").fault
    assert "wrong" in fault or "reverse order" in fault or "AddressSanitizer" in fault


@pytest.mark.slow
def test_a_matrix_at_an_odd_address_is_found() -> None:
    pattern = r"(nvcuda::wmma::load_matrix_sync\(.*, )(\(?&.*), (\d+)\);"
    fault = planted_in(half_product(), pattern, r"\g<1>1 + \g<2>, \g<3>);").fault
    assert "not a multiple of 32 bytes" in fault


@pytest.mark.slow
def test_a_fragment_that_some_lanes_leave_out_is_found() -> None:
    pattern = r"(nvcuda::wmma::mma_sync\(.*\);)"
    fault = planted_in(half_product(), pattern, r"if (threadIdx.x != 3) \g<1>").fault
    assert "not all" in fault or "do not take part" in fault or "waits for lanes" in fault


def test_fragments_of_both_layouts(tmp_path: Path) -> None:
    """Covers a transposed right factor, sums that do not begin with 0, and sums stored by
    columns."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 16, 16)).astype(np.float16)
    source = """k(half* x, float* y) {
  using namespace nvcuda::wmma;
  __shared__ __align__(32) float begin[256];
  for (int i = threadIdx.x; i < 256; i += 32) begin[i] = (float)x[512 + i];
  __syncthreads();
  fragment<matrix_a, 16, 16, 16, half, row_major> left;
  fragment<matrix_b, 16, 16, 16, half, col_major> right;
  fragment<accumulator, 16, 16, 16, float> sums;
  load_matrix_sync(left, x, 16);
  load_matrix_sync(right, x + 256, 16);
  load_matrix_sync(sums, begin, 16, mem_row_major);
  mma_sync(sums, left, right, sums);
  for (int i = 0; i < sums.num_elements; ++i) sums.x[i] *= 2.0f;
  store_matrix_sync(y, sums, 16, mem_col_major);
}"""
    arrays = [x, np.empty((16, 16), np.float32)]
    (got,) = run(source, 32, arrays, tmp_path, "#include <mma.h>")
    wide = x.astype(np.float32)
    np.testing.assert_allclose(got.T, 2 * (wide[0] @ wide[1].T + wide[2]), rtol=1e-5, atol=1e-5)


def test_what_a_compiler_refuses_is_not_executed() -> None:
    kernel = row_sums()
    code = code_of(kernel)
    source = code.source.replace(BARRIER, "__cluster_barrier();", 1)
    reason = check_kernel(kernel, dataclasses.replace(code, source=source)).not_executed
    assert "refuses it" in reason
    assert "__cluster_barrier" in reason


def run(
    source: str, block: int, arrays: list[np.ndarray], folder: Path, head: str = ""
) -> list[np.ndarray]:
    """The results of a kernel `k` that is written by hand. The lines `head` come before the kernel.

    The kernel has one input, one block, and four bytes of dynamic shared memory for each thread.
    """
    inputs, results = arrays[:1], [np.empty_like(array) for array in arrays[1:]]
    launch = Launch("k", tuple(range(len(arrays))), (1, 1, 1), (block, 1, 1), 4 * block)
    sizes = [array.nbytes for array in arrays]
    build_program(
        DeviceCode(f'{head}\nextern "C" __global__ void {source}', (launch,)), sizes, folder / "k"
    )
    assert EmulatedKernel(folder / "k", []).run_fenced(inputs, results, True, 0) == ""
    return results


def test_lanes_of_a_warp(tmp_path: Path) -> None:
    """The block has two and a half warps, and the parts of a warp have eight lanes."""
    x = np.arange(80, dtype=np.int32)
    source = """k(int* x, int* up, int* down, int* swapped, int* first, int* votes) {
  int i = threadIdx.x;
  unsigned mask = i < 64 ? 0xffffffffu : 0xffffu;
  up[i] = __shfl_up_sync(mask, x[i], 1, 8);
  down[i] = __shfl_down_sync(mask, x[i], 3, 8);
  swapped[i] = __shfl_xor_sync(mask, x[i], 5, 8);
  first[i] = __shfl_sync(mask, x[i], 2, 8);
  if (i % 2 == 0) {
    unsigned here = __activemask();
    votes[i] = __ballot_sync(here, i % 3 == 0);
  } else {
    votes[i] = 2 * __any_sync(0xaaaaaaaau, i == 33) + __all_sync(0xaaaaaaaau, i < 64);
  }
}"""
    up, down, swapped, first, votes = run(source, 80, [x] * 6, tmp_path)
    lane = x % 8
    assert (up == np.where(lane < 1, x, x - 1)).all()
    assert (down == np.where(lane > 4, x, x + 3)).all()
    assert (swapped == (x ^ 5)).all()
    assert (first == x - lane + 2).all()
    for warp in range(3):
        lanes = x[32 * warp : 32 * warp + 32]
        ballot = sum(1 << int(i) % 32 for i in lanes if i % 2 == 0 and i % 3 == 0)
        assert (votes[lanes[::2]].view(np.uint32) == ballot).all()
        assert (votes[lanes[1::2]] == [1, 3, 0][warp]).all()


def test_dynamic_shared_memory_and_atomics(tmp_path: Path) -> None:
    x = np.arange(70, dtype=np.int32)
    source = """k(int* x, int* reversed, int* sums) {
  extern __shared__ __align__(64) unsigned char buf_dyn_shmem_ptr[];
  ((int*)buf_dyn_shmem_ptr)[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x < 3) sums[threadIdx.x] = 0;
  __syncthreads();
  reversed[threadIdx.x] = ((int*)buf_dyn_shmem_ptr)[69 - threadIdx.x];
  atomicAdd(&sums[0], x[threadIdx.x]);
  atomicMax(&sums[1], x[threadIdx.x]);
  atomicMin(&sums[2], x[threadIdx.x] - 5);
}"""
    backwards, sums = run(source, 70, [x, x, x[:3]], tmp_path)
    assert (backwards == x[::-1]).all()
    assert sums.tolist() == [x.sum(), 69, -5]


def test_half_numbers(tmp_path: Path) -> None:
    """Every number of 16 bits is widened and rounded as NumPy does it."""
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    rng = np.random.default_rng(0)
    random = rng.standard_normal(65536) * 2.0 ** rng.integers(-28, 18, 65536)
    wide = np.concatenate([every.astype(np.float32), random.astype(np.float32)])
    source = """k(float* x, half* narrow, float* again, half* sum) {
  for (int i = threadIdx.x; i < 131072; i += 64) {
    narrow[i] = (half)x[i];
    again[i] = (float)narrow[i];
    sum[i] = (half)x[i] + (half)x[131071 - i] * (half)0.5f;
  }
}"""
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float16)
    got = run(source, 64, [wide, narrow, wide, narrow], tmp_path)
    with np.errstate(all="ignore"):
        total = narrow + narrow[::-1] * np.float16(0.5)
    for want, have in zip([narrow, narrow.astype(np.float32), total], got, strict=True):
        np.testing.assert_array_equal(have, want)


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(nets.chain(1), path)
    monkeypatch.setattr(sys, "argv", ["cuda_emulation", str(path)])
    assert command.main() == 0
    assert "1 of 1 distinct kernels executed, 0 wrong" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["cuda_emulation", str(path), "--only", "softmax"])
    with pytest.raises(SystemExit):
        command.main()
    assert "no kernel has `softmax` in its name" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["cuda_emulation", str(path)])
    monkeypatch.setattr(command, "check_kernel", lambda kernel, *_: Verdict(kernel, "it is wrong"))
    assert command.main() == 1
    assert "wrong: " in capsys.readouterr().out


SMALL: dict[str, Callable[[], Any]] = {
    "attention": nets.attention,
    "branches": nets.branches,
    "mixture_of_experts": lambda: models.build("mixture_of_experts", 4, 24),
}
"""Networks whose kernels can all be executed in a few minutes. The command takes any network."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SMALL)
def test_networks(name: str) -> None:
    verdicts = [check_kernel(kernel) for kernel in kernels_of(SMALL[name]())]
    assert [f"{v.kernel.name}: {v.fault}" for v in verdicts if v.fault] == []
    executed = [v for v in verdicts if not v.not_executed]
    assert len(executed) >= 0.95 * len(verdicts), command.summary(verdicts)
    assert any(SCHEDULED in v.kernel.scheduled.attrs for v in executed)
