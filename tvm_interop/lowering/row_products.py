"""Multiplies a single row by a transposed tensor without transposing the tensor first.

In each step, a decoder multiplies one query by all keys. There may be thousands of keys, and
transposing them takes longer than the product.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .names import replace_bindings, values_of
from .static_shape import known_shape, static_shape, swaps_last_axes

_MATMUL = tvm.ir.Op.get("relax.matmul")
_PERMUTE = tvm.ir.Op.get("relax.permute_dims")
_RESHAPE = tvm.ir.Op.get("relax.reshape")


@module_pass(opt_level=0, name="RowProducts")
class RowProducts:
    """Replace the product of a row and a transposed tensor by the product of the tensor and a
    column.

    The model multiplies a row of shape (..., 1, K) by the transposition (..., K, N) of a tensor
    (..., N, K). In place of this, the tensor is multiplied by the row reshaped to (..., K, 1). The
    result (..., N, 1) is then reshaped to (..., 1, N). A row and a column with the same numbers are
    the same in memory, so these reshapes copy nothing. Each number of the result is a sum of the
    same terms as before. There may be reshapes of the leading axes between the transposition and
    the product. Two kinds of transpositions are kept. A transposition of a constant is computed at
    compile time. A transposition that is multiplied by several rows pays, because one product then
    reads the tensor once for all rows.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `main`; called by TVM's pass machinery."""
        main = mod["main"]
        values = values_of(main)
        made = {var: value for var, value in values.items() if isinstance(value, relax.Call)}
        rewritten = mod.clone()
        rewritten.update_func(
            rewritten.get_global_var("main"),
            replace_bindings(main, lambda binding: _by_column(binding, made)),
        )
        return rewritten


def _by_column(binding: relax.Binding, made: dict[relax.Var, relax.Call]) -> list[relax.Binding]:
    product = made.get(binding.var)
    if product is None or product.op != _MATMUL:
        return [binding]
    row, right = product.args
    shapes = static_shape(row.ty), static_shape(right.ty), static_shape(binding.var.ty)
    if any(shape is None or len(shape) < 2 for shape in shapes) or known_shape(row)[-2] != 1:
        return [binding]
    tensor = _before_transposition(right, made)
    if tensor is None:
        return [binding]
    *row_leads, _, terms = known_shape(row)
    *leads, _, columns = known_shape(right)
    if prod(known_shape(binding.var)[:-2]) > prod(leads):
        return [binding]  # Several rows share the tensor, and each would read it again.
    builder = relax.BlockBuilder()
    steps: list[relax.Binding] = []

    def bound(call: relax.Call) -> relax.Var:
        normalized = builder.normalize(call)
        var = relax.DataflowVar(binding.var.name, normalized.ty)
        steps.append(relax.VarBinding(var, normalized))
        return var

    if known_shape(tensor) != (*leads, columns, terms):
        tensor = bound(relax.op.reshape(tensor, (*leads, columns, terms)))
    column = bound(relax.op.reshape(row, (*row_leads, terms, 1)))
    out_dtype = str(product.attrs.out_dtype) if product.attrs.out_dtype else None
    result = bound(relax.op.matmul(tensor, column, out_dtype))
    reshaped = builder.normalize(relax.op.reshape(result, known_shape(binding.var)))
    return [*steps, relax.VarBinding(binding.var, reshaped)]


def _before_transposition(expr: relax.Expr, made: dict[relax.Var, relax.Call]) -> relax.Expr | None:
    """The tensor (..., N, K) whose last two axes were swapped to get `expr` (..., K, N).

    The leading axes of the tensor may differ from the leading axes of `expr`. None if `expr` is not
    a transposition, or is the transposition of a constant.
    """
    matrix = known_shape(expr)[-2:]
    while (call := made.get(expr)) is not None and call.op == _RESHAPE:
        shape = static_shape(call.args[0].ty)
        if shape is None or shape[-2:] != matrix:
            return None
        expr = call.args[0]
    if call is None or call.op != _PERMUTE or not isinstance(call.args[0], relax.Var):
        return None
    return call.args[0] if swaps_last_axes(call) else None
