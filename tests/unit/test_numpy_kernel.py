"""Tests that kernels in NumPy compute the same as the compiled kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvm_interop._native.kernels import load_kernels
from tvm_interop.kernels import numpy_kernel as module
from tvm_interop.kernels.build import build_kernels
from tvm_interop.kernels.check import Checked, find_fault
from tvm_interop.kernels.numpy_kernel import numpy_kernel
from tvm_interop.kernels.numpy_values import UndefinedError
from tvm_interop.kernels.reference import reference_target

ROWS, COLUMNS = 6, 35
X = te.placeholder((ROWS, COLUMNS), name="x")
HALF = te.placeholder((ROWS, COLUMNS), "float16", name="half")
BYTES = te.placeholder((ROWS, COLUMNS), "int8", name="bytes")
UNSIGNED = te.placeholder((COLUMNS, 5), "uint8", name="unsigned")
INTS = te.placeholder((ROWS, COLUMNS), "int32", name="ints")
PLACES = te.placeholder((7,), "int64", name="places")
W = te.placeholder((COLUMNS, 5), name="w")


def elementwise(function: Callable[[Any], Any], x: Any = X) -> Any:
    return te.compute((ROWS, COLUMNS), lambda i, j: function(x[i, j]), name="y")


def summed(shape: tuple[int, ...], extent: int, of: Callable[..., Any]) -> Any:
    k = te.reduce_axis((0, extent), "k")
    return te.compute(shape, lambda *at: te.sum(of(k, *at), axis=k), name="y")


def windows(combine: Callable[..., Any]) -> Any:
    a, b = te.reduce_axis((0, 2), "a"), te.reduce_axis((0, 3), "b")
    return te.compute((3, 11), lambda i, j: combine(X[i * 2 + a, j * 3 + b], axis=[a, b]), name="y")


def padded_convolution() -> Any:
    wide = te.compute(
        (ROWS, COLUMNS + 4),
        lambda i, j: tirx.if_then_else(
            tirx.all(j >= 2, j < COLUMNS + 2), X[i, j - 2], tirx.const(0.0, "float32")
        ),
        name="wide",
    )
    k = te.reduce_axis((0, 5), "k")
    taps = te.placeholder((3, 5), name="taps")
    found = te.compute(
        (ROWS, 3, COLUMNS), lambda i, c, j: te.sum(wide[i, j + k] * taps[c, k], axis=k), name="y"
    )
    return [X, taps, found]


def grouped_convolution(groups: int = 3) -> Any:
    image = te.placeholder((1, 6, ROWS, 9), name="image")
    channels = 6 // groups
    taps = te.placeholder((4 * groups, channels, 3, 3), name="taps")
    c, a, b = (te.reduce_axis((0, extent)) for extent in (channels, 3, 3))
    found = te.compute(
        (1, 4 * groups, ROWS - 2, 7),
        lambda n, f, i, j: te.sum(
            image[n, f // 4 * channels + c, i + a, j + b] * taps[f, c, a, b], axis=[c, a, b]
        ),
        name="y",
    )
    return [image, taps, found]


def normalised() -> Any:
    k = te.reduce_axis((0, COLUMNS), "k")
    mean = te.compute((ROWS, 1), lambda i, _: te.sum(X[i, k] / float(COLUMNS), axis=k), name="mean")
    return te.compute((ROWS, COLUMNS), lambda i, j: X[i, j] - mean[i, 0], name="y")


KERNELS: dict[str, Sequence[Any]] = {
    "add": [X, elementwise(lambda x: x + 1.0)],
    "branch": [X, elementwise(lambda x: tirx.if_then_else(x > 0.0, tirx.sqrt(x), -x))],
    "bytes in a product": [
        BYTES,
        UNSIGNED,
        summed(
            (ROWS, 5),
            COLUMNS,
            lambda k, i, j: BYTES[i, k].astype("int32") * UNSIGNED[k, j].astype("int32"),
        ),
    ],
    "bytes that wrap around": [BYTES, elementwise(lambda x: x * x, BYTES)],
    "convolution": padded_convolution(),
    "extremes": [X, elementwise(lambda x: tirx.max(tirx.min(x, 0.5), -0.25))],
    "functions": [
        X,
        elementwise(lambda x: tirx.exp(tirx.sin(x)) + tirx.tanh(x) * tirx.floor(x)),
    ],
    "gather": [
        X,
        PLACES,
        te.compute((ROWS, 7), lambda i, j: X[i, PLACES[j].astype("int32")], name="y"),
    ],
    "grouped convolution": grouped_convolution(),
    "half": [HALF, elementwise(lambda x: x * x + tirx.const(0.1, "float16"), HALF)],
    "integers": [
        INTS,
        elementwise(
            lambda x: tirx.floordiv(x, 3) + tirx.floormod(x, -5) + tirx.truncdiv(x, -7), INTS
        ),
    ],
    "less": [X, elementwise(lambda x: tirx.any(x < -1.0, tirx.Not(x < 1.0)))],
    "largest of windows": [X, windows(te.max)],
    "matrices": [X, W, summed((ROWS, 5), COLUMNS, lambda k, i, j: X[i, k] * W[k, j])],
    "mean taken away": [X, normalised()],
    "one factor has no such axis": [
        X,
        W,
        summed((ROWS, 5), COLUMNS, lambda k, i, j: X[i, k] * W[0, j]),
    ],
    "reversed": [X, te.compute((ROWS, COLUMNS), lambda i, j: X[i, COLUMNS - 1 - j], name="y")],
    "rounded": [X, elementwise(lambda x: tirx.nearbyint(x * 4.0).astype("int8"))],
    "selected": [X, elementwise(lambda x: tirx.Select(x < 0.0, x * 2.0, x))],
    "shifted": [INTS, elementwise(lambda x: (x << 2) ^ (x >> 1), INTS)],
    "sum": [X, summed((ROWS,), COLUMNS, lambda k, i: X[i, k])],
    "sum of all": [X, summed((1,), COLUMNS * ROWS, lambda k, i: X[k // COLUMNS, k % COLUMNS])],
    "sum of squares": [X, summed((ROWS,), COLUMNS, lambda k, i: X[i, k] * X[i, k])],
    "sum of windows": [X, windows(te.sum)],
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    names = {name: f"kernel_{i}" for i, name in enumerate(KERNELS)}
    functions = {key: primitive(name, key) for name, key in names.items()}
    path = tmp_path_factory.mktemp("kernels") / "k.so"
    return names, load_kernels(build_kernels(tvm.IRModule(functions), reference_target(), path))


def primitive(name: str, symbol: str = "kernel") -> tirx.PrimFunc:
    return te.create_prim_func(KERNELS[name]).with_attr("global_symbol", symbol)


@pytest.mark.parametrize("together", [1 << 20, 40])
@pytest.mark.parametrize("name", KERNELS)
def test_it_is_what_a_compiler_makes_of_it(
    name: str, together: int, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TOGETHER", together)
    monkeypatch.setattr(module, "_FACTORS_TOGETHER", together)
    monkeypatch.setattr(module, "_LEAST_OF_GROUP", together)
    function = primitive(name)
    evaluated = numpy_kernel(function)
    assert evaluated is not None
    types = [str(param.dtype) for param in function.params]
    names, library = compiled
    kernel = Checked(name, function, library[names[name]], evaluated, types[:-1], types[-1:])
    assert find_fault(kernel) is None


def test_windows_and_long_sums_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    found = [np.zeros((3, 11), np.float32) for _ in range(2)]
    for few, result in zip((64, 0), found, strict=True):
        monkeypatch.setattr(module, "_FEW", few)
        evaluated = numpy_kernel(primitive("sum of windows"))
        assert evaluated is not None
        evaluated([x], [result])
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0][0, 0], x[:2, :3].sum(), 1e-6)


def evaluated(parameters: Sequence[Any], *inputs: np.ndarray) -> np.ndarray:
    kernel = numpy_kernel(te.create_prim_func(list(parameters)))
    assert kernel is not None
    result = np.zeros([int(size) for size in parameters[-1].shape], str(parameters[-1].dtype))
    kernel(inputs, [result])
    return result


def test_the_error_function_is_exact() -> None:
    doubles = te.placeholder((1001,), "float64", name="doubles")
    found = te.compute((1001,), lambda i: tirx.erf(doubles[i]), name="y")
    x = np.concatenate([np.linspace(-7, 7, 997), [np.inf, -np.inf, 1e-300, -1e-9]])
    wanted = [math.erf(value) for value in x]
    np.testing.assert_allclose(evaluated([doubles, found], x), wanted, 1e-12, 0)


def test_a_scalar_is_a_sum_of_all() -> None:
    k = te.reduce_axis((0, 5), "k")
    row = te.placeholder((5,), name="row")
    found = te.compute((), lambda: te.sum(row[k], axis=k), name="y")
    assert evaluated([row, found], np.arange(5, dtype=np.float32)) == 10
    one = te.compute((), lambda: row[2] * 2.0, name="y")
    assert evaluated([row, one], np.arange(5, dtype=np.float32)) == 4


def test_what_is_not_defined_is_told() -> None:
    gather = KERNELS["gather"]
    x, places = np.ones((ROWS, COLUMNS), np.float32), np.zeros(7, np.int64)
    places[6] = COLUMNS
    with pytest.raises(UndefinedError):
        evaluated(gather, x, places)
    divided = elementwise(lambda n: tirx.floordiv(100, n), INTS)
    zeros = np.zeros((ROWS, COLUMNS), np.int32)
    with pytest.raises(UndefinedError):
        evaluated([INTS, divided], zeros)
    guarded = elementwise(lambda n: tirx.if_then_else(n == 0, 0, tirx.floordiv(100, n)), INTS)
    assert not evaluated([INTS, guarded], zeros).any()
    with pytest.raises(UndefinedError):
        evaluated(KERNELS["largest of windows"], np.full((ROWS, COLUMNS), np.nan, np.float32))


@pytest.mark.parametrize("together", [1 << 21, 40])
def test_each_group_of_a_convolution_is_a_product_of_matrices(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FACTORS_TOGETHER", together)
    monkeypatch.setattr(module, "_LEAST_OF_GROUP", 1)
    products = []
    multiply = module._sum_of_products

    def counted(*given: Any) -> Any:
        products.append(multiply(*given))
        return products[-1]

    monkeypatch.setattr(module, "_sum_of_products", counted)
    image, taps, found = grouped_convolution()
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal([int(n) for n in p.shape]).astype("f") for p in (image, taps))
    got = evaluated([image, taps, found], x, w)
    windows = np.lib.stride_tricks.sliding_window_view(x[0].astype(float), (3, 3), (1, 2))
    by_group = windows.reshape(3, 2, *windows.shape[1:])
    wanted = np.einsum("gcijab,gfcab->gfij", by_group, w.reshape(3, 4, 2, 3, 3).astype(float))
    np.testing.assert_allclose(got[0], wanted.reshape(got.shape[1:]), 1e-5, 1e-5)
    assert len(products) >= 3
    assert all(product is not None for product in products)


def unknown() -> dict[str, Any]:
    argmax = te.comm_reducer(
        lambda a, b: (
            tirx.Select(a[1] >= b[1], a[0], b[0]),
            tirx.Select(a[1] >= b[1], a[1], b[1]),
        ),
        lambda i, v: (tirx.const(-1, i), tirx.min_value(v)),
        "argmax",
    )
    k = te.reduce_axis((0, COLUMNS), "k")
    places = te.compute((ROWS, COLUMNS), lambda i, j: j, name="places")
    largest = te.compute((ROWS,), lambda i: argmax((places[i, k], X[i, k]), axis=k), name="y")
    narrow = te.placeholder((ROWS, COLUMNS), "bfloat16", name="narrow")
    return {
        "two results at once": te.create_prim_func([X, *largest]),
        "a type that NumPy lacks": te.create_prim_func(
            [narrow, elementwise(lambda x: x + x, narrow)]
        ),
        "a function that is not listed": te.create_prim_func([X, elementwise(tirx.round)]),
    }


@pytest.mark.parametrize("name", unknown())
def test_what_is_not_known_is_left_to_a_compiler(name: str) -> None:
    assert numpy_kernel(unknown()[name]) is None
