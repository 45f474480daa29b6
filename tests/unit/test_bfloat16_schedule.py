"""Tests of the loops for products of a matrix and a vector that are stored as bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx

from tvm_interop._native.kernels import load_kernels
from tvm_interop.execution.cpu import as_tensor
from tvm_interop.kernels.bfloat16_words import nearest, widened, word_of
from tvm_interop.kernels.build import build_kernels
from tvm_interop.program.host_memory import aligned_copy, aligned_empty
from tvm_interop.transform import DefaultCPUSchedule

Shape = tuple[int, ...]
WORD, NUMBER = "uint16", "float32"


def product_kernel(left: Shape, right: Shape, types: tuple[str, str, str]) -> Any:
    """A kernel that multiplies two factors.

    It widens the factors if they are words (of 16 bits), and rounds the result if it is a word.
    """
    batch, (m, k), n = left[:-2], left[-2:], right[-1]
    a, b = (te.placeholder(s, t) for s, t in zip((left, right), types[:2], strict=True))
    x, y = wide(a), wide(b)
    term = te.reduce_axis((0, k), name="k")
    total = te.compute(
        (*batch, m, n), lambda *i: te.sum(x(*i[:-1], term) * y(*i[:-2], term, i[-1]), axis=term)
    )
    result = total
    if types[2] == WORD:
        result = te.compute(total.shape, lambda *i: word_of(nearest(total(*i))), name="rounded")
    return te.create_prim_func([a, b, result]).with_attr("global_symbol", "k")


def wide(factor: Any) -> Any:
    if factor.dtype != WORD:
        return factor
    return te.compute(factor.shape, lambda *i: widened(factor(*i)), name="wide")


def run(kernel: Any, arrays: list[np.ndarray], shape: Shape, folder: Path) -> np.ndarray:
    path = build_kernels(tvm.IRModule({"k": kernel}), "llvm", folder / "k.so")
    out = as_tensor(aligned_empty(shape, str(kernel.params[-1].ty.dtype)))
    load_kernels(path)["k"](*(as_tensor(aligned_copy(array)) for array in arrays), out)
    return np.asarray(out.numpy())


def numbers(array: np.ndarray) -> np.ndarray:
    """The numbers in double precision that an array of words or floats holds."""
    return (array.view(ml_dtypes.bfloat16) if array.dtype == WORD else array).astype(np.float64)


@pytest.mark.parametrize(
    "types", [(WORD, WORD, WORD), (NUMBER, WORD, WORD), (WORD, NUMBER, NUMBER)]
)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((6, 1500, 64), (6, 64, 1)),
        ((6, 1, 150), (6, 150, 64)),
        ((2, 37, 131), (2, 131, 1)),
        ((1, 33), (33, 19)),
    ],
)
def test_words_are_widened_where_they_are_loaded(
    left: Shape, right: Shape, types: tuple[str, str, str], tmp_path: Path
) -> None:
    kernel = product_kernel(left, right, types)
    scheduled = DefaultCPUSchedule()(tvm.IRModule({"k": kernel}))["k"]
    assert is_one_nest(scheduled)
    draw = np.random.default_rng(0)
    floats = [draw.standard_normal(shape).astype(np.float32) for shape in (left, right)]
    arrays = [
        each.astype(ml_dtypes.bfloat16).view(np.uint16) if dtype == WORD else each
        for each, dtype in zip(floats, types[:2], strict=True)
    ]
    got = numbers(run(scheduled, arrays, (*left[:-1], right[-1]), tmp_path))
    want = numbers(arrays[0]) @ numbers(arrays[1])
    bound = 2**-8 if types[2] == WORD else 1e-6
    assert np.abs(got - want).max() <= bound * np.abs(want).max()


def test_two_large_factors_are_not_widened_again_and_again() -> None:
    """In a product of two matrices, each number is loaded many times. So it is widened before."""
    kernel = product_kernel((17, 64), (64, 33), (WORD, WORD, NUMBER))
    assert not is_one_nest(DefaultCPUSchedule()(tvm.IRModule({"k": kernel}))["k"])


def is_one_nest(func: tirx.PrimFunc) -> bool:
    """Whether `func` consists of loops without blocks, with its sums in registers."""
    blocks: list[Any] = []
    sums: list[Any] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, blocks.append))
    tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, sums.append))
    return len(blocks) == 1 and any(str(each.buffer.name).startswith("sum") for each in sums)
