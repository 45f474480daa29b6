"""Tests that products with a vector become dot products, and that tiles allocate no memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import relax

from tests.unit.test_cpu_schedule import Shape, assert_same, lowered
from tvm_interop.kernels.build import build_kernels, divisible_kernels
from tvm_interop.kernels.vectorize_math import VectorizeMath
from tvm_interop.transform import DefaultCPUSchedule

FEW = 2 * 4 - 1
"""A number of terms that does not fill two vectors of the default target."""


def with_bias(x: Any, w: Any, bias: Any) -> relax.Expr:
    return relax.op.nn.relu(relax.op.add(relax.op.matmul(x, w), bias))


def conv(x: Any, w: Any) -> relax.Expr:
    return relax.op.nn.conv2d(x, w)


DOTS: dict[str, tuple[Callable[..., relax.Expr], tuple[Shape, ...]]] = {
    "one row": (relax.op.matmul, ((1, 40), (40, 1))),
    "three rows": (relax.op.matmul, ((3, 33), (33, 1))),
    "rows and a rest": (relax.op.matmul, ((11, 100), (100, 1))),
    "batches": (relax.op.matmul, ((2, 3, 9, 64), (2, 3, 64, 1))),
    "one vector for all": (relax.op.matmul, ((5, 9, 48), (48, 1))),
    "bias": (with_bias, ((2, 13, 70), (2, 70, 1), (13, 1))),
    "one pixel": (conv, ((1, 36, 1, 1), (10, 36, 1, 1))),
}


def is_by_lanes(kernels: Any) -> bool:
    """Whether the scheduled kernel sums in vector lanes, and adds up the lanes at the end."""
    (scheduled,) = DefaultCPUSchedule()(kernels).functions.values()
    return "[T.int64(0)] + sum0[" in scheduled.script()


@pytest.mark.parametrize("name", DOTS)
def test_lanes_add_up_terms(name: str, tmp_path: Path) -> None:
    op, shapes = DOTS[name]
    kernels = lowered(op, *shapes)
    assert is_by_lanes(kernels)
    assert_same(kernels, tmp_path)


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        pytest.param(relax.op.matmul, ((5, FEW), (FEW, 1)), id="few terms"),
        pytest.param(relax.op.matmul, ((5, 64), (64, 2)), id="two columns"),
        pytest.param(conv, ((1, 64, 1, 2), (5, 64, 1, 1)), id="two pixels"),
    ],
)
def test_other_products_stay(op: Any, shapes: Any, tmp_path: Path) -> None:
    kernels = lowered(op, *shapes)
    assert not is_by_lanes(kernels)
    assert_same(kernels, tmp_path)


def test_terms_that_lie_apart_are_no_row(tmp_path: Path) -> None:
    kernels = lowered(lambda x, w: relax.op.matmul(relax.op.permute_dims(x), w), (64, 9), (64, 1))
    assert_same(kernels, tmp_path)


def test_large_products_are_divided_between_threads(tmp_path: Path) -> None:
    kernels = lowered(relax.op.matmul, (4, 101, 256), (4, 256, 1))
    assert divisible_kernels(assert_same(kernels, tmp_path)) == {
        var.name_hint for var in kernels.get_global_vars()
    }


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (relax.op.matmul, ((5, 64), (64, 1))),
        (relax.op.matmul, ((7, 64), (64, 40))),
        (conv, ((1, 16, 6, 6), (8, 16, 1, 1))),
        (lambda x: relax.op.tanh(relax.op.exp(relax.op.negative(x))), ((4, 64),)),
    ],
)
def test_tiles_allocate_no_memory(op: Any, shapes: Any, tmp_path: Path) -> None:
    """TVM would allocate the sums of each tile anew if they had the scope `local`."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": "core-avx2"})
    with target:
        kernels = VectorizeMath()(DefaultCPUSchedule()(lowered(op, *shapes)))
    library = build_kernels(kernels, target, tmp_path / "kernels.so")
    assert b"AllocWorkspace" not in library.read_bytes()
