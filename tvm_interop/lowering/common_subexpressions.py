"""Removes operators that repeat an earlier operator.

If a model calls the same layer twice on the same input, an exported model has the layer's operators
twice. Two operators of one kind that read the same values with the same attributes give the same
bits, so the second operator needs no kernel.

TVM's own pass that removes repeated operators is `EliminateCommonSubexpr`. It hashes all constants,
which takes a second for 100 million weights. This pass is faster: it compares the bytes of two
constants only if the operators that read them are equal in everything else.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .names import bindings_of, replace_bindings

Key: TypeAlias = tuple[Any, ...]


@module_pass(opt_level=0, name="CommonSubexpressions")
class CommonSubexpressions:
    """Remove each operator of `main` that repeats an earlier operator.

    The first of several equal operators stays. Only operators that TVM turns into kernels are
    removed. They have no effect besides their result.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Find the equal operators of `mod`; called by TVM's pass machinery."""
        main = mod["main"]
        first_of = _first_of_equals(main)
        if not first_of:
            return mod

        def first(binding: relax.Binding) -> list[relax.Binding]:
            var = first_of.get(binding.var)
            return [binding] if var is None else [relax.VarBinding(binding.var, var)]

        changed = mod.clone()
        changed.update_func(changed.get_global_var("main"), replace_bindings(main, first))
        return relax.transform.CanonicalizeBindings()(changed)


def _first_of_equals(main: relax.Function) -> dict[relax.Var, relax.Var]:
    """Map each variable that repeats a value to the first variable with this value."""
    first_of: dict[relax.Var, relax.Var] = {}
    seen: dict[Key, list[tuple[relax.Var, relax.Expr]]] = {}
    for binding in bindings_of(main):
        value = binding.value if isinstance(binding, relax.VarBinding) else None
        if isinstance(value, relax.Var):
            first_of[binding.var] = first_of.get(value, value)
            continue
        if not _is_kernel(value):
            continue
        value = _with_first(value, first_of)
        alike = seen.setdefault(_key(value), [])
        for var, other in alike:
            if tvm_ffi.structural_equal(value, other):
                first_of[binding.var] = var
                break
        else:
            alike.append((binding.var, value))
    return first_of


def _is_kernel(value: relax.Expr | None) -> bool:
    if isinstance(value, relax.TupleGetItem):
        return True
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return False
    return bool(value.op.has_attr("FLegalize"))


def _with_first(value: relax.Expr, first_of: dict[relax.Var, relax.Var]) -> relax.Expr:
    """`value` with each variable replaced by the first variable of the same value."""
    if isinstance(value, relax.Var):
        return first_of.get(value, value)
    if isinstance(value, relax.Tuple):
        return relax.Tuple([_with_first(field, first_of) for field in value.fields[:]])
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(_with_first(value.tuple_value, first_of), value.index)
    if isinstance(value, relax.Call):
        args = value.args[:]
        first = [_with_first(arg, first_of) for arg in args]
        if all(new is old for new, old in zip(first, args, strict=True)):
            return value
        return relax.Call(value.op, first, value.attrs, value.ty_args, ret_ty=value.ty)
    return value


def _key(value: relax.Expr) -> Key:
    """A key that is the same for equal expressions. The numbers in constants are not part of the
    key.
    """
    if isinstance(value, relax.Var):
        return ("variable", value)
    if isinstance(value, tvm.ir.GenericConst):
        return ("constant", tvm_ffi.structural_hash(value.ty))
    if isinstance(value, relax.Tuple):
        return ("tuple", *map(_key, value.fields[:]))
    if isinstance(value, relax.TupleGetItem):
        return ("field", value.index, _key(value.tuple_value))
    if isinstance(value, relax.Call):
        attributes = tvm_ffi.structural_hash(value.attrs)
        return ("call", value.op.name, attributes, *map(_key, value.args[:]))
    return ("other", tvm_ffi.structural_hash(value))
