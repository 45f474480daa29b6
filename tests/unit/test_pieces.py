"""Tests that kernels such as concatenations and paddings have a loop for each piece of an axis."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.unit.test_cpu_schedule import Shape, lowered, outputs
from tvm_interop.kernels.build import divisible_kernels
from tvm_interop.transform import DefaultCPUSchedule


def concat(axis: int) -> Callable[..., relax.Expr]:
    return lambda *xs: relax.op.concat(xs, axis)


def rotated(x: relax.Expr) -> relax.Expr:
    """The second half of the last axis, with its sign changed, before the first half."""
    half = 24
    first = relax.op.strided_slice(x, [2], [0], [half])
    second = relax.op.strided_slice(x, [2], [half], [2 * half])
    return relax.op.concat((relax.op.negative(second), first), 2)


def padded(*width: int) -> Callable[..., relax.Expr]:
    return lambda x: relax.op.nn.pad(x, width, "constant", 2.5)


def compared(op: Callable[..., relax.Expr], folder: Path, *shapes: Shape) -> tvm.IRModule:
    """Check that the kernels of `op` give the same bits before and after they are scheduled, and
    return the scheduled kernels."""
    kernels = lowered(op, *shapes)
    scheduled = DefaultCPUSchedule()(kernels)
    want, got = outputs(kernels, folder), outputs(scheduled, folder)
    assert want.keys() == got.keys()
    for name, arrays in want.items():
        for before, after in zip(arrays, got[name], strict=True):
            np.testing.assert_array_equal(after, before)
    return scheduled


def choices(kernels: tvm.IRModule) -> int:
    return kernels.script().count("if_then_else")


IN_PIECES: dict[str, tuple[Callable[..., relax.Expr], tuple[Shape, ...]]] = {
    "last axis": (concat(1), ((5, 3), (5, 7))),
    "one after another": (concat(0), ((3,), (4,), (5,))),
    "many inputs": (concat(1), ((6, 2),) * 60),
    "middle axis": (concat(1), ((4, 2, 9), (4, 1, 9), (4, 5, 9))),
    "several axes before": (concat(2), ((2, 3, 4), (2, 3, 1), (2, 3, 6))),
    "rotation": (rotated, ((2, 5, 48),)),
    "padding after": (padded(0, 0, 0, 3), ((4, 9),)),
    "padding around": (padded(0, 0, 2, 1), ((4, 9),)),
    "sum of a concatenation": (
        lambda x, y, z: relax.op.add(relax.op.concat((x, y), 1), z),
        ((4, 3), (4, 5), (4, 8)),
    ),
}


def test_zeros_of_a_piece_may_be_multiplied(tmp_path: Path) -> None:
    def product(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        return relax.op.multiply(relax.op.nn.pad(x, (0, 0, 2, 1), "constant", 0.0), y)

    assert choices(compared(product, tmp_path, (4, 9), (4, 12))) == 0


@pytest.mark.parametrize("name", IN_PIECES)
def test_questions_about_one_axis_are_answered(name: str, tmp_path: Path) -> None:
    op, shapes = IN_PIECES[name]
    assert choices(lowered(op, *shapes)) > 0
    assert choices(compared(op, tmp_path, *shapes)) == 0


def test_questions_about_another_axis_stay(tmp_path: Path) -> None:
    kernels = compared(padded(1, 2, 3, 4), tmp_path, (5, 6))
    (question,) = re.findall(r"if_then_else\((.*?), x0", kernels.script())
    assert question == "T.int64(1) <= i and i < T.int64(6)"


@pytest.mark.parametrize(
    ("axis", "shapes"),
    [
        pytest.param(1, ((2, 3, 80), (2, 4, 80)), id="long rows after the axis"),
        pytest.param(1, ((4, 1),) * 129, id="too many pieces"),
        pytest.param(0, ((40000,), (30000,)), id="nothing to divide between threads"),
    ],
)
def test_where_pieces_do_not_help(axis: int, shapes: Any) -> None:
    assert choices(DefaultCPUSchedule()(lowered(concat(axis), *shapes))) > 0


def test_large_concatenations_are_divided_between_threads(tmp_path: Path) -> None:
    shapes = ((40, 32, 16), (40, 31, 16))
    (name,) = (var.name_hint for var in lowered(concat(1), *shapes).get_global_vars())
    assert divisible_kernels(compared(concat(1), tmp_path, *shapes)) == {name}
    assert not divisible_kernels(DefaultCPUSchedule()(lowered(concat(1), (4, 3), (4, 2))))
