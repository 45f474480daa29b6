"""Tests products of a few rows.

The tests check which operators get this project's own kernel, and that the bits of a row depend
neither on other rows nor on shares.
"""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import tvm_interop
from tests import nets
from tests.unit.test_parts_of_products import arrays_of, needs_onednn, program_of, run
from tests.weighted_kernel import WeightedKernel
from tvm_interop.compiler.api import CompileOptions, new_compilation
from tvm_interop.compiler.row_kernels import with_row_kernels
from tvm_interop.lowering.split_operators import split_operators
from tvm_interop.machine.kernel_libraries import why_refused
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


@pytest.mark.parametrize("left", [(1,), (1, 1), (1, 1, 1), (2,), (4, 1, 4), (16,)])
def test_a_product_of_a_few_rows_is_taken(left: tuple[int, ...]) -> None:
    given = program(product(*left, activation="gelu"))
    assert is_taken(given)
    assert is_taken(with_row_kernels(given))


@pytest.mark.parametrize(
    "op",
    [
        product(17),
        product(3, 2, 3),
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


def kernel_of(weight: np.ndarray, *, is_constant: bool = True, rows: int = 1) -> WeightedKernel:
    """The prepared kernel of a product of `rows` rows."""
    terms, columns = weight.shape
    shapes = ((rows, terms), weight.shape, (rows, columns))
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


def test_a_row_has_the_same_bits_among_others() -> None:
    weight = weights(3, 600, 150)
    together = kernel_of(weight, rows=13)
    result = together.run()
    np.testing.assert_allclose(result, together.data @ weight, rtol=1e-4, atol=1e-4)
    alone = kernel_of(weight)
    for row in range(13):
        alone.data[...] = together.data[row]
        np.testing.assert_array_equal(alone.run()[0], result[row])


def test_more_rows_are_refused() -> None:
    shapes = ((17, TERMS), (TERMS, COLUMNS), (17, COLUMNS))
    op = library_op(op="row_matmul", shapes=shapes, layouts=("plain",) * 3)
    assert "too many rows" in (why_refused("onednn", op) or "")


def few_rows(rows: int, columns: int, terms: int = 1200) -> LibraryOp:
    """A product of a few rows that is large enough to be divided."""
    shapes = ((rows, terms), (terms, columns), (columns,), (rows, columns))
    op = library_op(op="matmul", shapes=shapes, layouts=("plain",) * 4, has_bias=True)
    made = as_row_matmul(op)
    assert made is not None
    return made


@pytest.mark.parametrize(("rows", "columns"), [(2, 1000), (4, 130), (7, 321), (16, 256)])
def test_shares_have_the_bits_of_the_whole(rows: int, columns: int) -> None:
    op = few_rows(rows, columns)
    whole = program_of(op)
    arrays = arrays_of(op)
    expected = run(whole, arrays)
    for parts in (2, 3):
        divided = split_operators(whole, parts)
        assert [part.share for part in divided.operators] == [(i, parts) for i in range(parts)]
        np.testing.assert_array_equal(run(divided, arrays), expected)


def test_a_share_writes_its_columns_only() -> None:
    op = few_rows(3, 256)
    divided = split_operators(program_of(op), 2)
    found = []
    for part in divided.operators:
        alone = dataclasses.replace(divided, operators=[part])
        result = run(alone, arrays_of(op)).view(np.float32).reshape(3, 256)
        found.append(~np.isnan(result))  # Unwritten numbers are NaN.
    assert found[0][:, :128].all()
    assert not found[0][:, 128:].any()
    np.testing.assert_array_equal(found[1], ~found[0])


def test_a_product_of_few_columns_has_no_more_shares_than_groups_of_columns() -> None:
    assert len(split_operators(program_of(few_rows(16, 100, 9000)), 8).operators) == 2
    assert len(split_operators(program_of(few_rows(16, 64, 9000)), 8).operators) == 1


def test_a_compiled_model_runs_in_shares(tmp_path: Path) -> None:
    net = nets.Net()
    x = net.input("x", (5, 600))
    net.op("Relu", [net.op("MatMul", [x, net.weight(600, 300)], "z")], "y")
    model = net.model("y")
    results = []
    for streams, shares in ((1, {None}), (2, {(0, 2), (1, 2)})):
        artifact = tvm_interop.compile(
            model,
            scheduler="sequential",
            streams=streams,
            providers=["onednn"],
            time_budget=0,
            latency_db=":memory:",
        )
        assert {op.share for op in artifact.plan.operators} == shares
        data = np.random.default_rng(0).standard_normal((5, 600)).astype(np.float32)
        module = tvm_interop.GraphModule(artifact)
        results.append(module(x=data)[0].numpy())
        artifact.save(tmp_path / "m.tar")
        (answer,) = tvm_interop.Session(tmp_path / "m.tar").run(None, {"x": data})
        np.testing.assert_array_equal(answer, results[0])
    np.testing.assert_array_equal(*results)
