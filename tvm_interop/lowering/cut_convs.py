"""Changes convolutions so that they do not compute results that a later slice removes.

Temporal convolutional networks pad a convolution on both sides and remove the last results. The
remaining results depend only on their own and earlier positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.analysis import post_order_visit

from .groups import is_call
from .names import bindings_of, replace_bindings
from .static_shape import static_shape

_ADD = tvm.ir.Op.get("relax.add")
_CONV = tvm.ir.Op.get("relax.nn.conv1d")
_SLICE = tvm.ir.Op.get("relax.strided_slice")


@module_pass(opt_level=0, name="CutConvs")
class CutConvs:
    """Reduce the padding of a convolution of sequences if a slice removes its last results.

    The slice may follow directly, or after the addition of a bias. Each remaining result is the
    same sum as before. Nothing reads the original convolution any more, so a later pass removes it.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `main`; called by TVM's pass machinery."""
        main = mod["main"]
        bindings = [b for b in bindings_of(main) if isinstance(b, relax.VarBinding)]
        values = {b.var: b.value for b in bindings}
        if not any(is_call(value, _SLICE) for value in values.values()):
            return mod
        uses = Counter(var for b in bindings for var in _variables(b.value))
        uses.update(_variables(main.body.body))

        def replaced(binding: relax.Binding) -> list[relax.Binding]:
            value = binding.value if isinstance(binding, relax.VarBinding) else None
            found = _cut(value, values, uses) if is_call(value, _SLICE) else None
            if found is None:
                return [binding]
            conv = _shorter(found)
            if found.bias is None:
                return [relax.VarBinding(binding.var, conv)]
            var = relax.Var(found.name, conv.ty)
            biased = relax.BlockBuilder().normalize(relax.op.add(var, found.bias))
            return [relax.VarBinding(var, conv), relax.VarBinding(binding.var, biased)]

        rewritten = mod.clone()
        rewritten.update_func(rewritten.get_global_var("main"), replace_bindings(main, replaced))
        return rewritten


class _Cut(NamedTuple):
    """A convolution, its name, the bias of its results, and how many results are removed."""

    conv: relax.Call
    name: str
    bias: relax.Expr | None
    left_out: int


def _variables(expr: relax.Expr) -> list[relax.Var]:
    found: list[relax.Var] = []
    post_order_visit(expr, lambda e: found.append(e) if isinstance(e, relax.Var) else None)
    return found


def _cut(
    call: relax.Call, values: Mapping[relax.Var, relax.Expr], uses: Mapping[relax.Var, int]
) -> _Cut | None:
    """The convolution whose last results the slice `call` removes; None for other slices."""
    source, bias = call.args[0], None
    before, kept = static_shape(source.ty), static_shape(call.ty)
    if before is None or kept is None or len(before) != 3 or before[:2] != kept[:2]:
        return None
    numbers = [[int(getattr(n, "value", -1)) for n in arg.fields] for arg in call.args[1:]]
    axes, begins, _, *steps = numbers
    is_end = all(begins[i] == 0 for i, axis in enumerate(axes) if axis % 3 == 2)
    if not is_end or any(step != 1 for each in steps for step in each):
        return None
    name = getattr(source, "name", "")
    if uses.get(source) == 1 and is_call(values.get(source), _ADD):
        source, bias = values[source].args
        shape = static_shape(bias.ty)
        if not shape or shape[-1] != 1 or static_shape(source.ty) != before:
            return None  # This is not a bias, which is the same for all positions.
    conv: Any = values.get(source) if isinstance(source, relax.Var) else None
    if uses.get(source) != 1 or not is_call(conv, _CONV):
        return None
    attrs, count = conv.attrs, before[2] - kept[2]
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
    is_plain = layouts == ("NCW", "OIW", "NCW") and int(attrs.strides[0]) == 1
    if not is_plain or not 0 < count <= int(attrs.padding[1]):
        return None
    return _Cut(conv, name, bias, count)


def _shorter(cut: _Cut) -> relax.Call:
    """The convolution of `cut`, with less padding at the end."""
    attrs = cut.conv.attrs
    first, last = (int(size) for size in attrs.padding)
    call = relax.op.nn.conv1d(
        *cut.conv.args,
        strides=1,
        padding=[first, last - cut.left_out],
        dilation=[int(d) for d in attrs.dilation],
        groups=int(attrs.groups),
        data_layout="NCW",
        kernel_layout="OIW",
        out_layout="NCW",
        out_dtype=str(attrs.out_dtype) if attrs.out_dtype else None,
    )
    return relax.BlockBuilder().normalize(call)
