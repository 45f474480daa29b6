"""Tests the loops of kernels for GPUs: their results, and their numbers of blocks and threads.

There is no GPU. But if the loops over blocks and threads run one after the other, LLVM can compile
the kernels for the CPU, and their results can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from tests.cuda_emulation.device_code import device_code
from tvm_interop.kernels.build_cuda import cuda_target, kernels_with_workspace
from tvm_interop.kernels.cuda_schedule import DefaultCUDASchedule
from tvm_interop.lowering.lower import LowerToUnits

TARGET = cuda_target(("sm_90",))


def tensor(name: str, *shape: int) -> Any:
    return relax.Var(name, relax.TensorType(shape, "float32"))


def lowered(build: Callable[[Any], Any], *params: Any) -> tvm.IRModule:
    """The kernels of `build` for a GPU, before loops are bound to blocks and threads."""
    builder = relax.BlockBuilder()
    with builder.function("main", list(params)):
        with builder.dataflow():
            result = builder.emit_output(build(builder))
        builder.emit_func_output(result)
    module = LowerToUnits(TARGET)(builder.finalize())
    kernels = {v: f for v, f in module.functions_items() if isinstance(f, tirx.PrimFunc)}
    return tvm.IRModule(
        {v.name_hint: f.with_attr("global_symbol", v.name_hint) for v, f in kernels.items()}
    )


def in_turn(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return `func` with its blocks and threads running one after the other."""

    def serial(loop: tirx.For) -> tirx.For:
        if loop.kind != tirx.ForKind.THREAD_BINDING:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return tvm_ffi.structural_map(func, (tirx.For, serial), order="post")


