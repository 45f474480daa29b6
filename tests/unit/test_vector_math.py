"""Tests the accuracy of our transcendental functions. Kernels must call no library for them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx

from tvm_interop.kernels.build import build_kernels
from tvm_interop.kernels.vectorize_math import FUNCTIONS, VectorizeMath

LENGTH = 1 << 14
LIMIT = 2.0
"""The largest error that a function may have, in units in the last place of float32."""
SPECIAL = [0.0, math.inf, math.nan, 1.0, 1e-45, 1e-40, 2.0**-126, 3.4028235e38, 1e-8, 0.5, 88.8]
SPECIAL += [103.9, 0.625, 0.925, 9.0, 17.3, 3.0, 2.0, 5.0, 16777215.0, 16777217.0, 4.0, 0.99999994]

FUNCTIONS_OF_ONE = {
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    # The functions of NumPy in float64, written so that no digits cancel.
    "sigmoid": lambda x: np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x))),
    "tanh": np.tanh,
}


def arguments(seed: int) -> np.ndarray:
    """Random bits as float32, usual numbers, and special numbers such as limits of the
    functions."""
    rng = np.random.default_rng(seed)
    by_bits = rng.integers(0, 2**32, LENGTH // 2, dtype=np.uint64).astype(np.uint32)
    usual = rng.standard_normal(LENGTH // 2).astype(np.float32) * 4
    x = np.concatenate([by_bits.view(np.float32), usual])
    x[: 2 * len(SPECIAL)] = [*SPECIAL, *(-value for value in SPECIAL)]
    return x


def kernel(function, count: int = 1, dtype: str = "float32") -> tvm.IRModule:
    """A kernel that computes `function` for each element of `count` tensors."""
    inputs = [te.placeholder((LENGTH,), dtype, name=f"x{i}") for i in range(count)]
    result = te.compute((LENGTH,), lambda i: function(*(x[i] for x in inputs)))
    func = te.create_prim_func([*inputs, result])
    return tvm.IRModule({"k": func.with_attr("global_symbol", "k")})


def run(function, *arrays: np.ndarray) -> np.ndarray:
    module = VectorizeMath()(kernel(function, len(arrays), str(arrays[0].dtype)))
    library = tvm.compile(module, target="llvm")
    out = tvm.runtime.tensor(np.zeros(LENGTH, arrays[0].dtype))
    library["k"](*(tvm.runtime.tensor(x) for x in arrays), out)
    return out.numpy()


def units_off(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Errors in units in the last place of float32, infinite if a NaN or an infinity is wrong."""
    with np.errstate(all="ignore"):
        wanted = exact.astype(np.float32)
        unit = np.spacing(np.abs(np.where(np.isfinite(wanted), wanted, 1))).astype(np.float64)
        off = np.abs(got.astype(np.float64) - exact) / unit
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    return np.where(same & ~np.isfinite(wanted), 0, np.where(np.isnan(off), np.inf, off))


@pytest.mark.parametrize("name", FUNCTIONS_OF_ONE)
def test_function_of_one_number_is_right_to_two_units(name):
    x = arguments(seed=1)
    with np.errstate(all="ignore"):
        exact = FUNCTIONS_OF_ONE[name](x.astype(np.float64))
    off = units_off(run(getattr(tirx, name), x), exact)
    worst = int(np.argmax(off))
    assert off[worst] <= LIMIT, f"{name}({x[worst]!r}) is off by {off[worst]} units"


def test_powers_are_right_to_two_units_for_every_pair_of_special_numbers():
    x, y = arguments(seed=2), arguments(seed=3)
    special = np.array([*SPECIAL, *(-value for value in SPECIAL)], np.float32)
    pairs = np.stack(np.meshgrid(special, special)).reshape(2, -1)
    x[: pairs.shape[1]], y[: pairs.shape[1]] = pairs
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    off = units_off(run(tirx.power, x, y), exact)
    worst = int(np.argmax(off))
    assert off[worst] <= LIMIT, f"{x[worst]!r} ** {y[worst]!r} is off by {off[worst]} units"


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, -0.5, -1.0, 2.5])
def test_powers_of_constant_exponents_are_right_to_two_units(exponent):
    x = arguments(seed=4)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), exponent)
    constant = tirx.FloatImm("float32", exponent)
    off = units_off(run(lambda x: tirx.power(x, constant), x), exact)
    worst = int(np.argmax(off))
    assert off[worst] <= LIMIT, f"{x[worst]!r} ** {exponent} is off by {off[worst]} units"


def test_nothing_is_left_to_the_c_library():
    def all_of_them(x):
        return sum((getattr(tirx, name)(x) for name in FUNCTIONS_OF_ONE), tirx.power(x, x))

    text = str(VectorizeMath()(kernel(all_of_them)))
    left = [name for name in FUNCTIONS if f"{name.split('.')[1]}(" in text]
    assert left == []


