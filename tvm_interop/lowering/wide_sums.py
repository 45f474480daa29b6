"""Makes convolutions and matrix products of float16 add up their terms in float32.

onnxruntime, cuDNN and tensor cores add up products of float16 numbers in float32, too. TVM would
add them up in float16, where 2048 + 1 is 2048 and the largest number is 65504.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .names import NewBindings, replace_bindings

_CONVS = {
    tvm.ir.Op.get("relax.nn.conv1d"): relax.op.nn.conv1d,
    tvm.ir.Op.get("relax.nn.conv2d"): relax.op.nn.conv2d,
    tvm.ir.Op.get("relax.nn.conv3d"): relax.op.nn.conv3d,
}
_MATMUL = tvm.ir.Op.get("relax.matmul")
_TRANSPOSED = {tvm.ir.Op.get(f"relax.nn.conv{rank}d_transpose") for rank in (1, 2, 3)}


@module_pass(opt_level=0, name="WideSums")
class WideSums:
    """Give each convolution and matrix product of float16 a float32 result, followed by a cast.

    The cast back to float16 is fused into the operator's kernel. The operator and the cast both
    keep the name of the binding that they replace. The inputs of a transposed convolution are
    cast to float32, because its kernel adds up numbers in the type of its inputs.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `main`; called by TVM's pass machinery."""
        widened = mod.clone()
        widened.update_func(widened.get_global_var("main"), replace_bindings(mod["main"], _widened))
        return widened


def _widened(binding: relax.Binding) -> list[relax.Binding]:
    value = binding.value if isinstance(binding, relax.VarBinding) else None
    if not isinstance(value, relax.Call):
        return [binding]
    if value.op in _TRANSPOSED:
        return _computed_in_float32(binding, value)
    call = _in_float32(value)
    if call is None:
        return [binding]
    builder = relax.BlockBuilder()
    call = builder.normalize(call)
    wide = relax.DataflowVar(binding.var.name, call.ty)
    cast = builder.normalize(relax.op.astype(wide, "float16"))
    return [relax.VarBinding(wide, call), relax.VarBinding(binding.var, cast)]


def _computed_in_float32(binding: relax.Binding, call: relax.Call) -> list[relax.Binding]:
    """The bindings that replace a transposed convolution, with inputs cast to float32."""
    if str(binding.var.ty.dtype) != "float16":
        return [binding]
    new, name = NewBindings(), binding.var.name

    wide = [new.bind(relax.op.astype(arg, "float32"), name) for arg in call.args]
    result = new.bind(relax.Call(call.op, wide, call.attrs), name)
    new.bind(relax.op.astype(result, "float16"), name)
    return new.defining(binding.var)


def _in_float32(call: relax.Call) -> relax.Call | None:
    """`call` with a float32 result; None if it is not a convolution or matrix product of
    float16."""
    if call.op not in _CONVS and call.op != _MATMUL:
        return None
    types: list[Any] = [arg.ty for arg in (*call.args, call)]
    if any(str(getattr(ty, "dtype", "")) != "float16" for ty in types):
        return None
    attrs = call.attrs
    if call.op == _MATMUL:
        return relax.op.matmul(*call.args, out_dtype="float32")
    return _CONVS[call.op](
        *call.args,
        attrs.strides,
        attrs.padding,
        attrs.dilation,
        attrs.groups,
        attrs.data_layout,
        attrs.kernel_layout,
        attrs.out_layout,
        "float32",
    )
