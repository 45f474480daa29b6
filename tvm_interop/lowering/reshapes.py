"""Turns kernels that only change a shape into `relax.reshape`, where those can stand."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass


@module_pass(opt_level=0, name="ReshapesOfMain")
class ReshapesOfMain:
    """Run `RewriteDataflowReshape` on `main` alone.

    The function of a group that a library may take becomes one kernel, in which there can be calls
    of kernels only: there a copy stays a copy, such as that of a tensor multiplied by 1.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `mod`; called by TVM's pass machinery."""
        rewritten = relax.transform.RewriteDataflowReshape()(mod)
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function) and var.name_hint != "main":
                rewritten.update_func(rewritten.get_global_var(var.name_hint), func)
        return rewritten
