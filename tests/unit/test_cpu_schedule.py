"""Tests that scheduled kernels give the results of unscheduled kernels, for many shapes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, s_tir, te, tirx, topi
from tvm.script import ir as I
from tvm.script import tirx as T

from tests import nets
from tvm_interop._native.kernels import load_kernels
from tvm_interop.execution.cpu import as_tensor
from tvm_interop.frontend import load_model
from tvm_interop.kernels.build import (
    build_kernels,
    kernel_hashes,
)
from tvm_interop.lowering.quantised_kernels import rounded_to_steps
from tvm_interop.machine.cpu_features import Registers
from tvm_interop.program.host_memory import aligned_copy, aligned_empty
from tvm_interop.transform import DefaultCPUSchedule, LowerToUnits, extract

Shape = tuple[int, ...]


def lowered(op: Callable[..., relax.Expr], *shapes: Shape, dtype: str = "float32") -> tvm.IRModule:
    """The kernels of `op` for inputs of these shapes."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(op(*params)))
        builder.emit_func_output(out)
    return extract(LowerToUnits()(builder.get())).kernels


def outputs(kernels: tvm.IRModule, folder: Path) -> dict[str, list[np.ndarray]]:
    """The content of each argument of each kernel after a run on fixed inputs."""
    # The file needs a new name, because a library of the same name is not loaded again.
    path = build_kernels(kernels, "llvm", folder / f"{len(list(folder.iterdir()))}.so")
    library = tvm.runtime.load_module(str(path))
    found = {}
    for var, func in kernels.functions_items():
        rng = np.random.default_rng(0)
        arrays = [
            rng.integers(0, 2, [int(size) for size in param.ty.shape]).astype(str(param.ty.dtype))
            if "float" not in str(param.ty.dtype)
            else rng.uniform(0.5, 1.5, [int(size) for size in param.ty.shape]).astype(
                str(param.ty.dtype)
            )
            for param in func.params
        ]
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        library[var.name_hint](*tensors)
        found[var.name_hint] = [tensor.numpy() for tensor in tensors]
    return found


def assert_same(kernels: tvm.IRModule, tmp_path: Path) -> tvm.IRModule:
    """Check that `kernels` compute the same when scheduled, and return the scheduled kernels."""
    scheduled = DefaultCPUSchedule()(kernels)
    want, got = outputs(kernels, tmp_path), outputs(scheduled, tmp_path)
    assert want.keys() == got.keys()
    for name, arrays in want.items():
        assert not tvm_ffi.structural_equal(kernels[name], scheduled[name])
        for a, b in zip(arrays, got[name], strict=True):
            # Bits may differ if LLVM fuses a multiplication and an addition in one of the two
            # kernels.
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5, err_msg=name)
    return scheduled


