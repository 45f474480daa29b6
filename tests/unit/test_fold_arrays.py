"""Tests that constants computed with NumPy have the same bits as constants computed by TVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_interop.lowering.fold_arrays import FoldArrays
from tvm_interop.lowering.lower import LowerToUnits
from tvm_interop.lowering.names import bindings_of

_RNG = np.random.default_rng(0)
_F = _RNG.standard_normal((3, 4)).astype(np.float32)
_G = _RNG.standard_normal((3, 4)).astype(np.float32)
_I = np.array([[2, -1], [0, 1]], dtype=np.int64)
_B = np.array([[True, False, True, True]])
_SPECIAL = np.array([[np.nan, np.inf, -0.0, 1e-45]], dtype=np.float32)

op = relax.op
_CALLS: dict[str, Callable[[], relax.Expr]] = {
    "add": lambda: op.add(relax.const(_F), relax.const(_G)),
    "add of special numbers": lambda: op.add(relax.const(_F), relax.const(_SPECIAL)),
    "subtract": lambda: op.subtract(relax.const(_F), relax.const(np.float32(1e-3))),
    "multiply": lambda: op.multiply(relax.const(_F), relax.const(_G)),
    "less": lambda: op.less(relax.const(_F), relax.const(_G)),
    "less than not a number": lambda: op.less(relax.const(_F), relax.const(_SPECIAL)),
    "greater_equal": lambda: op.greater_equal(relax.const(_I, "int64"), relax.const(0, "int64")),
    "logical_not": lambda: op.logical_not(relax.const(_B, "bool")),
    "where": lambda: op.where(relax.const(_B, "bool"), relax.const(_F), relax.const(_G)),
    "permute_dims": lambda: op.permute_dims(relax.const(_F), [1, 0]),
    "permute_dims of all": lambda: op.permute_dims(relax.const(_F)),
    "reshape": lambda: op.reshape(relax.const(_F), (2, 6)),
    "expand_dims": lambda: op.expand_dims(relax.const(_F), [0, 2]),
    "squeeze": lambda: op.squeeze(relax.const(_F[:1]), [0]),
    "concat": lambda: op.concat([relax.const(_F), relax.const(_G)], axis=1),
    "broadcast_to": lambda: op.broadcast_to(relax.const(_F[:1]), (3, 4)),
    "gather_elements": lambda: op.gather_elements(
        relax.const(_F), relax.const(_I[1:, :1].repeat(4, 1), "int64"), axis=0
    ),
    "gather_elements along the last axis": lambda: op.gather_elements(
        relax.const(_F[:1]), relax.const(np.array([[3, 0, 0]]), "int64"), axis=-1
    ),
    "strided_slice": lambda: op.strided_slice(relax.const(_F), [1], [1], [3]),
    "strided_slice in steps": lambda: op.strided_slice(
        relax.const(_F), [0, 1], [0, 1], [3, 4], [2, 3]
    ),
    "take": lambda: op.take(relax.const(_F), relax.const(_I[1], "int64"), axis=0),
    "take, wrapped": lambda: op.take(
        relax.const(_F), relax.const(_I, "int64"), axis=0, mode="wrap"
    ),
}


@pytest.mark.parametrize("name", _CALLS)
def test_a_constant_is_the_one_that_tvm_computes(name: str) -> None:
    mod = _module(_CALLS[name]())
    ours = _constant(FoldArrays()(mod))
    theirs = _constant(relax.transform.FoldConstant()(mod))
    assert ours is not None
    assert theirs is not None
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert ours.tobytes() == theirs.tobytes()


def test_a_chain_of_constants_is_folded_to_its_end() -> None:
    negative = op.less(relax.const(-1, "int64"), relax.const(0, "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            is_negative = builder.emit(negative)
            moved = builder.emit(op.add(relax.const(-1, "int64"), relax.const(4, "int64")))
            found = builder.emit_output(op.where(is_negative, moved, relax.const(-1, "int64")))
        builder.emit_func_output(found)
    assert _constant(FoldArrays()(builder.get())) == 3


def test_a_shape_is_known_before_the_input_is() -> None:
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((5, 7), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            shape = builder.emit(op.shape_of(data))
            found = builder.emit_output(op.shape_to_tensor(shape))
        builder.emit_func_output(found)
    np.testing.assert_array_equal(_constant(FoldArrays()(builder.get())), [5, 7])


@pytest.mark.parametrize(
    "call",
    [
        lambda: op.exp(relax.const(_F)),  # NumPy and TVM round `exp` differently.
        lambda: op.not_equal(relax.const(_SPECIAL), relax.const(_SPECIAL)),
        lambda: op.take(relax.const(_F), relax.const(_I + 9, "int64"), axis=0, mode="clip"),
        lambda: op.gather_elements(relax.const(_F), relax.const(_I[1:], "int64"), axis=1),
        lambda: op.strided_slice(relax.const(_F), [1], [3], [0], [-1]),
        lambda: op.add(relax.const(_F, "bfloat16"), relax.const(_F, "bfloat16")),
    ],
)
def test_what_numpy_computes_otherwise_is_left_to_tvm(call: Callable[[], relax.Expr]) -> None:
    assert _constant(FoldArrays()(_module(call()))) is None


def _module(call: relax.Expr) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            found = builder.emit_output(call)
        builder.emit_func_output(found)
    return builder.get()


def _constant(mod: tvm.IRModule) -> np.ndarray[Any, Any] | None:
    """The constant that `main` returns, or None if it returns something else."""
    values = {binding.var: binding.value for binding in bindings_of(mod["main"])}
    value = mod["main"].body.body
    while value in values:  # A binding may rename a variable.
        value = values[value]
    return value.value.numpy() if isinstance(value, tvm.ir.GenericConst) else None


def test_constants_that_go_through_tuples_are_computed() -> None:
    """The weights of a recurrent layer are split, and joined in another order."""
    x = relax.Var("x", relax.TensorType((2, 6), "float32"))
    weights = relax.const(np.arange(12, dtype="float32").reshape(2, 6))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            parts = bb.emit(relax.op.split(weights, 3, axis=1))
            fields = [bb.emit(relax.TupleGetItem(parts, i)) for i in (2, 0, 1)]
            joined = bb.emit(relax.op.concat(fields, axis=1))
            result = bb.emit_output(relax.op.add(x, joined))
        bb.emit_func_output(result)
    main = LowerToUnits("llvm")(bb.get())["main"]
    calls = [b for b in bindings_of(main) if isinstance(b.value, relax.Call)]
    assert len(calls) == 1, "the sum alone is left"


def test_a_lookup_by_an_index_that_is_data() -> None:
    """The shape of `x` is known before the run, so its size is folded into a constant. The index
    `at` is an input, so the addition that reads `at` stays."""
    x = relax.Var("x", relax.TensorType((4, 5), "float32"))
    at = relax.Var("at", relax.TensorType((3,), "int64"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, at]):
        with bb.dataflow():
            shape = bb.emit(relax.op.shape_of(x))
            size = bb.emit(relax.op.shape_to_tensor(shape))
            rows = bb.emit(relax.op.take(size, relax.const(0, "int64"), axis=0))
            result = bb.emit_output(relax.op.add(at, rows))
        bb.emit_func_output(result)
    main = LowerToUnits("llvm")(bb.get())["main"]
    assert sum(isinstance(b.value, relax.Call) for b in bindings_of(main)) == 1
