"""Folds operators on constants, by running the same kernels as at run time.

So an operator gives the same result for a constant as for an input with the same numbers. TVM's
`FoldConstant` would use TVM's own kernels, but the kernels of this package differ from them (see
`legalizations`). `FoldConstant` would also make a kernel for every operator of the model, to find
out which operators it can fold.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .constant_kernels import run_on_constants
from .legalizations import legalizations
from .names import bindings_of, replace_bindings

_FOLDED = "folded"


@module_pass(opt_level=0, name="FoldCalls")
class FoldCalls:
    """Replace each operator of `main` that reads only constants by a constant."""

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Fold the constants of `mod`; called by TVM's pass machinery."""
        main = mod["main"]
        bindings = _on_constants(main)
        if not bindings:
            return mod
        values = _computed(bindings)

        def constant(binding: relax.Binding) -> list[relax.Binding]:
            value = values.get(binding.var)
            return [binding] if value is None else [relax.VarBinding(binding.var, value)]

        folded = mod.clone()
        folded.update_func(folded.get_global_var("main"), replace_bindings(main, constant))
        return folded


def _on_constants(main: relax.Function) -> list[relax.VarBinding]:
    """The bindings that depend only on constants; empty if none of them is an operator."""
    found: list[relax.VarBinding] = []
    known: set[relax.Var] = set()

    def is_known(expr: relax.Expr) -> bool:
        if isinstance(expr, relax.Tuple):
            return all(map(is_known, expr.fields))
        if isinstance(expr, relax.Var):
            return expr in known
        return not isinstance(expr, (relax.Call, relax.TupleGetItem))

    for binding in bindings_of(main):
        value = binding.value if isinstance(binding, relax.VarBinding) else None
        if isinstance(value, tvm.ir.GenericConst):
            is_found = True
        elif isinstance(value, relax.TupleGetItem):
            is_found = is_known(value.tuple_value)
        elif isinstance(value, relax.Tuple):
            is_found = len(value.fields) > 0 and is_known(value)
        elif isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op):
            is_found = bool(value.args) and all(map(is_known, value.args))
            is_found = is_found and value.op.has_attr("FLegalize")
        else:
            continue
        if is_found:
            known.add(binding.var)
            found.append(binding)
    return found if any(isinstance(b.value, relax.Call) for b in found) else []


def _computed(bindings: list[relax.VarBinding]) -> dict[relax.Var, relax.Expr]:
    """The results of `bindings` as constants, without bindings that are constants already."""
    wanted = [
        binding.var
        for binding in bindings
        if isinstance(binding.var.ty, relax.TensorType)
        and not isinstance(binding.value, tvm.ir.GenericConst)
    ]
    if not wanted:  # No result is a tensor: all of them are shapes.
        return {}
    all_of_them = relax.BlockBuilder().normalize(relax.Tuple(wanted))
    result = relax.Var("result", all_of_them.ty)
    block = relax.DataflowBlock([*bindings, relax.VarBinding(result, all_of_them)])
    function = relax.Function([], relax.SeqExpr([block], result), result.ty)
    mod = relax.transform.LegalizeOps(legalizations())(tvm.IRModule({_FOLDED: function}))
    known = run_on_constants(mod, mod[_FOLDED])

    def as_constant(binding: relax.Binding) -> list[relax.Binding]:
        fields = known.get(binding.var)
        if fields is None:
            return [binding]
        is_tuple = isinstance(binding.var.ty, relax.TupleType)
        return [relax.VarBinding(binding.var, relax.Tuple(fields) if is_tuple else fields[0])]

    mod.update_func(mod.get_global_var(_FOLDED), replace_bindings(mod[_FOLDED], as_constant))
    # TVM folds the remaining operators, for example operators without arguments.
    for step in (relax.transform.FoldConstant(), relax.transform.CanonicalizeBindings()):
        mod = step(mod)
    made: dict[relax.Var, relax.Expr] = {b.var: b.value for b in bindings_of(mod[_FOLDED])}
    body = mod[_FOLDED].body.body
    constants = zip(wanted, made.get(body, body).fields, strict=True)
    return {
        var: _of_type(value, str(var.ty.dtype))
        for var, value in constants
        if isinstance(value, tvm.ir.GenericConst)
    }


def _of_type(constant: tvm.ir.GenericConst, dtype: str) -> relax.Expr:
    """`constant` converted to `dtype`.

    TVM's kernels of float16 batch norms return float32, although the operators return float16.
    """
    if str(constant.ty.dtype) == dtype:
        return constant
    return relax.const(constant.value.numpy().astype(dtype), dtype)
