"""Tests that transposing kernels work tile by tile, and are right for any shape."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from tests.unit.test_row_sums import scheduled_and_run


def transposed(*axes: int) -> Callable[[relax.Expr], relax.Expr]:
    return lambda x: relax.op.permute_dims(x, list(axes))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((64, 96), (1, 0)),
        ((1, 49, 64), (0, 2, 1)),  # The vectors have seven lanes.
        ((2, 197, 24), (0, 2, 1)),  # 197 is a prime number, so some tiles are cut short.
        ((2, 24, 197), (0, 2, 1)),
        ((31, 37), (1, 0)),
        ((1, 3, 40, 40), (0, 2, 3, 1)),  # Planes become pixels of three channels, and back.
        ((1, 40, 40, 3), (0, 3, 1, 2)),
        ((8, 9, 10, 11), (3, 2, 1, 0)),
        ((64, 1, 48, 1), (2, 1, 0, 3)),
    ],
)
def test_transpositions(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    loops, found = scheduled_and_run(transposed(*axes), x, tmp_path)
    np.testing.assert_array_equal(found, x.transpose(axes))
    assert is_tiled(loops)


def test_what_is_computed_with_a_transposition_is_tiled_with_it(tmp_path: Path) -> None:
    def op(x: relax.Expr) -> relax.Expr:
        return relax.op.nn.relu(relax.op.permute_dims(x, [0, 2, 1])) + relax.const(1.0, "float32")

    x = np.random.default_rng(0).standard_normal((1, 48, 80), "float32")
    loops, found = scheduled_and_run(op, x, tmp_path)
    np.testing.assert_array_equal(found, np.maximum(x, 0).transpose(0, 2, 1) + 1)
    assert is_tiled(loops)
    assert "T.vectorized" in loops


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1, 8, 49, 32), (0, 2, 1, 3)),  # The last axis stays last.
        ((16, 16), (1, 0)),  # The tensor is small.
    ],
)
def test_what_needs_no_tiles_has_none(
    shape: tuple[int, ...], axes: tuple[int, ...], tmp_path: Path
) -> None:
    x = np.random.default_rng(0).standard_normal(shape, "float32")
    loops, found = scheduled_and_run(transposed(*axes), x, tmp_path)
    np.testing.assert_array_equal(found, x.transpose(axes))
    assert not is_tiled(loops)


def is_tiled(loops: str) -> bool:
    """Whether two loops were each split into two, by the names that TVM gives to the halves."""
    return len(set(re.findall(r"(ax\d)_1\b", loops))) == 2


def test_tiles_are_shared_between_threads(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 256, 512), "float32")
    loops, _ = scheduled_and_run(transposed(0, 2, 1), x, tmp_path)
    assert "T.parallel" in loops