def conv(strides: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    return lambda x, w: relax.op.nn.conv2d(
        x, w, strides=strides, padding=padding, dilation=dilation, groups=groups
    )


CONVOLUTIONS: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "primes": ((1, 3, 13, 17), (7, 3, 3, 3), {"padding": 1}),
    "wide": ((1, 2, 3, 131), (11, 2, 3, 3), {"padding": 1}),
    "width 1": ((1, 4, 9, 1), (5, 4, 3, 1), {"padding": (1, 0)}),
    "one pixel": ((1, 8, 1, 1), (6, 8, 1, 1), {}),
    "one pixel, padded": ((1, 8, 1, 1), (6, 8, 3, 3), {"padding": 1}),
    "one channel": ((1, 1, 8, 8), (1, 1, 3, 3), {}),
    "pointwise": ((1, 5, 7, 7), (9, 5, 1, 1), {}),
    "pointwise, more channels than pixels": ((1, 6, 3, 3), (40, 6, 1, 1), {}),
    "pointwise, padded": ((1, 5, 6, 6), (9, 5, 1, 1), {"padding": 1}),
    "pointwise, stride 2": ((1, 5, 7, 8), (9, 5, 1, 1), {"strides": 2}),
    "stride 2": ((1, 3, 15, 14), (8, 3, 3, 3), {"strides": 2, "padding": 1}),
    "stride 3, kernel 2": ((1, 3, 16, 17), (8, 3, 2, 2), {"strides": 3}),
    "stride 1 and 2": ((1, 3, 9, 12), (8, 3, 3, 3), {"strides": (1, 2), "padding": 1}),
    "dilation": ((1, 3, 12, 11), (4, 3, 3, 3), {"dilation": 2, "padding": 2}),
    "dilation and stride": ((1, 3, 13, 13), (4, 3, 3, 3), {"dilation": 2, "strides": 2}),
    "dilation 3, stride 2": ((1, 3, 17, 17), (4, 3, 3, 3), {"dilation": 3, "strides": 2}),
    "uneven padding": ((1, 3, 9, 9), (4, 3, 3, 3), {"padding": (0, 1, 2, 3)}),
    "much padding": ((1, 2, 3, 3), (4, 2, 3, 3), {"padding": 5}),
    "7x7": ((1, 3, 23, 23), (9, 3, 7, 7), {"strides": 2, "padding": 3}),
    "1x7": ((1, 3, 9, 9), (9, 3, 1, 7), {"padding": (0, 3)}),
    "patches": ((1, 3, 21, 27), (9, 3, 5, 5), {"strides": 5}),
    "patches, padded": ((2, 3, 18, 23), (4, 3, 7, 6), {"strides": (5, 6), "padding": (2, 4)}),
    "patches with gaps": ((1, 2, 29, 31), (4, 2, 5, 5), {"strides": 7, "dilation": 2}),
    "patches of groups": ((2, 8, 15, 16), (8, 2, 5, 5), {"strides": 5, "groups": 4}),
    "rows left over": ((1, 3, 19, 5), (4, 3, 2, 2), {"strides": 2}),
    "groups": ((1, 6, 9, 9), (10, 3, 3, 3), {"padding": 1, "groups": 2}),
    "depthwise": ((1, 6, 9, 9), (6, 1, 3, 3), {"padding": 1, "groups": 6}),
    "depthwise, two each": ((1, 3, 9, 9), (6, 1, 3, 3), {"strides": 2, "groups": 3}),
    "batch": ((3, 4, 7, 5), (9, 4, 3, 3), {"padding": 1}),
    "batch of groups": ((2, 4, 7, 5), (18, 2, 1, 1), {"groups": 2}),
    "groups of one tile": ((1, 20, 7, 7), (36, 5, 1, 1), {"groups": 4}),
    "groups and left over": ((1, 20, 14, 14), (36, 5, 1, 1), {"groups": 4}),
    "batch of many groups": (
        (2, 8, 9, 9),
        (12, 2, 3, 3),
        {"strides": 2, "padding": 1, "groups": 4},
    ),
    "batch, flat": ((3, 4, 7, 5), (9, 4, 1, 1), {}),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(case: str, tmp_path: Path) -> None:
    data, weight, options = CONVOLUTIONS[case]
    scheduled = assert_same(lowered(conv(**options), data, weight), tmp_path)
    assert all(is_register_tiled(func) for func in scheduled.functions.values()), "pattern missed"


@pytest.mark.parametrize("registers", [Registers(16, 16), Registers(16, 32), Registers(32, 64)])
def test_any_registers(
    registers: Registers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tvm_interop.kernels.cpu_schedule.vector_registers", lambda target: registers
    )
    data, weight, options = CONVOLUTIONS["stride 2"]
    assert_same(lowered(conv(**options), data, weight), tmp_path)
    assert_same(lowered(relax.op.matmul, (5, 9), (9, 37)), tmp_path)


def test_float64(tmp_path: Path) -> None:
    kernels = lowered(conv(padding=1), (1, 3, 9, 9), (5, 3, 3, 3), dtype="float64")
    scheduled = assert_same(kernels, tmp_path)
    assert all(is_register_tiled(func) for func in scheduled.functions.values())


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((1, 5), (5, 7)),
        ((17, 33), (33, 19)),
        ((1, 64), (64, 129)),
        ((9, 4), (4, 1)),
        ((2, 3, 5, 7), (2, 3, 7, 11)),
        ((4, 5, 7), (7, 11)),
        ((1, 5, 7), (3, 7, 16)),
    ],
)
def test_matrix_products(left: Shape, right: Shape, tmp_path: Path) -> None:
    scheduled = assert_same(lowered(relax.op.matmul, left, right), tmp_path)
    assert all(is_register_tiled(func) for func in scheduled.functions.values()), "pattern missed"


