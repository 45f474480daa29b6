"""Makes one kernel of each group of kernels."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.ir.transform import PassContext, module_pass

from .names import bindings_of

PATTERN = "op_pattern"
"""The attribute of a kernel by which TVM says which other kernels it may be fused with."""

ELEMENTWISE = 0
"""TVM's `kElemWise`, the `op_pattern` of element-wise kernels."""


@module_pass(opt_level=0, name="FuseKernels")
class FuseKernels:
    """Makes one kernel of each group by TVM's `FuseTIR`, and marks the element-wise ones.

    `FuseTIR` loses the kernels' attribute `op_pattern`. This pass sets it for groups in which all
    kernels are element-wise, because tensors of such a kernel may have a blocked layout
    (`tvm_interop.compiler.kernel_choice`).
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Fuse the groups of `mod`; called by TVM's pass machinery."""
        marked = {
            var.name_hint
            for var, function in mod.functions_items()
            if isinstance(function, relax.Function)
            and "Primitive" in (function.attrs or {})
            and all(is_elementwise(mod, binding.value) for binding in bindings_of(function))
        }
        fused = relax.transform.FuseTIR()(mod)
        for var, function in fused.functions_items():
            if var.name_hint in marked and isinstance(function, tirx.PrimFunc):
                fused[var] = function.with_attr(PATTERN, ELEMENTWISE)
        return fused


def is_elementwise(mod: tvm.IRModule, value: relax.Expr) -> bool:
    """Whether `value` calls an element-wise kernel of `mod`."""
    if not isinstance(value, relax.Call) or value.op != tvm.ir.Op.get("relax.call_tir"):
        return False
    attrs = mod[value.args[0]].attrs or {}
    return int(attrs.get(PATTERN, -1)) == ELEMENTWISE