def threads_of(func: tirx.PrimFunc) -> dict[str, int]:
    """The number of blocks or threads for each dimension, such as `blockIdx.x`."""
    found: dict[str, int] = {}

    def note(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            found[str(loop.thread_binding.thread_tag)] = int(loop.extent)

    tvm_ffi.structural_walk(func.body, (tirx.For, note))
    return found


def run(func: tirx.PrimFunc, arrays: list[np.ndarray]) -> np.ndarray:
    module = tvm.compile(
        tvm.IRModule({"kernel": func.with_attr("global_symbol", "kernel")}), "llvm"
    )
    shape = [int(dim) for dim in func.params[-1].ty.shape]
    result = np.zeros(shape, str(func.params[-1].ty.dtype))
    tensors = [tvm.runtime.tensor(array) for array in [*arrays, result]]
    module["kernel"](*tensors)
    return np.asarray(tensors[-1].numpy())


CASES: dict[str, tuple[tuple[Any, ...], Callable[..., Any]]] = {
    "depthwise": (
        (tensor("x", 1, 24, 14, 14), tensor("w", 24, 1, 3, 3), tensor("b", 1, 24, 1, 1)),
        lambda x, w, b: relax.op.nn.relu(
            relax.op.add(relax.op.nn.conv2d(x, w, padding=1, groups=24), b)
        ),
    ),
    "depthwise with stride": (
        (tensor("a/x", 1, 6, 9, 9), tensor("w", 6, 1, 5, 5)),
        lambda x, w: relax.op.nn.conv2d(x, w, strides=2, padding=2, groups=6),
    ),
    "relu before depthwise": (
        (tensor("x", 1, 6, 9, 9), tensor("w", 6, 1, 3, 3)),
        lambda x, w: relax.op.nn.conv2d(relax.op.nn.relu(x), w, padding=1, groups=6),
    ),
    "max pool": (
        (tensor("x", 1, 5, 11, 11),),
        lambda x: relax.op.nn.max_pool2d(x, (3, 3), strides=2, padding=1),
    ),
    "average pool": (
        (tensor("x", 2, 5, 8, 8),),
        lambda x: relax.op.nn.avg_pool2d(x, (2, 2), strides=2),
    ),
    "convolution": (
        (tensor("x", 1, 8, 10, 10), tensor("w", 16, 8, 3, 3), tensor("b", 1, 16, 1, 1)),
        lambda x, w, b: relax.op.nn.relu(relax.op.add(relax.op.nn.conv2d(x, w, padding=1), b)),
    ),
    "squeeze and excite": (
        (tensor("x", 1, 16, 1, 1), tensor("w", 8, 16, 1, 1)),
        lambda x, w: relax.op.nn.relu(relax.op.nn.conv2d(x, w)),
    ),
    "max pool of rows": (
        (tensor("x", 1, 5, 11, 11),),
        lambda x: relax.op.nn.max_pool2d(x, (1, 3), strides=2),
    ),
    "grouped convolution": (
        (tensor("x", 1, 8, 6, 6), tensor("w", 8, 4, 3, 3)),
        lambda x, w: relax.op.nn.conv2d(x, w, padding=1, groups=2),
    ),
    "matrix product": (
        (tensor("x", 4, 32), tensor("w", 32, 24)),
        lambda x, w: relax.op.matmul(x, w),
    ),
    "softmax": ((tensor("x", 6, 40),), lambda x: relax.op.nn.softmax(x)),
    "mean": ((tensor("x", 1, 12, 13, 13),), lambda x: relax.op.mean(x, [2, 3], keepdims=True)),
    "position of the largest": (
        (tensor("x", 6, 200),),
        lambda x: relax.op.argmax(x, axis=1),
    ),
    "instance norm": (
        (tensor("x", 2, 8, 9, 9), tensor("scale", 8), tensor("bias", 8)),
        lambda x, scale, bias: relax.op.nn.instance_norm(x, scale, bias, 1, [2, 3]),
    ),
    "concat": (
        (tensor("x", 1, 3, 5, 5), tensor("y", 1, 4, 5, 5)),
        lambda x, y: relax.op.concat([x, y], 1),
    ),
}
SHORT_SUMS = (
    "depthwise",
    "depthwise with stride",
    "max pool",
    "average pool",
    "squeeze and excite",
    "max pool of rows",
)


def kernels_of(case: str) -> tuple[tvm.IRModule, tvm.IRModule]:
    params, build = CASES[case]
    plain = lowered(lambda builder: builder.emit(build(*params)), *params)
    return plain, DefaultCUDASchedule(TARGET)(plain)


@pytest.mark.parametrize("case", CASES)
def test_numbers_stay_what_they_were(case: str) -> None:
    plain, scheduled = kernels_of(case)
    rng = np.random.default_rng(0)
    for var, func in plain.functions_items():
        shapes = [[int(dim) for dim in param.ty.shape] for param in func.params[:-1]]
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        expected = run(func, arrays)
        got = run(in_turn(scheduled[var.name_hint]), arrays)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_every_kernel_is_bound_to_threads(case: str) -> None:
    _, scheduled = kernels_of(case)
    for _, func in scheduled.functions_items():
        threads = threads_of(func)
        assert any(tag.startswith("threadIdx") for tag in threads)
        assert any(tag.startswith("blockIdx") for tag in threads)


@pytest.mark.parametrize("case", CASES)
def test_no_memory_of_the_host_is_given_to_the_gpu(case: str) -> None:
    """If two launches (loops over thread blocks) shared a buffer, the host would allocate it."""
    _, scheduled = kernels_of(case)
    for var, func in scheduled.functions_items():
        assert device_code(var.name_hint, func, ("sm_90",)).launches


@pytest.mark.parametrize("case", SHORT_SUMS)
def test_short_sums_get_a_thread_an_element(case: str) -> None:
    _, scheduled = kernels_of(case)
    ((_, func),) = scheduled.functions_items()
    elements = prod(int(dim) for dim in func.params[-1].ty.shape)
    threads = threads_of(func)
    assert threads["threadIdx.x"] == 128
    assert threads["blockIdx.x"] == -(-elements // 128)


def test_long_sums_get_a_block_each() -> None:
    _, scheduled = kernels_of("mean")
    ((_, func),) = scheduled.functions_items()
    assert threads_of(func)["blockIdx.x"] == 12


@pytest.mark.parametrize("case", CASES)
def test_no_kernel_needs_a_workspace(case: str) -> None:
    _, scheduled = kernels_of(case)
    assert kernels_with_workspace(scheduled) == set()


def test_a_workspace_is_found() -> None:
    plain, _ = kernels_of("depthwise")
    assert kernels_with_workspace(plain) == {var.name_hint for var, _ in plain.functions_items()}


def test_names_are_spelt_as_c_can() -> None:
    _, scheduled = kernels_of("depthwise with stride")
    ((_, func),) = scheduled.functions_items()
    assert func.params[0].name == "a_x"


def test_what_is_scheduled_stays() -> None:
    plain, scheduled = kernels_of("max pool")
    again = DefaultCUDASchedule(TARGET)(scheduled)
    tvm.ir.assert_structural_equal(again, scheduled)
    with pytest.raises(ValueError, match="StructuralEqual"):
        # The schedule leaves the given module unchanged.
        tvm.ir.assert_structural_equal(plain, scheduled)


def test_a_fault_of_our_rule_is_told_and_the_next_rule_taken(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(func: tirx.PrimFunc, most_terms: float) -> Any:
        raise RuntimeError("some reason")

    monkeypatch.setattr("tvm_interop.kernels.cuda_schedule.short_sums", fail)
    _, scheduled = kernels_of("max pool")
    assert all("threadIdx.x" in threads_of(func) for _, func in scheduled.functions_items())
    assert "is scheduled without the rule for short sums" in caplog.text
    assert "some reason" in caplog.text
    caplog.clear()  # Clear the log, because other tests fail if a fault is logged.
