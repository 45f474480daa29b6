"""Tests that equal operators get their kernel once, and that the kernel is the same as without
`legalized_once`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tests import nets
from tvm_interop.frontend import load_model
from tvm_interop.lowering.legalizations import legalizations
from tvm_interop.lowering.legalize_once import legalized_once


@I.ir_module
class Layers:
    @R.function
    def main(x: R.Tensor((2, 8), "float32"), y: R.Tensor((2, 8), "float32")) -> R.Tensor(
        (2, 8), "float32"
    ):
        with R.dataflow():
            a = R.add(x, x)
            b = R.add(a, y)
            c = R.add(y, b)
            d = R.nn.softmax(c, axis=1)
            e = R.nn.softmax(R.nn.softmax(d, axis=0), axis=1)
            f = R.concat((e, x), axis=0)
            g = R.concat((y, f), axis=0)
            h = R.concat((x, R.add(e, y)), axis=0)
            z = R.add(R.strided_slice(g, [0], [0], [2]), R.strided_slice(h, [0], [2], [4]))
            R.output(z)
        return z


def _legalized(module: tvm.IRModule, functions: Any) -> tvm.IRModule:
    return relax.transform.LegalizeOps(functions)(relax.transform.Normalize()(module))


def _module(params: list[relax.Var], compute: Callable[[relax.BlockBuilder], Any]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(compute(builder))
        builder.emit_func_output(result)
    return builder.finalize()


def _counted(counts: Counter[str]) -> dict[str, Any]:
    """Return functions that legalize operators as usual, and count their calls in `counts`."""

    def counting(name: str) -> Any:
        usual = legalizations().get(name) or tvm.ir.Op.get(name).get_attr("FLegalize")

        def function(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
            counts[name] += 1
            return usual(bb, call)

        return function

    names = ("add", "concat", "multiply", "nn.relu", "nn.softmax", "strided_slice")
    return {f"relax.{name}": counting(f"relax.{name}") for name in names}


def test_equal_operators_share_a_kernel_that_is_made_once() -> None:
    counts: Counter[str] = Counter()
    got = _legalized(Layers, legalized_once(_counted(counts)))
    tvm.ir.assert_structural_equal(got, _legalized(Layers, legalizations()))
    # The kernel of `x + x` is not used again for `x + y`, because it has one argument for both.
    assert counts["relax.add"] == 2
    assert counts["relax.nn.softmax"] == 2  # There is a kernel for each axis.
    assert counts["relax.concat"] == 3 - 1  # There is a kernel for each of two sets of shapes.
    assert counts["relax.strided_slice"] == 2  # There is a kernel for each of two rows.


@pytest.mark.parametrize("make", nets.ALL.values(), ids=nets.ALL)
def test_the_module_is_the_usual_one(make: Any) -> None:
    module = relax.transform.DecomposeOpsForInference()(load_model(make()))
    own = legalizations()
    # Without `legalized_once`, equal max poolings get several equal kernels; see the next test.
    own = {name: function for name, function in own.items() if "max_pool" not in name}
    tvm.ir.assert_structural_equal(_legalized(module, legalized_once(own)), _legalized(module, own))


def test_equal_max_poolings_share_a_kernel() -> None:
    x = relax.Var("x", relax.TensorType((1, 2, 8, 8), "float32"))

    def two(builder: relax.BlockBuilder) -> relax.Expr:
        first = builder.emit(relax.op.nn.max_pool2d(x, (3, 3), (1, 1), (1, 1)))
        return relax.op.nn.max_pool2d(first, (3, 3), (1, 1), (1, 1))

    module = _module([x], two)
    usual = _legalized(module, legalizations())
    once = _legalized(module, legalized_once(legalizations()))
    kernels = [var.name_hint for var in usual.get_global_vars() if var.name_hint != "main"]
    assert len(kernels) == 2
    tvm.ir.assert_structural_equal(*(usual[name].without_attr("global_symbol") for name in kernels))
    assert {var.name_hint for var in once.get_global_vars()} == {"main", min(kernels, key=len)}
    name = min(kernels, key=len)
    tvm.ir.assert_structural_equal(once[name], usual[name])


@pytest.mark.parametrize(
    ("constants", "kernels"),
    [
        # TVM writes a scalar into the kernel.
        ([np.float32(2), np.float32(2)], 1),
        ([np.float32(2), np.float32(3)], 2),
        # A zero stays an argument, so that infinity times zero is NaN.
        ([np.float32(0), np.float32(2)], 2),
        ([np.zeros(8, np.float32), np.ones(8, np.float32)], 1),
        ([np.zeros(64, np.float32), np.ones(64, np.float32)], 1),
    ],
    ids=["equal scalars", "other scalars", "zero", "short", "long"],
)
def test_numbers_in_kernels_are_compared(constants: list[np.ndarray], kernels: int) -> None:
    width = max(constants[0].size, 2)
    x = relax.Var("x", relax.TensorType((2, width), "float32"))

    def products(builder: relax.BlockBuilder) -> relax.Expr:
        value: Any = x
        for constant in constants:
            value = builder.emit(relax.op.multiply(value, relax.const(constant, "float32")))
        return value

    module = _module([x], products)
    once = _legalized(module, legalized_once(legalizations()))
    tvm.ir.assert_structural_equal(once, _legalized(module, legalizations()))
    assert len(once.get_global_vars()) == 1 + kernels


def test_arguments_of_other_types_get_other_kernels() -> None:
    shapes = [((2, 8), "float32"), ((2, 8), "float16"), ((8, 2), "float32")]
    params = [relax.Var(f"x{i}", relax.TensorType(*type_)) for i, type_ in enumerate(shapes)]
    module = _module(
        params, lambda builder: relax.Tuple([builder.emit(relax.op.nn.relu(x)) for x in params])
    )
    once = _legalized(module, legalized_once(legalizations()))
    tvm.ir.assert_structural_equal(once, _legalized(module, legalizations()))
    assert len(once.get_global_vars()) == 4
