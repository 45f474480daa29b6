"""Makes one kernel of each group of kernels."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.ir.transform import PassContext, module_pass

from .groups import ELEMENTWISE, PATTERN, calls_kernel, pattern_of
from .names import bindings_of


@module_pass(opt_level=0, name="FuseKernels")
class FuseKernels:
    """Makes one kernel of each group by TVM's `FuseTIR`, and marks element-wise kernels.

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
            and all(_is_elementwise(mod, binding.value) for binding in bindings_of(function))
        }
        fused = relax.transform.FuseTIR()(mod)
        for var, function in fused.functions_items():
            if var.name_hint in marked and isinstance(function, tirx.PrimFunc):
                fused[var] = function.with_attr(PATTERN, ELEMENTWISE)
        return fused


def _is_elementwise(mod: tvm.IRModule, value: relax.Call) -> bool:
    """Whether `value` calls an element-wise kernel of `mod`."""
    return calls_kernel(value) and pattern_of(mod[value.args[0]]) == ELEMENTWISE
