"""Runs kernels on constants, and keeps the built kernels for later calls.

If a model is lowered for several sizes, most kernels that read only constants are the same for each
size. Building a kernel takes much longer than running it, so a built kernel is kept for the next
size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx

from .names import bindings_of
from .static_shape import static_shape

_MOST_KERNELS = 512
"""The number of built kernels that are kept. If there are more, the oldest ones are dropped."""
_SYMBOL = "kernel_on_constants"

_Run: TypeAlias = "Callable[..., None] | None"
Constants: TypeAlias = "dict[relax.Var, list[tvm.ir.GenericConst]]"
"""For each variable, its constants: one for a tensor, several for a tuple."""

_built: dict[tvm_ffi.StructuralKey, _Run] = {}
_lock = threading.Lock()


def run_on_constants(mod: tvm.IRModule, function: relax.Function) -> Constants:
    """The results of the kernel calls in a function that read only constants.

    Three kinds of calls are left out: calls without arguments, calls whose kernels are not in
    `mod`, and calls whose kernels cannot be built. Calls that depend on a missing result are left
    out too.

    Parameters
    ----------
    mod: the module that holds the kernels.
    """
    found: Constants = {}
    for binding in bindings_of(function):
        if isinstance(binding, relax.VarBinding):
            results = _results(mod, binding.value, found)
            if results is not None:
                found[binding.var] = results
    return found


def _results(
    mod: tvm.IRModule, value: relax.Expr, known: Constants
) -> list[tvm.ir.GenericConst] | None:
    """The constants that an expression evaluates to; None if they are not known."""
    if isinstance(value, relax.Call) and value.op == tvm.ir.Op.get("relax.call_tir"):
        return _called(mod, value, known)
    if isinstance(value, relax.TupleGetItem):
        fields = _constants(value.tuple_value, known)
        return None if fields is None else [fields[value.index]]
    return _constants(value, known)


def _constants(value: relax.Expr, known: Constants) -> list[tvm.ir.GenericConst] | None:
    if isinstance(value, tvm.ir.GenericConst):
        return [value]
    if isinstance(value, relax.Var):
        return known.get(value)
    if not isinstance(value, relax.Tuple):
        return None
    fields = [_constants(each, known) for each in value.fields]
    found = [field[0] for field in fields if field is not None and len(field) == 1]
    return found if len(found) == len(fields) else None


def _called(
    mod: tvm.IRModule, call: relax.Call, known: Constants
) -> list[tvm.ir.GenericConst] | None:
    kernel = mod.functions.get(call.args[0])  # None if the callee is not in `mod`.
    given = _constants(call.args[1], known) if len(call.args) == 2 else None
    if not given or not isinstance(kernel, tirx.PrimFunc):
        return None
    made = call.ty_args[0]
    types = list(made.fields) if isinstance(made, relax.TupleType) else [made]
    shapes = [static_shape(each) for each in types]
    if None in shapes or not all(isinstance(c.value, tvm.runtime.Tensor) for c in given):
        return None
    run = _kernel(kernel)
    if run is None:
        return None
    results = [
        tvm.runtime.empty(shape, str(each.dtype)) for shape, each in zip(shapes, types, strict=True)
    ]
    run(*(each.value for each in given), *results)
    return [relax.const(each, str(each.dtype)) for each in results]


def _kernel(kernel: tirx.PrimFunc) -> _Run:
    """Build the kernel as TVM's `FoldConstant` does; return None if it cannot be built."""
    named = kernel.with_attr("global_symbol", _SYMBOL)
    key = tvm_ffi.StructuralKey(named)
    with _lock:
        if key in _built:
            return _built[key]
    run = _build(named)
    with _lock:
        while len(_built) >= _MOST_KERNELS:
            del _built[next(iter(_built))]
        _built[key] = run
    return run


def _build(kernel: tirx.PrimFunc) -> _Run:
    try:
        module: Any = tirx.build(kernel, "llvm")
    except Exception:  # `FoldConstant` would not fold this call either.
        return None
    run: _Run = module[_SYMBOL]
    return run
