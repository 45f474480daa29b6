"""Tests the loops of scheduled kernels: their lengths, their vectors, and the loops that threads
share."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from tests.unit.test_cpu_schedule import Shape, conv, lowered
from tvm_interop.kernels.build import divisible_kernels, kernel_hashes, uses_parallel_loops
from tvm_interop.kernels.contraction_pattern import Contraction, find_contraction
from tvm_interop.machine.cpu_features import Registers, vector_registers
from tvm_interop.transform import DefaultCPUSchedule


def test_a_kernel_does_not_grow_with_the_stride() -> None:
    """LLVM once took minutes for patches of 32 x 32 pixels: each pixel had its own loops."""

    def length(stride: int) -> int:
        shapes = (1, 3, 4 * stride, 4 * stride), (8, 3, stride, stride)
        (kernel,) = DefaultCPUSchedule("llvm")(
            lowered(conv(strides=stride), *shapes)
        ).functions.values()
        return len(kernel.script())

    assert length(32) < 1.2 * length(8)


@pytest.mark.parametrize(("groups", "packed_at_once"), [(6, 1), (1, 6)])
def test_groups_are_packed_one_by_one(groups: int, packed_at_once: int) -> None:
    """In a grouped convolution, each share of the kernel packs only its own groups."""
    kernels = lowered(conv(padding=1, groups=groups), (2, 6, 9, 9), (6, 6 // groups, 3, 3))
    (kernel,) = DefaultCPUSchedule("llvm")(kernels).functions.values()
    images = 1 if groups > 1 else 2
    assert f"alloc_buffer(({images}, {packed_at_once}, " in kernel.script()


def test_what_is_pointwise_has_one_long_loop() -> None:
    """An element-wise kernel gets one long loop. If its innermost loop were short, LLVM would
    vectorise the loop around it, with slow gathers."""

    def innermost(op: Any, *shapes: Shape) -> int:
        (func,) = DefaultCPUSchedule()(lowered(op, *shapes)).functions.values()
        extents: list[int] = []
        tvm_ffi.structural_walk(
            func.body, (tirx.For, lambda loop: extents.append(int(loop.extent))), order="pre"
        )
        return extents[-1]

    image = (1, 544, 7, 7)
    assert innermost(relax.op.nn.relu, image) == 544 * 7 * 7
    assert innermost(relax.op.add, image, image) == 544 * 7 * 7
    assert innermost(relax.op.nn.relu, (1, 64, 56, 56)) > 56
    assert innermost(relax.op.add, image, (1, 544, 1, 1)) == 7 * 7, "a channel has one addend"
    assert innermost(relax.op.add, (1, 64, 56, 56), (1, 64, 1, 1)) == 56 * 56
    assert innermost(relax.op.add, image, (1, 1, 1, 7)) == 7, "each column has its own addend"
    assert innermost(relax.op.add, image, (1, 544, 7, 1)) == 7, "each row has its own addend"


def test_short_planes_and_rows_are_vectors() -> None:
    """Short loops are vectorised by the schedule, because LLVM would unroll them into operations on
    single numbers."""

    def kinds(op: Any, *shapes: Shape) -> set[int]:
        (func,) = DefaultCPUSchedule()(lowered(op, *shapes)).functions.values()
        found: set[int] = set()
        tvm_ffi.structural_walk(func.body, (tirx.For, lambda loop: found.add(int(loop.kind))))
        return found

    bias = (1, 544, 1, 1)
    assert int(tirx.ForKind.VECTORIZED) in kinds(relax.op.add, (1, 544, 7, 7), bias)
    assert int(tirx.ForKind.VECTORIZED) not in kinds(relax.op.add, (1, 544, 14, 14), bias)
    swapped = kinds(lambda x: relax.op.permute_dims(x, [1, 0, 2]), (256, 4, 36))
    assert int(tirx.ForKind.VECTORIZED) in swapped
    calls = kinds(lambda x, b: relax.op.exp(relax.op.add(x, b)), (1, 544, 7, 7), bias)
    assert int(tirx.ForKind.VECTORIZED) not in calls, "another pass vectorizes functions"


@pytest.mark.parametrize("size", [62720, 67000, 65537])
def test_long_rows_are_divided_among_threads_in_whole_pieces(size: int) -> None:
    """Each thread gets equally many elements if possible. If one thread got fewer, the loop would
    have a condition, and LLVM would not vectorise it."""
    scheduled = DefaultCPUSchedule()(lowered(relax.op.nn.relu, (1, 1, size)))
    (func,) = scheduled.functions.values()
    (loop,) = parallel_loops(func)
    assert divisible_kernels(scheduled) == set(kernel_hashes(scheduled))
    has_divisor = size != 65537  # 65537 is a prime number.
    assert ("T.where" not in func.script()) == has_divisor
    assert int(loop.extent) >= 16


def test_only_large_kernels_are_shared_between_threads() -> None:
    def is_parallel(kernels: tvm.IRModule) -> list[bool]:
        return list(uses_parallel_loops(DefaultCPUSchedule()(kernels)).values())

    assert is_parallel(lowered(conv(), (1, 3, 9, 9), (5, 3, 3, 3))) == [False]
    assert is_parallel(lowered(conv(), (1, 64, 28, 28), (64, 64, 3, 3))) == [True]
    assert is_parallel(lowered(relax.op.matmul, (1, 1024), (1024, 1024))) == [True]
    assert is_parallel(lowered(relax.op.exp, (8, 9))) == [False]
    assert is_parallel(lowered(relax.op.exp, (512, 512))) == [True]


def test_no_sum_is_split_between_threads() -> None:
    """Each iteration of a parallel loop writes its own elements, so no sum is split."""
    for kernels in (
        lowered(conv(), (1, 64, 28, 28), (64, 64, 3, 3)),
        lowered(relax.op.matmul, (1, 4096), (4096, 64)),
        lowered(lambda x: relax.op.sum(x, axis=[0]), (70000, 2)),
        lowered(lambda x: relax.op.sum(x), (70000,)),
    ):
        for func in DefaultCPUSchedule()(kernels).functions.values():
            for loop in parallel_loops(func):
                if int(loop.extent) == 1:
                    continue  # Threads cannot divide one iteration.
                assert all(uses(index, loop.loop_var) for index in shared_stores(loop))


def test_registers_follow_the_target() -> None:
    def registers(**target: Any) -> Registers:
        return vector_registers(tvm.target.Target({"kind": "llvm", **target}))

    assert registers(mcpu="x86-64") == Registers(16, 16)
    assert registers(mcpu="haswell") == Registers(16, 32)
    assert registers(mcpu="x86-64", mattr=["+avx512f"]) == Registers(32, 64)
    assert registers(mtriple="aarch64-linux-gnu") == Registers(32, 16)


def test_what_the_pattern_finds() -> None:
    def found(*case: Any, **options: Any) -> Contraction:
        (func,) = lowered(conv(**options), *case).functions.values()
        schedule = s_tir.Schedule(s_tir.renew_defs(func))
        match = find_contraction(schedule.mod["main"])
        assert match is not None
        return match[0]

    op = found((2, 6, 9, 11), (4, 3, 3, 5), strides=(1, 2), padding=(1, 2, 0, 3), groups=2)
    assert (op.batch, op.groups, op.in_channels, op.out_channels) == (2, 2, 3, 2)
    assert (op.stride, op.dilation, op.kernel) == ((1, 2), (1, 1), (3, 5))
    assert (op.padding, op.in_size, op.has_padding) == ((1, 2), (9, 11), True)


def parallel_loops(func: tirx.PrimFunc) -> list[tirx.For]:
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(func.body, (tirx.For, found.append))
    return [loop for loop in found if loop.kind == tirx.ForKind.PARALLEL]


def shared_stores(loop: tirx.For) -> list[list[Any]]:
    """The indices of the stores in `loop` to buffers that the loop does not allocate."""
    own: list[Any] = []
    tvm_ffi.structural_walk(loop.body, (tirx.AllocBuffer, lambda alloc: own.append(alloc.buffer)))
    stores: list[Any] = []
    tvm_ffi.structural_walk(loop.body, (tirx.BufferStore, stores.append))
    return [s.indices for s in stores if not any(s.buffer.same_as(buffer) for buffer in own)]


def uses(indices: list[Any], var: tirx.Var) -> bool:
    found: list[Any] = []
    for index in indices:
        tvm_ffi.structural_walk(index, (tirx.Var, found.append))
    return any(v.same_as(var) for v in found)