def test_what_follows_a_product_is_done_in_its_registers(tmp_path: Path) -> None:
    def op(x: relax.Expr, w: relax.Expr, bias: relax.Expr, other: relax.Expr) -> relax.Expr:
        total = relax.op.add(relax.op.add(relax.op.nn.conv2d(x, w, padding=1), bias), other)
        return relax.op.nn.relu(total)

    for size in (5, 16):
        shapes = [(2, 3, size, size), (5, 3, 3, 3), (1, 5, 1, 1), (2, 5, size, size)]
        scheduled = assert_same(lowered(op, *shapes), tmp_path)
        assert len(scheduled.functions) == 1
        (func,) = scheduled.functions.values()
        assert is_register_tiled(func)


OTHERS: dict[str, tuple[Callable[..., relax.Expr], list[Shape], str]] = {
    "softmax": (lambda x: relax.op.nn.softmax(x, axis=-1), [(3, 37)], "float32"),
    "softmax over rows": (lambda x: relax.op.nn.softmax(x, axis=1), [(2, 5, 19)], "float32"),
    "layer norm": (
        lambda x, g, b: relax.op.nn.layer_norm(x, g, b, axes=[-1]),
        [(2, 5, 19), (19,), (19,)],
        "float32",
    ),
    "max pool": (
        lambda x: relax.op.nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(1, 1)),
        [(1, 3, 19, 23)],
        "float32",
    ),
    "average pool": (
        lambda x: relax.op.nn.avg_pool2d(x, (2, 2), padding=(1, 1)),
        [(1, 3, 19, 23)],
        "float32",
    ),
    "mean": (lambda x: relax.op.mean(x, axis=[2, 3]), [(1, 70, 7, 7)], "float32"),
    "sum of integers": (lambda x: relax.op.sum(x, axis=[0]), [(9, 21)], "int64"),
    "largest": (lambda x: relax.op.max(x, axis=[1]), [(9, 21)], "int32"),
    "concat": (lambda x, y: relax.op.concat([x, y], axis=1), [(1, 3, 17), (1, 5, 17)], "float32"),
    "concat of rows": (lambda x, y: relax.op.concat([x, y], axis=-1), [(3, 17), (3, 6)], "float32"),
    "rows swapped": (lambda x: relax.op.permute_dims(x, [1, 0, 2]), [(67, 4, 37)], "float32"),
    "one of several": (
        lambda x: relax.op.take(x, relax.const(2, "int64"), axis=0),
        [(3, 5, 12, 49, 17)],
        "float32",
    ),
    "transpose": (lambda x: relax.op.permute_dims(x, [0, 2, 1]), [(2, 17, 21)], "float32"),
    "transposed product": (
        lambda x, y: relax.op.matmul(x, relax.op.permute_dims(y)),
        [(5, 9), (18, 9)],
        "float32",
    ),
    "half precision": (
        lambda x: relax.op.nn.relu(relax.op.astype(x, "float32")), [(3, 33)], "float16",
    ),
    "large": (lambda x: relax.op.nn.relu(relax.op.exp(x)), [(67000,)], "float32"),
    "image": (lambda x: relax.op.nn.relu(x), [(1, 67, 31, 29)], "float32"),
    "two images": (relax.op.maximum, [(1, 9, 7, 5), (1, 9, 7, 5)], "float32"),
    "image and bias": (relax.op.add, [(1, 67, 31, 29), (1, 67, 1, 1)], "float32"),
    "small image and bias": (relax.op.add, [(2, 67, 7, 5), (1, 67, 1, 1)], "float32"),
    "image and column": (relax.op.add, [(1, 67, 31, 29), (1, 1, 1, 29)], "float32"),
    "image and row": (relax.op.add, [(1, 67, 31, 29), (67, 31, 1)], "float32"),
    "row of a prime": (lambda x: relax.op.multiply(x, x), [(1, 65537)], "float32"),
    "group norm": (
        lambda x, g, b: relax.op.nn.group_norm(x, g, b, 16, channel_axis=1, axes=[2, 3]),
        [(1, 80, 28, 28), (80,), (80,)],
        "float32",
    ),
    # If the channels are the last axis, TVM's own kernel of the group norm is used.
    "two sums at once": (
        lambda x, g, b: relax.op.nn.group_norm(x, g, b, 1, channel_axis=3, axes=[1, 2]),
        [(1, 28, 28, 80), (80,), (80,)],
        "float32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_other_operators(case: str, tmp_path: Path) -> None:
    op, shapes, dtype = OTHERS[case]
    assert_same(lowered(op, *shapes, dtype=dtype), tmp_path)


STAY: dict[str, tuple[Callable[..., relax.Expr], list[Shape], str]] = {
    "scalar": (lambda x: relax.op.exp(x), [()], "float32"),
    "all in one": (lambda x: relax.op.sum(x), [(19,)], "float32"),
    "truth": (lambda x: relax.op.logical_not(x), [(3, 19)], "bool"),
    "place of the largest": (lambda x: relax.op.argmax(x, axis=1), [(3, 19)], "float32"),
}


@pytest.mark.parametrize("case", STAY)
def test_what_gets_no_vectors_is_still_right(case: str, tmp_path: Path) -> None:
    op, shapes, dtype = STAY[case]
    kernels = lowered(op, *shapes, dtype=dtype)
    want, got = outputs(kernels, tmp_path), outputs(DefaultCPUSchedule()(kernels), tmp_path)
    for name, arrays in want.items():
        for a, b in zip(arrays, got[name], strict=True):
            np.testing.assert_array_equal(b, a)


@pytest.mark.parametrize("name", nets.ALL)
def test_whole_nets(name: str, tmp_path: Path) -> None:
    kernels = extract(LowerToUnits()(load_model(nets.ALL[name]()))).kernels
    want, got = outputs(kernels, tmp_path), outputs(DefaultCPUSchedule()(kernels), tmp_path)
    for kernel, arrays in want.items():
        for a, b in zip(arrays, got[kernel], strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5, err_msg=kernel)


def test_the_module_given_stays_and_scheduling_twice_is_scheduling_once() -> None:
    kernels = extract(LowerToUnits()(load_model(nets.inception_like()))).kernels
    before, text = kernel_hashes(kernels), kernels.script()
    once = DefaultCPUSchedule()(kernels)
    assert kernel_hashes(kernels) == before
    assert kernels.script() == text
    assert set(kernel_hashes(once).values()).isdisjoint(before.values())
    twice = DefaultCPUSchedule()(once)
    assert kernel_hashes(twice) == kernel_hashes(once)
    assert kernel_hashes(DefaultCPUSchedule()(kernels)) == kernel_hashes(once)


def test_the_hash_tells_vector_widths_apart() -> None:
    kernels = lowered(conv(), (1, 3, 9, 9), (5, 3, 3, 3))
    hashes = [
        tuple(kernel_hashes(DefaultCPUSchedule({"kind": "llvm", "mcpu": cpu})(kernels)).values())
        for cpu in ("x86-64", "haswell", "skylake-avx512")
    ]
    assert len(set(hashes)) == 3


@I.ir_module
class _NotOfBlocks:
    @T.prim_func
    def plain(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
        for i in range(4):
            B[i] = A[i] + T.float32(1)


def test_a_kernel_without_rules_stays_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="tvm_interop"):
        scheduled = DefaultCPUSchedule()(_NotOfBlocks)
    assert tvm_ffi.structural_equal(scheduled["plain"], _NotOfBlocks["plain"])
    assert "`plain`" in caplog.text


@pytest.mark.parametrize("refused", [True, False], ids=["by TVM", "fault"])
def test_a_failure_leaves_the_kernel_and_a_fault_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    kernels = lowered(conv(), (1, 3, 9, 9), (5, 3, 3, 3))

    def fail(*_: Any) -> None:
        if refused:
            s_tir.Schedule(kernels["conv2d"]).get_sblock("nowhere")
        raise RuntimeError("some reason")

    monkeypatch.setattr("tvm_interop.kernels.cpu_schedule.contraction_nest", fail)
    with caplog.at_level(logging.DEBUG, logger="tvm_interop"):
        scheduled = DefaultCPUSchedule()(kernels)
    assert kernel_hashes(scheduled) == kernel_hashes(kernels)
    (told,) = [r for r in caplog.records if "stays as it is" in r.getMessage()]
    assert told.levelno == (logging.DEBUG if refused else logging.WARNING)
    assert ("some reason" in caplog.text) is not refused
    caplog.clear()  # Clear the log, because other tests fail if a fault is logged.


def is_register_tiled(func: tirx.PrimFunc) -> bool:
    """Whether `func` consists of loops without blocks, some of which add vectors."""
    blocks: list[Any] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, blocks.append))
    local: list[Any] = []
    tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, local.append))
    return len(blocks) == 1 and any(str(alloc.buffer.name).startswith("sum") for alloc in local)