def test_loops_become_vectors():
    target = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
    library = tvm.compile(VectorizeMath()(kernel(tirx.exp)), target=target)
    assert "vmulps" in library.mod.inspect_source("asm")


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid", "erf", "log", "log2", "exp2"])
def test_no_bound_value_begins_with_a_bound_value(name: str) -> None:
    """If the value of a `Let` began with another `Let`, TVM's passes would simplify the inner value
    many more times."""
    bound = bound_values(FUNCTIONS[f"prim.{name}" if name == "log2" else f"tirx.{name}"])
    assert bound
    assert not any(isinstance(value, tirx.Let) for value in bound)


def test_the_exponential_binds_only_short_expressions() -> None:
    """TVM's passes simplify the value of each `Let` several times, so long values are slow."""
    lengths = []
    for value in bound_values(FUNCTIONS["tirx.exp"]):
        nodes: list[Any] = []
        tvm_ffi.structural_walk(value, (tvm.ir.Expr, nodes.append))
        lengths.append(len(nodes))
    assert len(lengths) > 4
    assert max(lengths) < 20


def bound_values(function: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(
        function(tirx.Var("x", "float32") + tirx.const(1, "float32")),
        (tirx.Let, lambda let: found.append(let.value)),
    )
    return found


def test_half_precision_is_computed_in_float32():
    with np.errstate(all="ignore"):
        x = arguments(seed=5).astype(np.float16)
        exact = np.tanh(x.astype(np.float64)).astype(np.float16)
    np.testing.assert_allclose(run(tirx.tanh, x), exact, rtol=2e-3)


def test_double_precision_stays_a_call():
    module = kernel(tirx.exp, dtype="float64")
    tvm.ir.assert_structural_equal(VectorizeMath()(module), module)


def test_functions_of_rounded_numbers_are_rounded_in_vectors():
    """TVM once refused to vectorise this kernel, although TVM itself makes it for a quantised
    model."""

    def rounded(x):
        steps = tirx.min(tirx.max(tirx.nearbyint(x / 0.05) + 7.0, 0.0), 255.0)
        return (steps.astype("uint8").astype("int32") - 7).astype("float32") * 0.05

    def gated(x):
        return rounded(rounded(x) * rounded(tirx.sigmoid(rounded(x))))

    schedule = s_tir.Schedule(kernel(gated))
    schedule.work_on("k")
    (loop,) = schedule.get_loops(schedule.get_sblock("compute"))
    schedule.vectorize(schedule.split(loop, [None, 8])[1])
    library = tvm.compile(VectorizeMath()(schedule.mod), target="llvm")
    given = np.random.default_rng(0).standard_normal(LENGTH).astype(np.float32)
    got = tvm.runtime.tensor(np.zeros(LENGTH, np.float32))
    library["k"](tvm.runtime.tensor(given), got)

    def as_rounded(x):
        return np.float32(0.05) * np.clip(np.rint(x / np.float32(0.05)), -7, 248)

    x = as_rounded(given)
    wanted = as_rounded(x * as_rounded(1 / (1 + np.exp(-x))))
    # A number halfway between two steps may be rounded to either step.
    assert np.mean(got.numpy() != wanted) < 0.01
    np.testing.assert_allclose(got.numpy(), wanted, atol=0.0501)


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("in_a_branch", [False, True])
def test_functions_of_functions_compile_in_no_time(
    in_a_branch: bool, lanes: int, tmp_path: Path
) -> None:
    """TVM's analyzer would write out the innermost function hundreds of thousands of times."""

    def nested(x: Any) -> Any:
        value = tirx.tanh(tirx.sigmoid(tirx.tanh(tirx.sigmoid(x))) * x)
        return tirx.if_then_else(x > -1.0, value, 0.0) if in_a_branch else value

    x = te.placeholder((64,), "float32", "x")
    y = te.compute((64,), lambda i: nested(x[i]), "y")
    func = te.create_prim_func([x, y]).with_attr("global_symbol", "nested")
    schedule = s_tir.Schedule(tvm.IRModule({"nested": func}))
    schedule.work_on("nested")
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    if lanes > 1:
        schedule.vectorize(schedule.split(loop, [None, lanes])[1])
    write_out: Any = VectorizeMath()
    module = write_out(schedule.mod)
    stores: list[Any] = []
    tvm_ffi.structural_walk(module["nested"].body, (tirx.BufferStore, stores.append))
    assert (len(stores) == 1) == in_a_branch, "only arguments outside of branches must be stored"
    library = build_kernels(module, "llvm", tmp_path / "nested.so")
    given = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    got = tvm.runtime.tensor(np.zeros(64, np.float32))
    tvm.runtime.load_module(str(library))["nested"](tvm.runtime.tensor(given), got)
    inner = 1 / (1 + np.exp(-np.tanh(1 / (1 + np.exp(-given)))))
    wanted = np.tanh(inner * given)
    if in_a_branch:
        wanted = np.where(given > -1, wanted, 0)
    np.testing.assert_allclose(got.numpy(), wanted, 1e-6, 1e-7)
