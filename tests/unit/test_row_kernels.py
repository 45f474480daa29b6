"""Tests of products of a single row: which operators get this project's kernel, and its bits."""

from __future__ import annotations

import dataclasses
import gc
from typing import Any

import numpy as np
import psutil
import pytest

from tests import nets
from tests.unit.test_parts_of_products import needs_onednn, program_of
from tests.weighted_kernel import WeightedKernel
from tvm_interop.compiler.api import CompileOptions, new_compilation
from tvm_interop.compiler.row_kernels import with_row_kernels
from tvm_interop.program.host_memory import aligned_empty
from tvm_interop.program.kinds.row_matmul import RowMatmul, as_row_matmul
from tvm_interop.program.library_op import LibraryOp, library_op
from tvm_interop.program.program import Program

pytestmark = needs_onednn

TERMS, COLUMNS = 96, 200


def product(*left: int, columns: int = COLUMNS, **fields: Any) -> LibraryOp:
    shapes = ((*left, TERMS), (TERMS, columns), (*left, columns))
    return library_op(op="matmul", shapes=shapes, layouts=("plain",) * 3, **fields)


def program(op: LibraryOp, *, is_constant: bool = True) -> Program:
    weight = np.zeros(op.shapes[1], np.float32)
    return dataclasses.replace(program_of(op), weights={1: weight} if is_constant else {})


def is_taken(given: Program) -> bool:
    (op,) = with_row_kernels(given).operators
    return isinstance(op.description, RowMatmul)


@pytest.mark.parametrize("left", [(1,), (1, 1), (1, 1, 1)])
def test_a_product_of_a_single_row_is_taken(left: tuple[int, ...]) -> None:
    given = program(product(*left, activation="gelu"))
    assert is_taken(given)
    assert is_taken(with_row_kernels(given))


@pytest.mark.parametrize(
    "op",
    [
        product(2),
        product(3, 1),
        product(1, columns=15),
        product(1, activation="tanh"),
        product(1).with_fields(dtype="bfloat16", stored=("float32",) * 3),
    ],
)
def test_other_products_stay(op: LibraryOp) -> None:
    assert not is_taken(program(op))


def test_a_matrix_that_is_computed_is_not_packed() -> None:
    assert not is_taken(program(product(1), is_constant=False))


def test_other_kinds_stay() -> None:
    softmax = library_op(op="softmax", shapes=((1, 64), (1, 64)), layouts=("plain",) * 2)
    given = program_of(softmax)
    assert with_row_kernels(given) == given


def test_a_batch_of_matrices_is_no_single_matrix() -> None:
    shapes = ((1, 1, TERMS), (1, TERMS, COLUMNS), (1, 1, COLUMNS))
    assert as_row_matmul(library_op(op="matmul", shapes=shapes, layouts=("plain",) * 3)) is None


def kind_in(target: str) -> str:
    net = nets.Net()
    net.op("MatMul", [net.input("x", (1, TERMS)), net.weight(TERMS, COLUMNS)], "y")
    options = CompileOptions(target=target, providers=["onednn"], time_budget=0)
    (op,) = new_compilation(net.model("y"), options).program.operators
    assert op.description is not None
    return op.description.op


def test_only_cpus_with_avx2_get_the_kernel() -> None:
    assert kind_in("llvm -mcpu=core-avx2") == "row_matmul"
    assert kind_in("llvm -mcpu=nehalem") == "matmul"


def kernel_of(weight: np.ndarray, *, is_constant: bool = True) -> WeightedKernel:
    """The prepared kernel of a product of a single row."""
    terms, columns = weight.shape
    shapes = ((1, terms), weight.shape, (1, columns))
    op = as_row_matmul(library_op(op="matmul", shapes=shapes, layouts=("plain",) * 3))
    assert op is not None
    return WeightedKernel(op, weight, is_constant=is_constant)


def weights(seed: int, terms: int = TERMS, columns: int = COLUMNS) -> np.ndarray:
    array = aligned_empty((terms, columns), np.float32)
    array[...] = np.random.default_rng(seed).standard_normal(array.shape)
    return array


def test_other_weights_are_packed_anew() -> None:
    first, second = weights(1), weights(2)
    kernel = kernel_of(first)
    before = kernel.run()
    kernel.bind(second)
    after = kernel.run()
    np.testing.assert_allclose(after, kernel.data @ second, rtol=1e-4, atol=1e-4)
    kernel.bind(first)
    np.testing.assert_array_equal(kernel.run(), before)


def test_a_matrix_that_changes_is_read_in_each_run() -> None:
    weight = weights(1)
    kernel = kernel_of(weight, is_constant=False)
    kernel.run()
    weight[...] = weights(2)
    np.testing.assert_allclose(kernel.run(), kernel.data @ weight, rtol=1e-4, atol=1e-4)


def test_instances_share_the_packed_matrix() -> None:
    weight = weights(0, 1536, 1536)
    kernels = [kernel_of(weight)]
    gc.collect()
    before = psutil.Process().memory_info().rss
    kernels += [kernel_of(weight) for _ in range(8)]
    assert psutil.Process().memory_info().rss - before < weight.nbytes
    results = [kernel.run() for kernel in kernels]
    assert all(np.array_equal(result, results[0]) for result in results)