def test_cases_cover_both_orders_of_loops() -> None:
    """Some convolutions have more pixels than channels, and some have fewer. Both occur with
    windows of width 1 and with wider windows."""
    seen = set()
    for data, weight, _ in CONVOLUTIONS.values():
        flat = weight[3] == 1
        seen.add((flat, data[2] * data[3] > weight[0]))
    assert seen == set(product([True, False], repeat=2))


@pytest.mark.parametrize("channels", [64, 65])
def test_sums_of_quantised_tensors_are_exact(channels: int, tmp_path: Path) -> None:
    """Quantised numbers are added as floats and rounded again. The sums must be exact.

    65 channels do not fill whole vectors, so the last vector of a loop is incomplete.
    """
    shape = (1, 12, 60, channels)
    a, b = (te.placeholder(shape, "uint8", name=name) for name in "ab")
    total = topi.add(topi.cast(a, "float32"), topi.multiply(topi.cast(b, "float32"), 0.5))
    step = tirx.const(0.75, "float32")
    result = rounded_to_steps(total, step, tirx.const(3, "uint8"), 0, "uint8")
    kernel = te.create_prim_func([a, b, result]).with_attr("global_symbol", "k")
    scheduled = DefaultCPUSchedule()(tvm.IRModule({"k": kernel}))
    run = load_kernels(build_kernels(scheduled, "llvm", tmp_path / "k.so"))["k"]
    draw = np.random.default_rng(0)
    left, right = (draw.integers(0, 256, shape).astype(np.uint8) for _ in "ab")
    out = as_tensor(aligned_empty(shape, "uint8"))
    run(as_tensor(aligned_copy(left)), as_tensor(aligned_copy(right)), out)
    steps = np.rint((left + right * np.float32(0.5)).astype(np.float32) / np.float32(0.75))
    np.testing.assert_array_equal(out.numpy(), np.clip(steps + 3, 0, 255).astype(np.uint8))
