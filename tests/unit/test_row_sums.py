"""Tests that sums along rows of memory use vectors, and are right for any shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.unit.test_cpu_schedule import lowered
from tvm_interop.kernels.build import build_kernels
from tvm_interop.machine.cpu_features import vector_registers
from tvm_interop.transform import DefaultCPUSchedule

TARGET = tvm.target.Target("llvm")
WIDTH = vector_registers(TARGET).nbytes // 4


def scheduled_and_run(
    op: Callable[..., relax.Expr], x: np.ndarray, folder: Path
) -> tuple[str, np.ndarray]:
    """The loops of a kernel as text, and its result."""
    kernels = DefaultCPUSchedule("llvm")(lowered(op, x.shape, dtype=str(x.dtype)))
    (var,) = kernels.get_global_vars()
    library = tvm.runtime.load_module(str(build_kernels(kernels, "llvm", folder / "k.so")))
    out = np.full([int(size) for size in kernels[var].params[-1].ty.shape], np.nan, x.dtype)
    tensors = [tvm.runtime.tensor(array) for array in (x, out)]
    library[var.name_hint](*tensors)
    return kernels[var].script(), tensors[1].numpy()


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1, 4096), [1]),  # One long row.
        ((3, 5, 8 * WIDTH), [2]),
        ((2, 6, 14, 16), [2, 3]),  # The sum goes over planes.
        ((2, 3, 4, 64), [0, 3]),  # The elements to add up are not contiguous.
        ((7, 52), [1]),  # The width of the vectors divides the row.
    ],
)
@pytest.mark.parametrize("kind", ["sum", "mean", "variance"])
def test_rows_are_summed_up_in_vectors(
    shape: tuple[int, ...], axes: list[int], kind: str, tmp_path: Path
) -> None:
    op = getattr(relax.op, kind)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32") + 3
    loops, found = scheduled_and_run(lambda x: op(x, axis=axes), x, tmp_path)
    assert "T.vectorized" in loops
    assert "_rf" in loops
    numpy_op = {"variance": "var"}.get(kind, kind)
    wanted = getattr(np.float64(x), numpy_op)(tuple(axes))
    np.testing.assert_allclose(found, wanted, rtol=2e-6)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((5, 13), [1]), ((3, 8), [1]), ((40, 64), [0]), ((1, 1), [1]), ((4, 6, 32), [1])],
    ids=["prime", "short", "across rows", "one", "in the middle"],
)
def test_other_sums_are_right_too(shape: tuple[int, ...], axes: list[int], tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    loops, found = scheduled_and_run(lambda x: relax.op.sum(x, axis=axes), x, tmp_path)
    assert "_rf" not in loops
    np.testing.assert_allclose(found, np.float64(x).sum(tuple(axes)), rtol=1e-5, atol=1e-6)


def test_a_long_mean_is_no_worse_than_the_sum_of_its_terms_errors(tmp_path: Path) -> None:
    """If 200,000 numbers are added one after the other, rounding errors reach about 1e-5."""
    x = np.random.default_rng(0).random((1, 200_704), dtype=np.float32)
    _, found = scheduled_and_run(lambda x: relax.op.mean(x, axis=[1]), x, tmp_path)
    np.testing.assert_allclose(found, np.float64(x).mean(1), rtol=1e-6)


def test_what_is_subtracted_is_not_written_out_first(tmp_path: Path) -> None:
    """Each squared difference of a variance is used only once, so the squares are not stored in a
    tensor."""
    x = np.ones((4, 64 * WIDTH), np.float32)
    loops, _ = scheduled_and_run(lambda x: relax.op.variance(x, axis=[1]), x, tmp_path)
    sizes = [line for line in loops.splitlines() if "sblock_alloc_buffer" in line]
    assert sizes
    assert not any(str(64 * WIDTH) in line for line in sizes)
